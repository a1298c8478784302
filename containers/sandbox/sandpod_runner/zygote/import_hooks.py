"""Notices when a program, or the zygote, imports a library that draws, so that those that show nothing pay nothing."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Final

_ADOPTERS: Final = {
    "matplotlib.backend_bases": ("figures", "adopt_matplotlib"),
    "PIL.ImageShow": ("figures", "adopt_pil"),
    "plotly.io._renderers": ("figures", "adopt_plotly"),
    "IPython.core.display_functions": ("rich", "adopt_ipython"),
}


class _Finder:
    """The first in the list of those that are asked where a module is."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        adopter = _ADOPTERS.get(name)
        if adopter is None:
            return None
        for finder in list(sys.meta_path):
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None:
                loader: Any = spec.loader
                loader.exec_module = _followed(loader.exec_module, adopter)
                return spec
        return None


def install() -> None:
    """Begin to notice, and give programs `display`, which people are used to from notebooks."""
    sys.meta_path.insert(0, _Finder())
    vars(builtins)["display"] = display


def display(*values: Any, **options: Any) -> None:
    """Show values to whoever runs the program, each in the forms that it has."""
    from sandpod_runner.python import rich  # noqa: PLC0415 - only for programs that display something

    rich.display(*values, **options)


def _followed(execute: Callable[[ModuleType], None], adopter: tuple[str, str]) -> Callable[[ModuleType], None]:
    def exec_module(module: ModuleType) -> None:
        execute(module)
        name, function = adopter
        try:
            getattr(import_module(f"sandpod_runner.python.{name}"), function)(module)  # only for programs that draw
        except Exception as error:  # noqa: BLE001 - a version with other insides is used as it is
            library = module.__name__.partition(".")[0]
            sys.stderr.write(f"What {library} shows can't be passed on: {type(error).__name__}: {error}\n")

    return exec_module
