"""Where usage documents are kept, and a store in a folder, for gateways on one machine."""

import asyncio
import contextlib
import fcntl
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.errors import StartError
from sandpod_gateway.temporary import locked

POLL_SECONDS: Final = 1.0
MAX_DOCUMENT: Final = 2**20
LIVE: Final = "live-"
USAGE: Final = "usage-"
"""Beginnings of the names of the two documents that each gateway has."""
_NAME: Final = re.compile(r"[a-z0-9-]{1,64}")


@dataclass(frozen=True, slots=True)
class Stored:
    """A document as a store has it, and the version by which a change of it is noticed."""

    content: bytes
    version: str


Documents = dict[str, Stored]


class DocumentStore(Protocol):
    """Keeps documents by name. Its methods raise `SandpodError` where it can't be reached."""

    async def read(self) -> Documents:
        """Return all documents."""

    async def write(self, name: str, content: bytes, version: str | None) -> str | None:
        """Replace a document of that version, or make one where that is None. Return its new version.

        None says that it is not that version any more, and nothing was written.
        """

    async def delete(self, name: str, version: str) -> None:
        """Delete a document of that version; one of another stays."""

    async def follow(self, use: Callable[[Documents], None]) -> None:
        """Pass all documents on, now and at each change, until cancelled."""


class FolderStore:
    """Documents in the files of one folder; implements `DocumentStore`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def open(self) -> None:
        """Make the folder, which only its owner can read. Raises StartError: it can't be used."""
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with locked(self._folder, fcntl.LOCK_SH), tempfile.TemporaryFile(dir=self._folder):
                pass
        except OSError as error:
            message = f"The folder {self._folder} for usage can't be written: {error.strerror}."
            raise StartError(ErrorCode.INVALID_PATH, message, next_step="Correct usage.directory.") from error

    async def read(self) -> Documents:
        """Return all documents."""
        return await asyncio.to_thread(self.read_now)

    async def write(self, name: str, content: bytes, version: str | None) -> str | None:
        """Write a document; see `DocumentStore.write`."""
        return await asyncio.to_thread(self._write, name, content, version)

    async def delete(self, name: str, version: str) -> None:
        """Delete a document of that version."""
        await asyncio.to_thread(self._delete, name, version)

    async def follow(self, use: Callable[[Documents], None]) -> None:
        """Pass all documents on whenever one has changed."""
        last: dict[str, str] | None = None
        while True:
            versions = await asyncio.to_thread(self._versions)
            if versions != last:
                use(await self.read())
                last = versions
            await asyncio.sleep(POLL_SECONDS)

    def read_now(self) -> Documents:
        """Return all documents, which may take a while. Raises StartError: there is no such folder."""
        with self._failing(), locked(self._folder, fcntl.LOCK_SH):
            versions = self._versions()
            return {name: Stored(self._content(name), version) for name, version in versions.items()}

    def _content(self, name: str) -> bytes:
        with self._path(name).open("rb") as file:
            return file.read(MAX_DOCUMENT)

    def _versions(self) -> dict[str, str]:
        found = {}
        for path in self._folder.glob("*.json"):
            with contextlib.suppress(FileNotFoundError):
                if _NAME.fullmatch(path.stem):
                    found[path.stem] = _version(path)
        return found

    def _write(self, name: str, content: bytes, version: str | None) -> str | None:
        with self._failing(), locked(self._folder, fcntl.LOCK_EX):
            if self._versions().get(name) != version:
                return None
            handle, new = tempfile.mkstemp(dir=self._folder, prefix=f".{name}.")
            with os.fdopen(handle, "wb") as out:
                out.write(content)
                out.flush()
                os.fsync(out.fileno())
            Path(new).replace(self._path(name))
            return _version(self._path(name))

    def _delete(self, name: str, version: str) -> None:
        with self._failing(), locked(self._folder, fcntl.LOCK_EX):
            if self._versions().get(name) == version:
                self._path(name).unlink()

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.json"

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            message = f"The folder {self._folder} for usage can't be used: {error.strerror}."
            raise StartError(ErrorCode.BACKEND_UNAVAILABLE, message, next_step="Look at the folder.") from error


def _version(path: Path) -> str:
    stat = path.stat()
    return f"{stat.st_ino}-{stat.st_mtime_ns}"
