"""The whole workspace as one tar.gz or zip, made part by part on request.

Nothing is kept but the part in progress. Links are stored as links, and special files are left out; a file that changes
meanwhile is stored with the size that it had when it was opened.
"""

import contextlib
import errno
import os
import stat
import tarfile
import time
import zipfile
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
MAX_MEMBERS: Final = 65_535  # of a zip file, whose list of them is kept to its end
GIVEN_UP: Final = 60.0  # seconds without a request after which an archive makes room for another one
_PIECE: Final = 64 * 1024
_LEVEL: Final = 1  # the fastest compression: what it gains over the next ones in time it hardly loses in size
_GZIP: Final = 31


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

        Raises Refusal: invalid_argument; session_busy; not_found: it was given up, or this is not the next part.
        """
        name: Any = fields.get("archive")
        number = whole(fields, "part")
        require(isinstance(name, str) and name, "archive must be a name, of one character or more.")
        archive = self._going.pop(name, None)
        if archive is None and number == 0:
            self._make_room()
            pieces = (_zip if fields.get("form") == "zip" else _tar_gz)(self._workspace.root)
            archive = _Archive(_parts(pieces))
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


def _parts(pieces: Iterator[bytes]) -> Iterator[bytes]:
    part = bytearray()
    for piece in pieces:
        part += piece
        if len(part) >= FILE_PART - 2 * _PIECE:
            yield bytes(part)
            part.clear()
    yield bytes(part)


class _Written(bytearray):
    """A file to write to, of which what was written is taken."""

    def write(self, data: bytes) -> int:
        self.extend(data)
        return len(data)

    def flush(self) -> None:
        pass

    def take(self) -> bytes:
        data = bytes(self)
        self.clear()
        return data


def _zip(root: str) -> Iterator[bytes]:
    written: Any = _Written()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED, compresslevel=_LEVEL) as archive:
        for entry in Walk(root, public=True, ordered=True):
            with contextlib.suppress(OSError):  # removed meanwhile, or not readable
                for _ in _add(archive, entry):
                    yield written.take()
            if len(archive.filelist) > MAX_MEMBERS:
                raise Refusal("invalid_argument", f"A zip file holds at most {MAX_MEMBERS} files: take a tar.gz.")
    yield written.take()


def _add(archive: zipfile.ZipFile, entry: Entry) -> Iterator[None]:
    mode = entry.info.st_mode
    # A name that is not UTF-8 can't be in a zip file.
    member = zipfile.ZipInfo(entry.path.encode(errors="surrogateescape").decode(errors="replace"))
    # The format has no times before 1980 or after 2107.
    member.date_time = time.gmtime(min(max(entry.info.st_mtime, 315532800), 4354819199))[:6]
    member.external_attr, member.compress_type = mode << 16, zipfile.ZIP_DEFLATED
    if stat.S_ISDIR(mode):
        member.filename += "/"
        archive.writestr(member, b"")
    elif stat.S_ISLNK(mode):
        archive.writestr(member, os.fsencode(os.readlink(entry.name, dir_fd=entry.folder)))
    elif stat.S_ISREG(mode):
        with _opened(entry) as (_, content), archive.open(member, "w", force_zip64=True) as file:
            for data in content:
                file.write(data)
                yield
    yield


def _tar_gz(root: str) -> Iterator[bytes]:
    packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP)
    for entry in Walk(root, public=True, ordered=True):
        with contextlib.suppress(OSError):  # as above
            for piece in _blocks(entry):
                yield packer.compress(piece)
    yield packer.compress(bytes(2 * tarfile.BLOCKSIZE)) + packer.flush()


def _blocks(entry: Entry) -> Iterator[bytes]:
    mode, member = entry.info.st_mode, tarfile.TarInfo(entry.path)
    member.mtime, member.mode = entry.info.st_mtime, mode & 0o777
    if stat.S_ISREG(mode):
        with _opened(entry) as (member.size, content):
            yield member.tobuf()
            yield from content
            yield bytes(-member.size % tarfile.BLOCKSIZE)
    elif stat.S_ISDIR(mode):
        member.type = tarfile.DIRTYPE
        yield member.tobuf()
    elif stat.S_ISLNK(mode):
        member.type, member.linkname = tarfile.SYMTYPE, os.readlink(entry.name, dir_fd=entry.folder)
        yield member.tobuf()


@contextlib.contextmanager
def _opened(entry: Entry) -> Iterator[tuple[int, Iterator[bytes]]]:
    """Open a regular file, for its size and as many bytes."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with closing(os.open(entry.name, flags, dir_fd=entry.folder)) as fd:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode):
            raise OSError(errno.EINVAL, "It is no regular file any more.")
        yield info.st_size, _content(fd, info.st_size)


def _content(fd: int, left: int) -> Iterator[bytes]:
    """Yield as much as was announced, whatever becomes of the file meanwhile: zeros where it has less by then."""
    while left:
        data = os.read(fd, min(_PIECE, left)) or bytes(min(_PIECE, left))
        yield data
        left -= len(data)
