"""E2B's file service, but for contents: looking at files, folders, moving and removing."""

import posixpath
from typing import Any, Final

from starlette.requests import Request

from sandpod_gateway.api.results import ErrorCode, FileEntry
from sandpod_gateway.e2b.calls import SANDBOX, Calls
from sandpod_gateway.e2b.paths import HOME, inside, outside
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.files.service import MAX_ENTRIES

USER: Final = "user"
_TYPES: Final = {"file": "FILE_TYPE_FILE", "directory": "FILE_TYPE_DIRECTORY", "symlink": "FILE_TYPE_SYMLINK"}


class Filesystem:
    """The methods, by their names."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    async def stat(self, request: Request, message: dict[str, Any]) -> dict[str, Any]:
        """Look at a file or folder."""
        return {"entry": await self._stat(request, path_in(message, "path"))}

    async def make_dir(self, request: Request, message: dict[str, Any]) -> dict[str, Any]:
        """Make a folder and those on its way."""
        path = path_in(message, "path")
        if await self._exists(request, path):
            step = "Use it, or another path."
            raise SandpodError(ErrorCode.FILE_EXISTS, "There is something at this path already.", next_step=step)
        await self._calls.tool(request, "make_directory", path=path, sandbox=request.scope[SANDBOX])
        return {"entry": await self._stat(request, path)}

    async def move(self, request: Request, message: dict[str, Any]) -> dict[str, Any]:
        """Move a file or folder; a file in its way is replaced."""
        paths = {name: path_in(message, name) for name in ("source", "destination")}
        await self._calls.tool(request, "move_file", **paths, overwrite=True, sandbox=request.scope[SANDBOX])
        return {"entry": await self._stat(request, paths["destination"])}

    async def remove(self, request: Request, message: dict[str, Any]) -> dict[str, Any]:
        """Remove a file, or a folder with all that is in it; what is not there is as good as removed."""
        try:
            await self._calls.tool(
                request, "delete_file", path=path_in(message, "path"), recursive=True, sandbox=request.scope[SANDBOX]
            )
        except SandpodError as error:
            if error.code != ErrorCode.NOT_FOUND:
                raise
        return {}

    async def list_dir(self, request: Request, message: dict[str, Any]) -> dict[str, Any]:
        """List a folder, and as many levels below it as are asked for."""
        path, depth = path_in(message, "path"), message.get("depth") or 1
        if not isinstance(depth, int) or depth < 1:
            raise SandpodError(ErrorCode.INVALID_ARGUMENT, "`depth` is 1 or more.", next_step="Correct it.")
        listed, _ = await self._calls.tool(
            request, "list_files", path=path, recursive=depth > 1, limit=MAX_ENTRIES, sandbox=request.scope[SANDBOX]
        )
        if listed["truncated"]:
            message_, step = f"There are over {MAX_ENTRIES} files in this folder.", "List a folder below it."
            raise SandpodError(ErrorCode.UPLOAD_TOO_LARGE, message_, next_step=step)
        entries = [FileEntry.model_validate(each) for each in listed["entries"]]
        return {"entries": [entry_of(each) for each in entries if _level(each.path, path) <= depth]}

    async def _stat(self, request: Request, path: str) -> dict[str, Any]:
        if path == ".":  # which has no entry of its own
            await self._calls.tool(request, "list_files", path=path, limit=1, sandbox=request.scope[SANDBOX])
            return entry_of(FileEntry(path=path, kind="directory"))
        found, _ = await self._calls.tool(request, "stat_file", path=path, sandbox=request.scope[SANDBOX])
        return entry_of(FileEntry.model_validate({name: each for name, each in found.items() if name != "sandbox"}))

    async def _exists(self, request: Request, path: str) -> bool:
        try:
            await self._stat(request, path)
        except SandpodError as error:
            if error.code != ErrorCode.NOT_FOUND:
                raise
            return False
        return True


def entry_of(entry: FileEntry) -> dict[str, Any]:
    """Return a file or folder as E2B has it. Whose it is and what its permissions are is not known."""
    path = outside(entry.path)
    known: dict[str, Any] = {
        "name": posixpath.basename(path) if path != HOME else USER,
        "type": _TYPES.get(entry.kind, "FILE_TYPE_UNSPECIFIED"),
        "path": path,
        "size": str(entry.size),
        "owner": USER,
        "group": USER,
    }
    if entry.modified_at is not None:
        known["modifiedTime"] = entry.modified_at
    return known


def path_in(message: dict[str, Any], name: str) -> str:
    """Return a path of a message as the tools take it. Raises SandpodError: invalid_path."""
    given = message.get(name)
    if not isinstance(given, str):
        raise SandpodError(ErrorCode.INVALID_PATH, f"`{name}` is missing, or no text.", next_step="Send a path.")
    return inside(given)


def _level(path: str, folder: str) -> int:
    return len(posixpath.relpath(path, folder).split("/"))
