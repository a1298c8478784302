"""Proves from inside that a local sandbox is one.

This file is PID 1 of a sandbox before the backend offers any, which reads what it prints. It runs on the sandbox's own
Python, so it uses the standard library alone; the gateway imports `failures` from it.
"""

import ctypes
import json
import os
import socket
import sys
from pathlib import Path

_CLONE_NEWUSER = 0x10000000
_READ_ONLY = ("/", "/usr", "/etc", "/dev", "/opt/sandpod")


def look() -> dict[str, object]:
    """Return what can be seen from inside, as plain JSON values."""
    status = dict(
        line.split(":\t", 1) for line in Path("/proc/self/status").read_text("ascii").splitlines() if ":\t" in line
    )
    libc = ctypes.CDLL(None, use_errno=True)
    return {
        "uid": os.getuid(),
        "groups": os.getgroups(),
        "pid": os.getpid(),
        "capabilities": sorted({status[name].strip() for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")}),
        "seccomp": status["Seccomp"].strip(),
        "no_new_privs": status["NoNewPrivs"].strip(),
        "interfaces": [name for _, name in socket.if_nameindex()],
        "writable": [path for path in _READ_ONLY if not os.statvfs(path).f_flag & os.ST_RDONLY],
        "namespaces": libc.unshare(_CLONE_NEWUSER) == 0,
    }


def failures(seen: dict[str, object]) -> list[str]:
    """Return what is wrong with what was seen, one sentence part each; empty when the isolation is whole."""
    # A gateway that is no root can't leave its groups, but nobody's files are there for them to open.
    uid, groups = seen.get("uid"), seen.get("groups")
    checks = {
        "it runs as root": isinstance(uid, int) and uid > 0 and isinstance(groups, list) and 0 not in groups,
        "it sees the machine's processes": seen.get("pid") == 1,
        "it has capabilities": seen.get("capabilities") == ["0" * 16],
        "it has no system-call filter": seen.get("seccomp") == "2",
        "it can gain rights": seen.get("no_new_privs") == "1",
        "it has network interfaces": seen.get("interfaces") in ([], ["lo"]),
        "it can write to the system": seen.get("writable") == [],
        "it can make namespaces": seen.get("namespaces") is False,
    }
    return [text for text, good in checks.items() if not good]


if __name__ == "__main__":
    sys.stdout.write(json.dumps(look()) + "\n")
