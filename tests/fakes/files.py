"""A workspace in memory, for the fake runner: the file operations of `sandpod_runner.protocol.messages`.

It knows files by their path and folders by the files below them (and by `mkdir`); times are always zero.
"""

import hashlib
import io
import posixpath
import tarfile
from dataclasses import dataclass, field
from typing import Any

from sandpod_api.names import WORKSPACE
from sandpod_gateway.api.results import ErrorCode


class FakeFileError(Exception):
    """A refusal, as the runner's `error` frame tells it."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass
class FakeFiles:
    """The files of one sandbox, by path relative to the workspace."""

    contents: dict[str, bytes] = field(default_factory=dict)
    folders: set[str] = field(default_factory=set)
    archives: set[str] = field(default_factory=set)

    def request(self, header: dict[str, Any], payload: bytes) -> tuple[dict[str, Any], bytes]:
        """Carry out one operation and return the reply's fields and payload.

        Args:
            header: The request, a written file's parts joined in one.
            payload: The content to write.

        Raises:
            FakeFileError: It is refused.
        """
        if header.get("op") == "archive":
            return self._archive(str(header.get("archive")), int(header.get("part", 0)))
        path = _inside(header.get("path"))
        match header.get("op"):
            case "read":
                content = self._existing(path)
                start = int(header.get("offset", 0))
                return {"size": len(content), "mtime": 0}, content[start : start + int(header.get("limit", 2**20))]
            case "write":
                self._write(path, payload, overwrite=bool(header.get("overwrite")))
                return {"size": len(payload), "sha256": hashlib.sha256(payload).hexdigest()}, b""
            case "list":
                return self._list(path, recursive=bool(header.get("recursive")), limit=int(header.get("limit", 1000)))
            case "stat":
                return self._entry(path), b""
            case "delete":
                self._delete(path, recursive=bool(header.get("recursive")))
            case "mkdir":
                self.folders.add(path)
            case "move":
                content = self._existing(path)
                target = _inside(header.get("destination"))
                self._write(target, content, overwrite=bool(header.get("overwrite")))
                del self.contents[path]
            case _:
                raise FakeFileError(ErrorCode.INVALID_ARGUMENT, "There is no such operation.")
        return {}, b""

    def _archive(self, name: str, part: int) -> tuple[dict[str, Any], bytes]:
        if (name in self.archives) != (part == 1):
            raise FakeFileError(ErrorCode.NOT_FOUND, "That archive was given up: begin a new one.")
        if part == 1:
            return {"last": True}, b""
        self.archives.add(name)
        made = io.BytesIO()
        with tarfile.open(fileobj=made, mode="w:gz") as tar:
            for path, content in self.contents.items():
                entry = tarfile.TarInfo(path)
                entry.size = len(content)
                tar.addfile(entry, io.BytesIO(content))
        return {"last": False}, made.getvalue()

    def _is_folder(self, path: str) -> bool:
        return path in {"", *self.folders} or any(name.startswith(path + "/") for name in self.contents)

    def _existing(self, path: str) -> bytes:
        if path not in self.contents:
            raise FakeFileError(ErrorCode.NOT_FOUND, "There is no such file.")
        return self.contents[path]

    def _write(self, path: str, content: bytes, *, overwrite: bool) -> None:
        if self._is_folder(path):
            raise FakeFileError(ErrorCode.INVALID_PATH, "There is a folder of that name.")
        if path in self.contents and not overwrite:
            raise FakeFileError(ErrorCode.FILE_EXISTS, "There is a file of that name.")
        self.contents[path] = content

    def _entry(self, path: str) -> dict[str, Any]:
        if path in self.contents:
            return {"path": path, "kind": "file", "size": len(self.contents[path]), "mtime": 0}
        if self._is_folder(path):
            return {"path": path, "kind": "directory", "size": 0, "mtime": 0}
        raise FakeFileError(ErrorCode.NOT_FOUND, "There is no such file or folder.")

    def _list(self, path: str, *, recursive: bool, limit: int) -> tuple[dict[str, Any], bytes]:
        if self._entry(path)["kind"] == "file":
            raise FakeFileError(ErrorCode.INVALID_PATH, "That is no folder.")
        start = f"{path}/" if path else ""
        paths = set()
        for name in (*self.contents, *self.folders):
            if name.startswith(start) and name != path:
                parts = name.removeprefix(start).split("/")
                depth = len(parts) if recursive else 1
                paths |= {start + "/".join(parts[: index + 1]) for index in range(depth)}
        entries = [self._entry(name) for name in sorted(paths)]
        return {"entries": entries[:limit], "truncated": len(entries) > limit}, b""

    def _delete(self, path: str, *, recursive: bool) -> None:
        if path in self.contents:
            del self.contents[path]
            return
        self._entry(path)
        below = [name for name in (*self.contents, *self.folders) if name.startswith(f"{path}/")]
        if path == "" or (below and not recursive):
            raise FakeFileError(ErrorCode.INVALID_ARGUMENT, "The folder is not empty.")
        for name in below:
            self.contents.pop(name, None)
        self.folders -= {path, *below}


def _inside(path: object) -> str:
    if not isinstance(path, str) or "\0" in path:
        raise FakeFileError(ErrorCode.INVALID_PATH, "That is no path.")
    relative = posixpath.relpath(posixpath.join(WORKSPACE, path), WORKSPACE)
    if relative.startswith(".."):
        raise FakeFileError(ErrorCode.INVALID_PATH, "The path is outside of the workspace.")
    return "" if relative == "." else relative
