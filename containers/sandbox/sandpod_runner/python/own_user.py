"""Gives the user that a program runs as a name and a home, where the image's list of users has none.

Any numeric user will do for a sandbox, and that list can't be written. What asks the standard library gets an answer.
"""

from __future__ import annotations

import os
import pwd
from typing import Any


def answer_for_own_user() -> None:
    """Let `pwd` know this process's user, unless it does already."""
    by_number, by_name, everybody = pwd.getpwuid, pwd.getpwnam, pwd.getpwall
    try:
        by_number(os.getuid())
    except KeyError:
        pass
    else:
        return

    def own() -> pwd.struct_passwd:
        name, home = os.environ.get("USER") or "sandbox", os.environ.get("HOME") or "/"
        return pwd.struct_passwd((name, "x", os.getuid(), os.getgid(), "", home, "/bin/sh"))

    def getpwuid(uid: Any, /) -> pwd.struct_passwd:
        return own() if uid == os.getuid() else by_number(uid)

    def getpwnam(name: str, /) -> pwd.struct_passwd:
        return own() if name == own().pw_name else by_name(name)

    def getpwall() -> list[pwd.struct_passwd]:
        return [*everybody(), own()]

    vars(pwd).update(getpwuid=getpwuid, getpwnam=getpwnam, getpwall=getpwall)
