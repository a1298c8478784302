"""The file operations of the protocol, confined to the workspace.

Everything here may block on the disk, so it runs in a thread, and each call works on open descriptors that were checked
to be inside. It knows nothing of frames.
"""

import json
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from sandpod_runner.files.workspace import Workspace, reopen
from sandpod_runner.protocol.errors import Refusal
from sandpod_runner.protocol.fields import flag, whole
from sandpod_runner.protocol.messages import FILE_PART
from sandpod_runner.protocol.paths import spell

DEFAULT_ENTRIES: Final = 1000
MAX_ENTRIES: Final = 10_000
PARTIAL: Final = ".sandpod-part-"
"""How names of files begin that are still being written; listings leave them out."""
_LISTING_BYTES: Final = 200 * 1024
"""A listing is one header: it ends, marked as cut, before it is too large for one."""

Reply = tuple[dict[str, Any], bytes]


@dataclass(slots=True)
class Listing:
    """Entries until one of the limits is met."""

    limit: int
    entries: list[dict[str, Any]]
    room: int = _LISTING_BYTES
    truncated: bool = False

    def add(self, entry: dict[str, Any]) -> bool:
        """Take an entry and tell whether there is room for another."""
        self.room -= len(json.dumps(entry)) + 2
        if len(self.entries) >= self.limit or self.room < 0:
            self.truncated = True
            return False
        self.entries.append(entry)
        return True


class Files:
    """What can be done with the workspace's files, writing aside."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._operations: dict[str, Callable[[dict[str, Any]], Reply]] = {
            "read": self._read,
            "list": self._list,
            "stat": self._stat,
            "delete": self._delete,
            "mkdir": self._mkdir,
            "move": self._move,
        }

    def operation(self, name: Any) -> Callable[[dict[str, Any]], Reply]:
        """Return the operation of that name: called with a frame's fields, it returns the reply's fields and payload.

        Raises:
            Refusal: invalid_argument.
        """
        found = self._operations.get(name) if isinstance(name, str) else None
        if found is None:
            raise Refusal("invalid_argument", f"The operations are write, archive, {', '.join(self._operations)}.")
        return found

    def _read(self, fields: dict[str, Any]) -> Reply:
        offset = whole(fields, "offset", 0, 2**62)
        limit = whole(fields, "limit", FILE_PART, FILE_PART)
        fd = self._workspace.open(fields.get("path"))
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise Refusal("invalid_path", "The path is not a regular file.")
            readable = reopen(fd, os.O_RDONLY | os.O_NONBLOCK)
        finally:
            os.close(fd)
        try:
            info = os.fstat(readable)
            data = b""
            while len(data) < limit and (piece := os.pread(readable, limit - len(data), offset + len(data))):
                data += piece
        finally:
            os.close(readable)
        return {"size": info.st_size, "mtime": info.st_mtime}, data

    def _list(self, fields: dict[str, Any]) -> Reply:
        recursive = flag(fields, "recursive")
        listing = Listing(whole(fields, "limit", DEFAULT_ENTRIES, MAX_ENTRIES), [])
        path = self._workspace.relative(fields.get("path", "."))
        fd = self._workspace.open_folder(path)
        try:
            folder = reopen(fd, os.O_RDONLY | os.O_DIRECTORY)
        finally:
            os.close(fd)
        hidden = self._workspace.hidden_in(folder)
        for entry in _walk(folder, "" if path == "." else f"{path}/", recursive=recursive, hidden=hidden):
            if not listing.add(entry):
                break
        return {"entries": listing.entries, "truncated": listing.truncated}, b""

    def _stat(self, fields: dict[str, Any]) -> Reply:
        path = self._workspace.relative(fields.get("path"))
        if path == ".":
            return _entry(".", os.stat(self._workspace.root)), b""
        place = self._workspace.place(path)
        try:
            return _entry(place.path, os.stat(place.name, dir_fd=place.folder, follow_symlinks=False)), b""
        finally:
            os.close(place.folder)

    def _delete(self, fields: dict[str, Any]) -> Reply:
        recursive = flag(fields, "recursive")
        place = self._workspace.place(fields.get("path"))
        try:
            info = os.stat(place.name, dir_fd=place.folder, follow_symlinks=False)
            if not stat.S_ISDIR(info.st_mode):
                os.unlink(place.name, dir_fd=place.folder)
            elif recursive:
                _remove_tree(place.name, place.folder)
            else:
                os.rmdir(place.name, dir_fd=place.folder)
        finally:
            os.close(place.folder)
        return {}, b""

    def _mkdir(self, fields: dict[str, Any]) -> Reply:
        if self._workspace.relative(fields.get("path")) == ".":
            return {}, b""
        place = self._workspace.place(fields.get("path"), create=True)
        try:
            os.mkdir(place.name, dir_fd=place.folder)
        except FileExistsError:
            info = os.stat(place.name, dir_fd=place.folder, follow_symlinks=False)
            if not stat.S_ISDIR(info.st_mode):
                raise
        finally:
            os.close(place.folder)
        return {}, b""

    def _move(self, fields: dict[str, Any]) -> Reply:
        overwrite = flag(fields, "overwrite")
        source = self._workspace.place(fields.get("path"))
        try:
            target = self._workspace.place(fields.get("destination"))
            try:
                if not overwrite and _there(target.name, target.folder):
                    raise Refusal("file_exists", "There is a file or folder of that name already.")
                os.rename(source.name, target.name, src_dir_fd=source.folder, dst_dir_fd=target.folder)
            finally:
                os.close(target.folder)
        finally:
            os.close(source.folder)
        return {}, b""


def _walk(folder: int, prefix: str, *, recursive: bool, hidden: str | None) -> Iterator[dict[str, Any]]:
    """Yield the entries of an open folder, which is closed here, in order of their names. Links are not followed.

    `hidden` is a name in that folder which is left out.
    """
    todo = [(folder, prefix)]
    try:
        while todo:
            fd, where = todo.pop()
            deeper = []
            try:
                with os.scandir(fd) as found:
                    entries = sorted(found, key=lambda entry: entry.name)
                for entry in entries:
                    if entry.name.startswith(PARTIAL) or (where == prefix and entry.name == hidden):
                        continue
                    try:
                        info = entry.stat(follow_symlinks=False)
                    except FileNotFoundError:
                        continue  # removed by a program meanwhile
                    yield _entry(f"{where}{entry.name}", info)
                    if recursive and stat.S_ISDIR(info.st_mode):
                        deeper.append(entry.name)
                todo += _open_all(fd, where, deeper)
            finally:
                os.close(fd)
    finally:
        for fd, _ in todo:
            os.close(fd)


def _open_all(parent: int, where: str, names: list[str]) -> list[tuple[int, str]]:
    opened = []
    for name in reversed(names):
        try:
            fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        except OSError:
            continue  # removed meanwhile, or not readable: it was listed, and that is all there is to say of it
        opened.append((fd, f"{where}{name}/"))
    return opened


def _entry(path: str, info: os.stat_result) -> dict[str, Any]:
    kinds = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "symlink"}
    kind = kinds.get(stat.S_IFMT(info.st_mode), "other")
    return {"path": spell(path), "kind": kind, "size": info.st_size, "mtime": info.st_mtime}


def _there(name: str, folder: int) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _remove_tree(name: str, parent: int) -> None:
    try:
        for _, folders, names, fd in os.fwalk(name, topdown=False, follow_symlinks=False, dir_fd=parent):
            for each in names:
                os.unlink(each, dir_fd=fd)
            for each in folders:
                _remove_folder(each, fd)
    except RecursionError as error:
        raise Refusal("invalid_path", "The folder is too deep: delete it with a shell command.") from error
    os.rmdir(name, dir_fd=parent)


def _remove_folder(name: str, parent: int) -> None:
    # A link to a folder is listed among the folders and is removed as what it is.
    if stat.S_ISLNK(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
        os.unlink(name, dir_fd=parent)
    else:
        os.rmdir(name, dir_fd=parent)
