"""Where added packages lie in the programs' home: where `pip install --user` and `npm install --global` put them."""

from __future__ import annotations

import sys


def added_packages(home: str) -> str:
    """Return the folder of Python's packages."""
    return "{}/.local/lib/python{}.{}/site-packages".format(home, *sys.version_info[:2])


def added_modules(home: str) -> str:
    """Return the folder of JavaScript's."""
    return f"{home}/.local/lib/node_modules"
