"""A file of API keys: read again when it changes, and replaced as a whole."""

import asyncio
import fcntl
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.auth.api_keys import MAX_FILE, KeyFile, parse_keys
from sandpod_gateway.errors import StartError
from sandpod_gateway.temporary import locked

POLL_SECONDS: Final = 1.0  # between two looks at the file


class WatchedFile:
    """A file of keys; implements `key_source.KeySource`. One that is not there holds none."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: tuple[int, ...] | None = None

    async def read(self) -> KeyFile:
        """Return the keys."""
        return await asyncio.to_thread(self._read)

    async def follow(self, use: Callable[[KeyFile], None]) -> None:
        """Pass the keys on whenever the file has changed since it was read."""
        while True:
            if await asyncio.to_thread(self._read_stamp) != self._stamp:
                use(await self.read())
            await asyncio.sleep(POLL_SECONDS)

    async def change(self, change: Callable[[KeyFile], KeyFile]) -> KeyFile:
        """Replace the file; see `KeySource.change`. Raises StartError as `change_file` does."""
        made: list[KeyFile] = []

        def changed(keys: KeyFile) -> KeyFile:
            made[:] = [change(keys)]
            return made[0]

        await asyncio.to_thread(change_file, self._path, changed)
        return made[0]

    def _read(self) -> KeyFile:
        stamp = self._read_stamp()
        keys = read_keys(self._path) if stamp is not None else KeyFile()
        self._stamp = stamp  # not before, so that a mistake in the file is seen again
        return keys

    def _read_stamp(self) -> tuple[int, ...] | None:
        try:
            stat = self._path.stat()
        except FileNotFoundError:
            return None
        except OSError:
            return 0, 0, 0  # it exists; reading it will say what is wrong
        return stat.st_mtime_ns, stat.st_size, stat.st_ino


def read_keys(path: Path) -> KeyFile:
    """Return the keys of a file. Raises StartError: it can't be read or is no key file; says nothing of its content."""
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_FILE + 1)
    except OSError as error:
        message = f"The key file {path} can't be read: {error.strerror}."
        step = "Make it with: sandpod keys create --user NAME --file FILE"
        raise StartError(ErrorCode.NOT_FOUND, message, next_step=step) from error
    return parse_keys(raw, str(path))


def change_file(path: Path, change: Callable[[KeyFile], KeyFile], *, make: bool = True) -> None:
    """Replace the file, which only its owner can read, by what `change` makes of its keys; those leave it as it is.

    With `make`, one that is not there yet is made. Raises StartError: it can't be read or written, or is no key file;
    or what `change` raises.
    """
    path = path.resolve()
    try:
        with locked(path.parent, fcntl.LOCK_EX):
            old = KeyFile() if make and not path.exists() else read_keys(path)
            keys = change(old)
            if keys is old:
                return
            handle, new = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
            with os.fdopen(handle, "wb") as out:
                out.write(keys.dump())
            Path(new).replace(path)
    except OSError as error:
        message = f"The key file {path} can't be written: {error.strerror}."
        raise StartError(ErrorCode.BACKEND_ERROR, message, next_step="Choose another place with --file.") from error
