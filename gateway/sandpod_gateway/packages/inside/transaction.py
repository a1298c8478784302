"""Renames that are all kept or all taken back."""

from __future__ import annotations

import contextlib
import os
import shutil


class Transaction:
    """Puts files in place of others until the block is left, and takes all of it back if that raises.

    What is replaced goes to `aside`, a folder on the same file system.
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

    def _move(self, source: str, target: str) -> None:
        os.rename(source, target)
        self._moves.append((source, target))

    def __enter__(self) -> Transaction:  # noqa: PYI034 - Python 3.9 has no Self
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            for source, target in reversed(self._moves):
                os.rename(target, source)
        # Compiled code may be of files that are gone, and Python would find an empty folder as a package.
        for folder in sorted(self._folders, key=len, reverse=True):
            shutil.rmtree(os.path.join(folder, "__pycache__"), ignore_errors=True)
            with contextlib.suppress(OSError):
                os.removedirs(folder)
