"""How Python programs find packages that were added to a sandbox after the zygote was started."""

from __future__ import annotations

import os
import sys
from importlib.machinery import (
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    SourceFileLoader,
)
from types import CodeType

from sandpod_runner.ipc.home import added_packages


def find_added_packages() -> None:
    """Let this process and those forked from it find added packages, before the image's own as Python has it."""
    folder = added_packages(os.environ["HOME"])

    def finder(path: str) -> FileFinder:
        if path != folder and not path.startswith(f"{folder}/"):
            raise ImportError
        return FileFinder(path, (ExtensionFileLoader, EXTENSION_SUFFIXES), (_Loader, SOURCE_SUFFIXES))

    sys.path_hooks.insert(0, finder)
    ends = ("site-packages", "dist-packages")
    places = [place for place, entry in enumerate(sys.path) if entry.endswith(ends)]
    sys.path.insert(places[0] if places else len(sys.path), folder)


class _Loader(SourceFileLoader):
    """Keeps compiled code, which programs are otherwise told not to: a large package takes seconds to compile."""

    def get_code(self, fullname: str) -> CodeType | None:
        before, sys.dont_write_bytecode = sys.dont_write_bytecode, False
        try:
            return super().get_code(fullname)
        finally:
            sys.dont_write_bytecode = before
