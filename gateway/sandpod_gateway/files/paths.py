"""Paths in workspaces as callers write them, in the runner's spelling: their checks and their form in results. Pure."""

import posixpath
from typing import Final

from sandpod_api.names import WORKSPACE
from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.limits import MAX_PATH, check_text
from sandpod_runner.protocol.paths import spell, unspell

MAX_NAME: Final = 255  # bytes of one file name, as in Linux


def shown_path(path: str) -> str:
    """Return a path for results: relative to the workspace and without dots; one that leads out of it is unchanged."""
    inside = posixpath.relpath(posixpath.join(WORKSPACE, path), WORKSPACE)
    return spell(unspell(path if inside == ".." or inside.startswith("../") else inside))


def inside_workspace(path: str) -> str:
    """Return a path relative to the workspace, without dots, for links and results.

    Raises invalid_path: it leads out of the workspace, or is the workspace itself.
    """
    inside = posixpath.relpath(posixpath.join(WORKSPACE, path), WORKSPACE)
    if inside in {".", ".."} or inside.startswith("../"):
        message, step = "The path is not a file inside the workspace.", "Use a path such as data/table.csv."
        raise SandpodError(ErrorCode.INVALID_PATH, message, next_step=step)
    return spell(unspell(inside))


def check_path(path: str) -> None:
    """Check that a text can be a path. Raises invalid_path."""
    check_text(path, "path")
    meant = _meant(path)
    if not path or "\0" in path or len(meant) > MAX_PATH or any(len(part) > MAX_NAME for part in meant.split(b"/")):
        message = "That is not a path: it is empty, too long or has a NUL character in it."
        step = "Use a path inside the workspace, such as data/table.csv."
        raise SandpodError(ErrorCode.INVALID_PATH, message, next_step=step)


def check_filename(name: str) -> None:
    """Check that a text can be the name of a file. Raises invalid_filename."""
    check_text(name, "filename")
    if name in {"", ".", ".."} or "/" in name or not name.isprintable() or len(_meant(name)) > MAX_NAME:
        message = "That is not a file name: it is empty, too long, or has a slash or a control character in it."
        step = "Use a name such as table.csv, and `path` for the folder."
        raise SandpodError(ErrorCode.INVALID_FILENAME, message, next_step=step)


def _meant(path: str) -> bytes:
    return unspell(path).encode(errors="surrogateescape")
