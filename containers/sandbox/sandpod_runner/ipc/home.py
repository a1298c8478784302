"""Where the packages that are added to a sandbox lie in its programs' home.

They are where `pip install --user` and `npm install --global` put them, so that any `python3` finds them, and Node by
NODE_PATH.
"""

from __future__ import annotations

import sys


def added_packages(home: str) -> str:
    """Return the folder of Python's packages."""
    return "{}/.local/lib/python{}.{}/site-packages".format(home, *sys.version_info[:2])


def added_modules(home: str) -> str:
    """Return the folder of JavaScript's."""
    return f"{home}/.local/lib/node_modules"
