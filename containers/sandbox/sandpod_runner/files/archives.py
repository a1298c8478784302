"""The whole workspace as one tar.gz, made part by part on request.

Nothing is kept but the part in progress. Links are stored as links, and special files are left out; a file that changes
meanwhile is stored with the size that it had when it was opened.
"""

import contextlib
import os
import stat
import tarfile
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from sandpod_runner.files.operations import Reply
from sandpod_runner.files.workspace import Entry, Walk, Workspace
from sandpod_runner.ipc.descriptors import closing
from sandpod_runner.protocol.errors import Refusal
from sandpod_runner.protocol.fields import require, whole
from sandpod_runner.protocol.messages import FILE_PART

MAX_AT_ONCE: Final = 4  # archives of one stream: each holds a part of up to 1 MiB and an open folder for each level
GIVEN_UP: Final = 60.0  # seconds without a request after which an archive makes room for another one
_PIECE: Final = 64 * 1024
_LEVEL: Final = 1  # the fastest compression: what it gains over the next ones in time it hardly loses in size
_GZIP: Final = 31
_BLOCK: Final = tarfile.BLOCKSIZE


@dataclass(slots=True)
class _Archive:
    parts: Iterator[bytes]
    number: int = 0
    asked: float = 0.0


class Archives:
    """The unfinished archives of one stream, by the name that the request gives them."""

    def __init__(self, workspace: Workspace, clock: Callable[[], float] = time.monotonic) -> None:
        self._workspace = workspace
        self._clock = clock
        self._going: dict[str, _Archive] = {}

    def part(self, fields: dict[str, Any]) -> Reply:
        """Return a part of an archive, from number 0 on; `last` means that it was complete before.

        Raises Refusal: invalid_argument; session_busy: too many are being made; not_found: it was given up, or it is
        not the next part.
        """
        name: Any = fields.get("archive")
        number = whole(fields, "part")
        require(isinstance(name, str) and name, "An archive has a name of its own.")
        archive = self._going.pop(name, None)
        if archive is None and number == 0:
            self._make_room()
            archive = _Archive(_parts(self._workspace.root))
        if archive is None or archive.number != number:
            raise Refusal("not_found", "That archive was given up: begin a new one.")
        try:
            data = next(archive.parts)
        except StopIteration:
            return {"last": True}, b""
        archive.number += 1
        archive.asked = self._clock()
        self._going[name] = archive
        return {"last": False}, data

    def _make_room(self) -> None:
        if len(self._going) < MAX_AT_ONCE:
            return
        oldest = next(iter(self._going))  # each moves to the end when a part is asked for
        if self._clock() - self._going[oldest].asked < GIVEN_UP:
            message = f"{MAX_AT_ONCE} archives are being made, which is the maximum: try again later."
            raise Refusal("session_busy", message)
        del self._going[oldest]


def _parts(root: str) -> Iterator[bytes]:
    packer, part = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP), bytearray()
    for piece in _tar(root):
        part += packer.compress(piece)
        if len(part) >= FILE_PART - 2 * _PIECE:
            yield bytes(part)
            part.clear()
    yield bytes(part + packer.flush())


def _tar(root: str) -> Iterator[bytes]:
    for entry in Walk(root, public=True, ordered=True):
        with contextlib.suppress(OSError):  # removed meanwhile, or not readable
            yield from _entry(entry)
    yield bytes(2 * _BLOCK)


def _entry(entry: Entry) -> Iterator[bytes]:
    mode = entry.info.st_mode
    if stat.S_ISREG(mode):
        yield from _file(entry)
    elif stat.S_ISDIR(mode):
        yield _header(entry.path, entry.info, tarfile.DIRTYPE)
    elif stat.S_ISLNK(mode):
        yield _header(entry.path, entry.info, tarfile.SYMTYPE, target=os.readlink(entry.name, dir_fd=entry.folder))


def _file(entry: Entry) -> Iterator[bytes]:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with closing(os.open(entry.name, flags, dir_fd=entry.folder)) as fd:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode):
            return
        yield _header(entry.path, info, tarfile.REGTYPE, size=info.st_size)
        left = info.st_size
        while left:
            data = os.read(fd, min(_PIECE, left)) or bytes(min(_PIECE, left))
            yield data
            left -= len(data)
        yield bytes(-info.st_size % _BLOCK)


def _header(path: str, info: os.stat_result, kind: bytes, *, size: int = 0, target: str = "") -> bytes:
    entry = tarfile.TarInfo(path)
    entry.size, entry.mtime, entry.mode = size, info.st_mtime, info.st_mode & 0o777
    entry.type, entry.linkname = kind, target
    return entry.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
