"""Renames that are all kept or all taken back."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator


class Transaction:
    """Puts files in place of others.

    Args:
        aside: A folder on the same file system, for what is replaced.
    """

    def __init__(self, aside: str) -> None:
        self._aside = aside
        self._moves: list[tuple[str, str]] = []
        self._folders: set[str] = set()
        os.makedirs(aside, exist_ok=True)

    def remove(self, path: str) -> None:
        """Move a file or a folder aside, if it is there."""
        if os.path.lexists(path):
            self._move(path, os.path.join(self._aside, str(len(self._moves))))
            self._folders.add(os.path.dirname(path))

    def put(self, source: str, target: str) -> None:
        """Move a file to its place, where another file may be."""
        if not os.path.isdir(target):
            self.remove(target)
        folder = os.path.dirname(target)
        self._folders.add(folder)
        os.makedirs(folder, exist_ok=True)
        self._move(source, target)

    def take_back(self) -> None:
        """Undo all moves."""
        for source, target in reversed(self._moves):
            os.rename(target, source)

    def tidy(self) -> None:
        """Remove compiled code, which may be of files that are gone, and folders without files.

        Python would find an empty folder as a package.
        """
        for folder in sorted(self._folders, key=len, reverse=True):
            shutil.rmtree(os.path.join(folder, "__pycache__"), ignore_errors=True)
            with contextlib.suppress(OSError):
                os.removedirs(folder)

    def _move(self, source: str, target: str) -> None:
        os.rename(source, target)
        self._moves.append((source, target))


@contextlib.contextmanager
def transaction(aside: str) -> Iterator[Transaction]:
    """Give a transaction that is taken back if the block raises."""
    moves = Transaction(aside)
    try:
        yield moves
    except BaseException:
        moves.take_back()
        raise
    finally:
        moves.tidy()
