"""E2B's home folder and the workspace: two names of the same files. Pure."""

import posixpath
from typing import Final

from sandpod_api.names import WORKSPACE
from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.errors import SandpodError

HOME: Final = "/home/user"


def inside(path: str) -> str:
    """Return a path of E2B's as the tools take it: relative to the workspace. Raises SandpodError (invalid_path)."""
    return _relative(path.removeprefix("~/") if path != "~" else "")


def outside(path: str) -> str:
    """Return a path of the tools' as E2B has it: below its home folder. Raises SandpodError (invalid_path)."""
    return posixpath.normpath(posixpath.join(HOME, _relative(path)))


def _relative(path: str) -> str:
    whole = posixpath.normpath(posixpath.join(HOME, path))
    for root in (HOME, WORKSPACE):
        if whole == root or whole.startswith(f"{root}/"):
            return posixpath.relpath(whole, root)
    step = "Use a path that is relative or below /home/user."
    raise SandpodError(ErrorCode.INVALID_PATH, f"Files are in {HOME} alone, not elsewhere.", next_step=step)


def folder(path: str | None) -> tuple[str, str]:
    """Return where a program starts, as the tools take it, and where it goes from there: a folder beside them."""
    if not path:
        return ".", ""
    try:
        return inside(path), ""
    except SandpodError:
        return ".", posixpath.normpath(posixpath.join(HOME, path))
