"""Keeps downloaded packages by their hash, the least used go first. Called by the supplies, in their event loop."""

import asyncio
import os
import shutil
import tempfile
from collections import OrderedDict
from pathlib import Path

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.errors import StartError


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
        self._sizes: OrderedDict[str, int] = OrderedDict()

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
        found = sorted(self._folder.glob("*.package"), key=lambda path: path.stat().st_mtime)
        self._sizes = OrderedDict((path.stem, path.stat().st_size) for path in found)

    def close(self) -> None:
        """Remove a temporary folder."""
        if self._own:
            shutil.rmtree(self._folder, ignore_errors=True)

    def get(self, key: str | None) -> Path | None:
        """Return a package's file, or None. It is the caller's to open at once: it may be dropped later.

        Args:
            key: The hash of its content, in hexadecimal; None where it is not known.
        """
        if key is None or key not in self._sizes:
            return None
        path = self._path(key)
        if not path.exists():
            del self._sizes[key]
            return None
        self._sizes.move_to_end(key)
        os.utime(path)
        return path

    async def put(self, key: str | None, source: Path, size: int) -> None:
        """Keep a package of that size: its file is moved here."""
        if key is None or size > self._max_bytes:
            return
        await asyncio.to_thread(self._move, source, self._path(key))
        self._sizes[key] = size
        self._sizes.move_to_end(key)
        while sum(self._sizes.values()) > self._max_bytes:
            oldest, _ = self._sizes.popitem(last=False)
            self._path(oldest).unlink(missing_ok=True)

    def _path(self, key: str) -> Path:
        return self._folder / f"{key}.package"

    @staticmethod
    def _move(source: Path, target: Path) -> None:
        # Copied under another name first where it comes from another file system: it is there whole or not at all.
        partial = target.with_suffix(".part")
        shutil.move(source, partial)
        partial.replace(target)
