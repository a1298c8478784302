"""Keeps downloaded packages by the hash of their bytes; the least recently used go first.

A package's hash is computed from its bytes when it is stored and again when it is read: nothing that a sandbox, a
package or a program that writes to the folder claims decides what a caller gets.
"""

import asyncio
import binascii
import hashlib
import os
import secrets
import shutil
import tempfile
from base64 import b64decode
from dataclasses import dataclass
from io import BufferedIOBase, BufferedReader
from pathlib import Path
from typing import Final, Self

from cachetools import LRUCache

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.errors import StartError

_STRONGEST_FIRST: Final = ("sha512", "sha384", "sha256", "sha1")


@dataclass(frozen=True, slots=True)
class Digest:
    """A hash of some bytes: the algorithm's name, as hashlib has it, and the hash in hexadecimal."""

    algorithm: str
    value: str

    @classmethod
    def of(cls, file: BufferedIOBase, algorithm: str) -> Self:
        """Return the hash of a whole file, and rewind it."""
        file.seek(0)
        value = hashlib.file_digest(file, algorithm).hexdigest()
        file.seek(0)
        return cls(algorithm, value)

    @classmethod
    def announced(cls, integrity: str) -> Self:
        """Return the one hash of the strongest algorithm of an npm integrity string.

        Raises ValueError: there is none, there are several, or it is not well formed.
        """
        hashes = {each.partition("-")[::2] for each in integrity.split()}
        known = {algorithm for algorithm, _ in hashes}
        strongest = next((each for each in _STRONGEST_FIRST if each in known), None)
        if strongest is None:
            raise ValueError("no hash of a known algorithm")
        values = [value for algorithm, value in hashes if algorithm == strongest]
        if len(values) != 1:
            raise ValueError("several hashes of one algorithm")
        try:
            found = b64decode(values[0], validate=True)
        except binascii.Error as error:
            raise ValueError("no base64") from error
        if len(found) != hashlib.new(strongest).digest_size:
            raise ValueError("a hash of the wrong length")
        return cls(strongest, found.hex())


@dataclass(frozen=True, slots=True)
class Content:
    """A package's bytes as an open file, which stays whole when the cache drops it; `size` in bytes."""

    file: BufferedReader
    sha256: str
    size: int


class _Sizes(LRUCache[Path, int]):
    """Sizes of files in bytes, by path. A file is deleted when its entry is evicted."""

    def popitem(self) -> tuple[Path, int]:
        path, size = super().popitem()
        path.unlink(missing_ok=True)
        return path, size


class FileCache:
    """A folder of packages, or a temporary one that `close` removes, of `max_bytes` at most."""

    def __init__(self, folder: Path | None, max_bytes: int) -> None:
        self._own = folder is None
        self._folder = folder or Path()
        self._kept = _Sizes(max_bytes, getsizeof=int)

    def open(self) -> None:
        """Make the folder, and list the packages that it has. Raises StartError: it can't be made."""
        try:
            if self._own:
                self._folder = Path(tempfile.mkdtemp(prefix="sandpod-packages-"))
            self._folder.mkdir(parents=True, exist_ok=True)
            for partial in self._folder.glob("*.part"):
                partial.unlink()
        except OSError as error:
            message = f"The folder for packages can't be used: {error.strerror}."
            step = "Set --packages.cache-dir to a folder that this user can write to."
            raise StartError(ErrorCode.INVALID_ARGUMENT, message, next_step=step) from error
        for path in sorted(self._folder.glob("*.package"), key=lambda path: path.stat().st_mtime):
            if path.stat().st_size <= self._kept.maxsize:
                self._kept[path] = path.stat().st_size
            else:
                path.unlink()

    def close(self) -> None:
        """Remove a temporary folder."""
        if self._own:
            shutil.rmtree(self._folder, ignore_errors=True)

    async def get(self, digest: Digest | None) -> Content | None:
        """Return a package by the hash of its content, or None where that is not known or not kept."""
        path = self._path(digest) if digest is not None else None
        if path is None or self._kept.get(path) is None:  # `get` makes it the most recently used
            return None
        content = await asyncio.to_thread(_open, path, digest)
        if content is None:
            self._kept.pop(path, None)
        return content

    async def add(self, source: Path, digest: Digest | None) -> Content | None:
        """Return a package, and move its file into the cache unless it is too large or its hash unknown or weak.

        None if its content has another hash than `digest`, or if there is no such file.
        """
        content = await asyncio.to_thread(_open, source, digest)
        # Others can make bytes with the same sha1.
        strong = digest if digest is not None and digest.algorithm != "sha1" else None
        if content is not None and strong is not None and content.size <= self._kept.maxsize:
            target = self._path(strong)
            await asyncio.to_thread(_move, source, target)
            self._kept[target] = content.size
        return content

    def _path(self, digest: Digest) -> Path:
        return self._folder / f"{digest.algorithm}-{digest.value}.package"


def _move(source: Path, target: Path) -> None:
    # Renamed at the end, as the move from another file system is a copy: the package is there whole or not at all.
    partial = target.with_name(f"{secrets.token_hex(8)}.part")  # of this move: the same package may come twice at once
    shutil.move(source, partial)
    partial.replace(target)


def _open(path: Path, digest: Digest | None) -> Content | None:
    """Return a file's content; a file with another hash is removed."""
    try:
        file = path.open("rb")
        if digest is None or Digest.of(file, digest.algorithm) == digest:
            os.utime(path)
            known = digest if digest is not None and digest.algorithm == "sha256" else Digest.of(file, "sha256")
            return Content(file, known.value, os.fstat(file.fileno()).st_size)
        file.close()
        path.unlink()
    except FileNotFoundError:
        pass
    return None
