"""Keeps downloaded packages by the hash of their bytes; the least recently used go first.

A package's hash is computed when it comes and again when it is taken out:
what a sandbox, a package or a program that writes to the folder says has no part in what anybody gets.
"""

import asyncio
import os
import shutil
import tempfile
from io import BufferedReader
from pathlib import Path

from cachetools import LRUCache

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.errors import StartError
from sandpod_gateway.packages.digests import Digest


class DamagedError(Exception):
    """Bytes have another hash than was announced."""


class _Kept(LRUCache[Path, int]):
    """Sizes of files, bytes, by path. A file whose entry has to go goes with it."""

    def popitem(self) -> tuple[Path, int]:
        path, size = super().popitem()
        path.unlink(missing_ok=True)
        return path, size


class FileCache:
    """A folder of packages of a bounded size.

    Args:
        folder: Where, or None for a temporary folder, which is removed by `close`.
        max_bytes: The most that is kept.
    """

    def __init__(self, folder: Path | None, max_bytes: int) -> None:
        self._own = folder is None
        self._folder = folder or Path()
        self._max_bytes = max_bytes
        self._kept = _Kept(max_bytes, getsizeof=int)

    def open(self) -> None:
        """Make the folder, and find out what is there from before.

        Raises:
            StartError: It can't be made.
        """
        try:
            if self._own:
                self._folder = Path(tempfile.mkdtemp(prefix="sandpod-packages-"))
            self._folder.mkdir(parents=True, exist_ok=True)
            for half in self._folder.glob("*.part"):
                half.unlink()
        except OSError as error:
            raise StartError(
                ErrorCode.INVALID_ARGUMENT,
                f"The folder for packages can't be used: {error.strerror}.",
                next_step="Set --packages.cache-dir to a folder that this user can write to.",
            ) from error
        for path in sorted(self._folder.glob("*.package"), key=lambda path: path.stat().st_mtime):
            if path.stat().st_size <= self._max_bytes:
                self._kept[path] = path.stat().st_size
            else:
                path.unlink()

    def close(self) -> None:
        """Remove a temporary folder."""
        if self._own:
            shutil.rmtree(self._folder, ignore_errors=True)

    async def get(self, digest: Digest | None) -> BufferedReader | None:
        """Return a package's open file, or None where it is not kept. An open file stays whole when it is dropped.

        Args:
            digest: The hash of its content; None where it is not known.
        """
        if digest is None:
            return None
        path = self._path(digest)
        if path not in self._kept:
            return None
        file = await asyncio.to_thread(_open, path, digest)
        if file is None:
            self._kept.pop(path, None)
        else:
            self._kept.get(path)  # is the last used one now
        return file

    async def add(self, source: Path, digest: Digest | None) -> BufferedReader:
        """Return a package's open file, and keep it unless it is too large or its hash is unknown or weak.

        Args:
            source: Its file, which is moved.
            digest: The hash that its content must have.

        Raises:
            DamagedError: It has another one.
        """
        file = await asyncio.to_thread(_open, source, digest)
        if file is None:
            raise DamagedError
        size = os.fstat(file.fileno()).st_size
        if digest is None or not digest.is_strong or size > self._max_bytes:
            return file
        target = self._path(digest)
        await asyncio.to_thread(self._move, source, target)
        self._kept[target] = size
        return file

    def _path(self, digest: Digest) -> Path:
        return self._folder / f"{digest.algorithm}-{digest.value}.package"

    @staticmethod
    def _move(source: Path, target: Path) -> None:
        # Copied under another name first where it comes from another file system: it is there whole or not at all.
        partial = target.with_suffix(".part")
        shutil.move(source, partial)
        partial.replace(target)


def _open(path: Path, digest: Digest | None) -> BufferedReader | None:
    """Return an open file with that hash; one with another hash is removed."""
    try:
        file = path.open("rb")
        if digest is None or Digest.of(file, digest.algorithm) == digest:
            os.utime(path)
            return file
        file.close()
        path.unlink()
    except FileNotFoundError:
        pass
    return None
