"""What a sandbox has: its files, contexts and packages."""

import secrets
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Final
from urllib.parse import quote

from sandpod.api import Api, file_path, new_key
from sandpod.errors import InvalidArgumentError, NotFoundError, SandboxLostError, SandpodError, refused
from sandpod.results import ContextInfo, FileEntry, PackageInfo, parsed
from sandpod.transport import PIECE

Entries = list[FileEntry]
Progress = Callable[[int, int], object]
"""What is told how many bytes have gone, and of how many."""

_WAIT: Final = 60  # seconds that one request waits for an installation
_PUT: Final = {"Content-Type": "application/octet-stream"}


class Place:
    """A sandbox at a server; it is made when it is needed first, unless it has a handle."""

    def __init__(self, api: Api, handle: str | None, wanted: dict[str, Any]) -> None:
        self.api = api
        self.handle = handle
        self._wanted = wanted
        self._headers = {} if wanted.get("name") else {"Idempotency-Key": new_key()}

    async def open(self) -> str:
        """Return the handle. Raises SandpodError: the sandbox can't be made."""
        if self.handle is None:
            made = await self.api.call("POST", "/sandboxes", self._wanted, headers=self._headers)
            self.handle = str(made["sandbox"])
        return self.handle

    async def path(self, rest: str = "") -> str:
        """Return the sandbox's address, or that of something in it."""
        return f"/sandboxes/{quote(await self.open(), safe='')}{rest}"

    async def delete(self) -> None:
        """End the sandbox unless it has ended."""
        if self.handle is not None:
            with suppress(NotFoundError, SandboxLostError):
                await self.api.call("DELETE", await self.path(), query={"force": "true"})


class AsyncFiles:
    """The files of a sandbox. Paths are relative to its workspace."""

    def __init__(self, place: Place) -> None:
        self._place = place

    async def read(self, path: str) -> bytes:
        """Return a file's content; `download` is for one that may be large."""
        async with self._place.api.stream("GET", await self._file(path)) as answer:
            return b"".join([piece async for piece in answer.pieces()])

    async def read_text(self, path: str) -> str:
        """Return a text's content."""
        return (await self.read(path)).decode()

    async def write(self, path: str, data: bytes | str) -> None:
        """Write a file, and the folders that it is in. It appears whole."""
        content = data.encode() if isinstance(data, str) else data
        async with self._place.api.stream("PUT", await self._file(path), content, headers=_PUT):
            pass

    async def list(self, path: str = ".", *, recursive: bool = False) -> Entries:
        """Return what is in a folder."""
        query = {"path": path, "recursive": str(recursive).lower()}
        found = await self._place.api.pages(await self._place.path("/files"), "entries", query)
        return [parsed(FileEntry, each) for each in found]

    async def upload(self, source: str | Path, path: str, *, on_progress: Progress | None = None) -> None:
        """Write a file of this machine into the sandbox, of any size. One that breaks off leaves nothing."""
        http, target = self._place.api.http, await self._file(path)
        with await http.work(_opened, Path(source), "rb") as file:
            size = await http.work(file.seek, 0, 2)
            await http.work(file.seek, 0)
            pieces = self._pieces(file, size, on_progress)
            headers = {**_PUT, "Content-Length": str(size)}
            async with self._place.api.stream("PUT", target, pieces, headers=headers):
                pass

    async def download(self, path: str, target: str | Path, *, on_progress: Progress | None = None) -> None:
        """Write a file of the sandbox to this machine, of any size. `target` appears whole, or stays as it is."""
        http, target = self._place.api.http, Path(target)
        part = target.with_name(f".{target.name[:200]}.{secrets.token_hex(4)}.part")
        async with self._place.api.stream("GET", await self._file(path)) as answer:
            size, done = int(answer.response.headers.get("content-length", 0)), 0
            try:
                with await http.work(_opened, part, "xb") as file:
                    async for piece in answer.pieces():
                        await http.work(file.write, piece)
                        done += len(piece)
                        if on_progress is not None:
                            on_progress(done, size)
                await http.work(part.replace, target)
            except OSError as error:
                raise _unusable(target, error) from error
            finally:
                await http.work(part.unlink, missing_ok=True)

    async def make_directory(self, path: str) -> None:
        """Make a folder, and those that it is in, unless it is there."""
        await self._place.api.call("POST", await self._place.path("/folders"), {"path": path})

    async def delete(self, path: str, *, recursive: bool = False) -> None:
        """Delete a file or folder."""
        await self._place.api.call("DELETE", await self._file(path), query={"recursive": str(recursive).lower()})

    async def move(self, source: str, destination: str, *, overwrite: bool = False) -> None:
        """Move or rename a file or folder."""
        body = {"source": source, "destination": destination, "overwrite": overwrite}
        await self._place.api.call("POST", await self._place.path("/moves"), body)

    async def _file(self, path: str) -> str:
        return file_path(await self._place.open(), path)

    async def _pieces(self, file: IO[bytes], size: int, on_progress: Progress | None) -> AsyncGenerator[bytes, None]:
        done = 0
        # What is written to it meanwhile was not announced.
        while piece := await self._place.api.http.work(file.read, min(PIECE, size - done)):
            done += len(piece)
            yield piece
            if on_progress is not None:
                on_progress(done, size)


class AsyncContexts:
    """The contexts of a sandbox: processes that keep variables between runs."""

    def __init__(self, place: Place) -> None:
        self._place = place

    async def list(self) -> list[ContextInfo]:
        """Return all contexts."""
        found = await self._place.api.pages(await self._place.path("/contexts"), "contexts")
        return [parsed(ContextInfo, each) for each in found]

    async def restart(self, context: str) -> None:
        """End a context's process; its variables are gone, and its next use starts a new one."""
        await self._place.api.call("DELETE", await self._place.path(f"/contexts/{quote(context, safe='')}"))


class AsyncPackages:
    """The packages of a sandbox. It needs no network: the server fetches them."""

    def __init__(self, place: Place) -> None:
        self._place = place

    async def install(self, *packages: str, language: str = "python") -> list[PackageInfo]:
        """Install packages, and return them with what they need. Raises SandpodError: they can't be installed."""
        body = {"packages": list(packages), "language": language}
        found = await self._place.api.call("POST", await self._place.path("/packages"), body)
        while found["status"] == "installing":
            path = f"/installations/{quote(found['installation'], safe='')}"
            found = await self._place.api.call("GET", path, query={"wait": _WAIT})
        if found["status"] != "success":
            raise refused(found)
        return [parsed(PackageInfo, each) for each in found["packages"]]

    async def list(self, language: str = "python") -> list[PackageInfo]:
        """Return the packages that were added, then those that the image has."""
        path = await self._place.path("/packages")
        return [
            parsed(PackageInfo, each) for each in await self._place.api.pages(path, "packages", {"language": language})
        ]


def _opened(path: Path, mode: str) -> IO[bytes]:
    try:
        file: IO[bytes] = path.open(mode)
    except OSError as error:
        raise _unusable(path, error) from error
    return file


def _unusable(path: Path, error: OSError) -> SandpodError:
    message = f"The file {str(path)!r} can't be used: {error.strerror}."
    return InvalidArgumentError("invalid_argument", message, "Name another one.")
