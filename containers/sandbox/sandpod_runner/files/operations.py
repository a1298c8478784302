"""The file operations of the protocol, confined to the workspace. They know nothing of frames.

They may block on the disk, so they run in a thread; they work on open descriptors that were checked to be inside. Files
that come in parts appear whole: they are written under another name next to their place, and renamed at the end.
"""

import contextlib
import errno
import json
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from sandpod_runner.files.disk import DiskWatch
from sandpod_runner.files.workspace import PARTIAL, Entry, Place, Walk, Workspace, reopen
from sandpod_runner.ipc.descriptors import closing, write_all
from sandpod_runner.protocol.errors import Refusal
from sandpod_runner.protocol.fields import flag, require, whole
from sandpod_runner.protocol.messages import FILE_PART
from sandpod_runner.protocol.paths import spell

DEFAULT_ENTRIES: Final = 1000
MAX_ENTRIES: Final = 10_000
MAX_UPLOADS: Final = 16  # of one stream at a time
_MAX_FAILED: Final = 1000
_LISTING_BYTES: Final = 200 * 1024  # A listing is one header: it ends, marked as cut, before it is too large for one

Reply = tuple[dict[str, Any], bytes]  # fields and payload
Operation = Callable[[Workspace, dict[str, Any]], Reply]  # takes the fields of a frame


@dataclass(slots=True)
class Listing:
    """Entries until one of the limits is met."""

    limit: int
    entries: list[dict[str, Any]]
    room: int = _LISTING_BYTES
    truncated: bool = False

    def add(self, entry: dict[str, Any]) -> bool:
        """Take an entry and return whether there is room for another."""
        self.room -= len(json.dumps(entry)) + 2
        if len(self.entries) >= self.limit or self.room < 0:
            self.truncated = True
            return False
        self.entries.append(entry)
        return True


def operation(name: Any) -> Operation:
    """Return what does one of the operations, writing aside. Raises Refusal: invalid_argument: it is unknown."""
    found = _OPERATIONS.get(name) if isinstance(name, str) else None
    if found is None:
        raise Refusal("invalid_argument", f"The operations are write, archive, {', '.join(_OPERATIONS)}.")
    return found


def _read(workspace: Workspace, fields: dict[str, Any]) -> Reply:
    offset = whole(fields, "offset", 0, 2**62)
    limit = whole(fields, "limit", FILE_PART, FILE_PART)
    with closing(workspace.open(fields.get("path"))) as fd:
        info = os.fstat(fd)
        require(stat.S_ISREG(info.st_mode), "The path is not a regular file.", "invalid_path")
        data = b""
        with closing(reopen(fd, os.O_RDONLY | os.O_NONBLOCK)) as readable:
            while len(data) < limit and (piece := os.pread(readable, limit - len(data), offset + len(data))):
                data += piece
    return {"size": info.st_size, "mtime": info.st_mtime}, data


def _list(workspace: Workspace, fields: dict[str, Any]) -> Reply:
    recursive = flag(fields, "recursive")
    listing = Listing(whole(fields, "limit", DEFAULT_ENTRIES, MAX_ENTRIES), [])
    path = workspace.relative(fields.get("path", "."))
    with closing(workspace.open_folder(path)) as fd:
        top = workspace.location(fd)  # the path may lead through links
        os.close(reopen(fd, os.O_RDONLY | os.O_DIRECTORY))  # raises why, where it can't be listed
    walk = Walk(workspace.root, top, public=True, recursive=recursive, ordered=True)
    prefix = "" if path == "." else path
    for entry in walk:
        shown_path = f"{prefix}{entry.path[len(top) :]}" if top else f"{prefix}/{entry.path}"
        mark = {} if _is_readable(entry) else {"unreadable": True}
        if not listing.add(_entry(shown_path.lstrip("/"), entry.info) | mark):
            break
    # A folder that its own user can't look into is marked in the list itself. Anything else is missing.
    missing = walk.missed is not None and not isinstance(walk.missed, PermissionError)
    return {"entries": listing.entries, "truncated": listing.truncated or missing}, b""


def _stat(workspace: Workspace, fields: dict[str, Any]) -> Reply:
    path = workspace.relative(fields.get("path"))
    if path == ".":
        return _entry(".", os.stat(workspace.root)), b""
    with workspace.place(path) as place:
        return _entry(path, place.stat()), b""


def _delete(workspace: Workspace, fields: dict[str, Any]) -> Reply:
    recursive = flag(fields, "recursive")
    with workspace.place(fields.get("path")) as place:
        if not stat.S_ISDIR(place.stat().st_mode):
            os.unlink(place.name, dir_fd=place.folder)
        elif recursive:
            _remove_tree(workspace, workspace.location(place.folder, place.name))
        else:
            os.rmdir(place.name, dir_fd=place.folder)
    return {}, b""


def _mkdir(workspace: Workspace, fields: dict[str, Any]) -> Reply:
    if workspace.relative(fields.get("path")) == ".":
        return {}, b""
    with workspace.place(fields.get("path"), create=True) as place:
        try:
            os.mkdir(place.name, dir_fd=place.folder)
        except FileExistsError:
            if not stat.S_ISDIR(place.stat().st_mode):
                raise
    return {}, b""


def _move(workspace: Workspace, fields: dict[str, Any]) -> Reply:
    overwrite = flag(fields, "overwrite")
    place = workspace.place
    with place(fields.get("path")) as source, place(fields.get("destination")) as target:
        require(overwrite or not target.exists(), "There is a file or folder of that name already.", "file_exists")
        os.rename(source.name, target.name, src_dir_fd=source.folder, dst_dir_fd=target.folder)
    return {}, b""


_OPERATIONS: Final[dict[str, Operation]] = {
    "read": _read,
    "list": _list,
    "stat": _stat,
    "delete": _delete,
    "mkdir": _mkdir,
    "move": _move,
}


def _entry(path: str, info: os.stat_result) -> dict[str, Any]:
    kinds = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "symlink"}
    kind = kinds.get(stat.S_IFMT(info.st_mode), "other")
    return {"path": spell(path), "kind": kind, "size": info.st_size, "mtime": info.st_mtime}


def _is_readable(entry: Entry) -> bool:
    if stat.S_ISLNK(entry.info.st_mode):
        return True
    return os.access(entry.name, os.R_OK | (os.X_OK if entry.is_folder else 0), dir_fd=entry.folder)


def _remove_tree(workspace: Workspace, top: str) -> None:
    """Remove a folder with all that is in it, also where its user may not write it, who may change that."""
    folders = [top]
    walk = Walk(workspace.root, top, ordered=True, repair=True)
    for entry in walk:
        if entry.is_folder:
            folders.append(entry.path)
        else:
            os.unlink(entry.name, dir_fd=entry.folder)
    if isinstance(walk.missed, OSError):
        if walk.missed.errno == errno.ENAMETOOLONG:
            raise Refusal("invalid_path", "The folder is too deep: delete it with a shell command.")
        raise walk.missed
    for path in reversed(folders):
        with workspace.place(path) as place:
            os.rmdir(place.name, dir_fd=place.folder)


@dataclass(slots=True)
class _Upload:
    place: Place
    partial: str
    fd: int
    overwrite: bool
    digest: Any
    stack: contextlib.ExitStack  # closes the file and the folder
    size: int = 0

    def finish(self) -> Reply:
        folder, name = self.place.folder, self.place.name
        if self.overwrite:
            os.rename(self.partial, name, src_dir_fd=folder, dst_dir_fd=folder)
        else:
            # Unlike a rename, a new link never takes the place of a file that came in the meantime.
            os.link(self.partial, name, src_dir_fd=folder, dst_dir_fd=folder)
        return {"size": self.size, "sha256": self.digest.hexdigest()}, b""


class Uploads:
    """The uploads of one stream; what is unfinished when that ends is removed."""

    def __init__(self, workspace: Workspace, disk: DiskWatch | None) -> None:
        self._workspace = workspace
        self._disk = disk
        self._going: dict[int, _Upload] = {}
        self._failed: dict[int, None] = {}

    def part(self, number: int, fields: dict[str, Any], data: bytes) -> Reply | None:
        """Take one part of an upload, and return the reply to the last one. Raises Refusal, OSError."""
        last, abort = flag(fields, "last"), flag(fields, "abort")
        try:
            if abort:
                return {}, b""
            if number in self._failed:
                return None  # at an earlier part, which was refused
            upload = self._going.get(number) or self._begin(number, fields)
            if self._disk is not None:
                self._disk.take(len(data))
            write_all(upload.fd, data)
            upload.size += len(data)
            upload.digest.update(data)
            return upload.finish() if last else None
        except BaseException:
            self._fail(number)
            raise
        finally:
            if last or abort:
                self._drop(number)
                self._failed.pop(number, None)

    def close(self) -> None:
        """Remove what is unfinished."""
        for number in list(self._going):
            self._drop(number)

    def _begin(self, number: int, fields: dict[str, Any]) -> _Upload:
        import hashlib  # noqa: PLC0415 - for uploads alone: it brings all of OpenSSL

        while len(self._going) >= MAX_UPLOADS:
            # Somebody gave up on the oldest. Should its parts still come, they must not begin another file.
            self._fail(next(iter(self._going)))
        overwrite = flag(fields, "overwrite")
        with contextlib.ExitStack() as stack:
            place = stack.enter_context(self._workspace.place(fields.get("path"), create=True))
            if place.exists():
                require(not stat.S_ISDIR(place.stat().st_mode), "There is a folder of that name.", "invalid_path")
                require(overwrite, "There is a file of that name already.", "file_exists")
            if self._disk is not None:
                self._disk.look()
            partial = f"{PARTIAL}{os.urandom(8).hex()}"
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            fd = os.open(partial, flags, 0o644, dir_fd=place.folder)
            stack.callback(os.close, fd)
            upload = _Upload(place, partial, fd, overwrite, hashlib.sha256(), stack.pop_all())
        self._going[number] = upload
        return upload

    def _fail(self, number: int) -> None:
        self._drop(number)
        self._failed[number] = None
        if len(self._failed) > _MAX_FAILED:
            del self._failed[next(iter(self._failed))]

    def _drop(self, number: int) -> None:
        upload = self._going.pop(number, None)
        if upload is not None:
            with upload.stack, contextlib.suppress(OSError):  # renamed, or removed by a program
                os.unlink(upload.partial, dir_fd=upload.place.folder)
