"""What the zygote changes in its own interpreter for all programs that are forked from it.

It notices when a program imports a library that draws, so that those that show nothing pay nothing; finds packages that
are added to the sandbox later; and gives the user a name and a home where the image's list of users, which can't be
written, has none: any numeric user will do for a sandbox.
"""

from __future__ import annotations

import builtins
import contextlib
import os
import pwd
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module, machinery
from types import CodeType, ModuleType
from typing import Any, Final

from sandpod_runner.ipc.home import added_packages

_ADOPTERS: Final = {
    "matplotlib.backend_bases": ("figures", "adopt_matplotlib"),
    "PIL.ImageShow": ("figures", "adopt_pil"),
    "plotly.io._renderers": ("figures", "adopt_plotly"),
    "IPython.core.display_functions": ("rich", "adopt_ipython"),
}


class _Finder:
    """The first finder of modules."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> machinery.ModuleSpec | None:
        adopter = _ADOPTERS.get(name)
        if adopter is None:
            return None
        for finder in list(sys.meta_path):
            if finder is not self and (spec := finder.find_spec(name, path, target)) is not None:
                loader: Any = spec.loader
                loader.exec_module = partial(_execute, loader.exec_module, adopter)
                return spec
        return None


def notice_drawing() -> None:
    """Notice imports of libraries that draw, and give programs `display`, which people are used to from notebooks."""
    sys.meta_path.insert(0, _Finder())
    vars(builtins)["display"] = display


def display(*values: Any, **options: Any) -> None:
    """Show values to whoever runs the program, each in the forms that it has."""
    from sandpod_runner.python import rich  # noqa: PLC0415 - only for programs that display something

    rich.display(*values, **options)


def _execute(execute: Callable[[ModuleType], None], adopter: tuple[str, str], module: ModuleType) -> None:
    execute(module)
    name, function = adopter
    try:
        getattr(import_module(f"sandpod_runner.python.{name}"), function)(module)  # only for programs that draw
    except Exception as error:  # noqa: BLE001 - a version with other insides is used as it is
        library = module.__name__.partition(".")[0]
        sys.stderr.write(f"What {library} shows can't be passed on: {type(error).__name__}: {error}\n")


def find_added_packages() -> None:
    """Let this process and those forked from it find added packages, before the image's own as Python has it."""
    folder = added_packages(os.environ["HOME"])

    def finder(path: str) -> machinery.FileFinder:
        if path != folder and not path.startswith(f"{folder}/"):
            raise ImportError
        return machinery.FileFinder(
            path, (machinery.ExtensionFileLoader, machinery.EXTENSION_SUFFIXES), (_Loader, machinery.SOURCE_SUFFIXES)
        )

    sys.path_hooks.insert(0, finder)
    ends = ("site-packages", "dist-packages")
    places = [place for place, entry in enumerate(sys.path) if entry.endswith(ends)]
    sys.path.insert(places[0] if places else len(sys.path), folder)


class _Loader(machinery.SourceFileLoader):
    """Keeps compiled code, as programs otherwise don't: a large package takes seconds to compile."""

    def get_code(self, fullname: str) -> CodeType | None:
        before, sys.dont_write_bytecode = sys.dont_write_bytecode, False
        try:
            return super().get_code(fullname)
        finally:
            sys.dont_write_bytecode = before


def name_own_user() -> None:
    """Let `pwd` know this process's user, unless it does already."""
    by_number, by_name, everybody = pwd.getpwuid, pwd.getpwnam, pwd.getpwall
    with contextlib.suppress(KeyError):
        by_number(os.getuid())
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
