"""Files that come in parts and appear whole: written under another name next to their place, and renamed at the end."""

import contextlib
import os
import stat
from dataclasses import dataclass
from typing import Any, Final

from sandpod_runner.files.disk import DiskWatch
from sandpod_runner.files.operations import Reply
from sandpod_runner.files.workspace import PARTIAL, Place, Workspace
from sandpod_runner.ipc.descriptors import write_all
from sandpod_runner.protocol.fields import flag, require

MAX_AT_ONCE: Final = 16
_MAX_FAILED: Final = 1000
_MODE: Final = 0o644


@dataclass(slots=True)
class _Upload:
    place: Place
    partial: str
    fd: int
    overwrite: bool
    digest: Any
    stack: contextlib.ExitStack  # closes the file and the folder
    size: int = 0

    def add(self, data: bytes) -> None:
        write_all(self.fd, data)
        self.size += len(data)
        self.digest.update(data)

    def finish(self) -> Reply:
        folder, name = self.place.folder, self.place.name
        if self.overwrite:
            os.rename(self.partial, name, src_dir_fd=folder, dst_dir_fd=folder)
        else:
            # Unlike a rename, a new link never takes the place of a file that came in the meantime.
            os.link(self.partial, name, src_dir_fd=folder, dst_dir_fd=folder)
        return {"size": self.size, "sha256": self.digest.hexdigest()}, b""

    def close(self) -> None:
        with contextlib.suppress(OSError):  # renamed, or removed by a program
            os.unlink(self.partial, dir_fd=self.place.folder)
        self.stack.close()


class Uploads:
    """The uploads of one stream; what is unfinished when that ends is removed."""

    def __init__(self, workspace: Workspace, disk: DiskWatch | None) -> None:
        self._workspace = workspace
        self._disk = disk
        self._going: dict[int, _Upload] = {}
        self._failed: dict[int, None] = {}

    def part(self, number: int, fields: dict[str, Any], data: bytes) -> Reply | None:
        """Take one part of the upload with that number and return the reply, which only the last part has.

        Raises Refusal: it can't be written; parts of it that still come are ignored (or OSError).
        """
        last = flag(fields, "last")
        if flag(fields, "abort"):
            self._drop(number)
            self._failed.pop(number, None)
            return {}, b""
        try:
            if number in self._failed:
                return None  # at an earlier part, and that was reported
            if number not in self._going:
                self._begin(number, fields)
            upload = self._going[number]
            if self._disk is not None:
                self._disk.take(len(data))
            upload.add(data)
            return upload.finish() if last else None
        except BaseException:
            self._fail(number)
            raise
        finally:
            if last:
                self._drop(number)
                self._failed.pop(number, None)

    def close(self) -> None:
        """Remove what is unfinished."""
        for number in list(self._going):
            self._drop(number)

    def _begin(self, number: int, fields: dict[str, Any]) -> None:
        import hashlib  # noqa: PLC0415 - for uploads alone: it brings all of OpenSSL

        while len(self._going) >= MAX_AT_ONCE:
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
            fd = os.open(partial, flags, _MODE, dir_fd=place.folder)
            stack.callback(os.close, fd)
            self._going[number] = _Upload(place, partial, fd, overwrite, hashlib.sha256(), stack.pop_all())

    def _fail(self, number: int) -> None:
        self._drop(number)
        self._failed[number] = None
        if len(self._failed) > _MAX_FAILED:
            del self._failed[next(iter(self._failed))]

    def _drop(self, number: int) -> None:
        upload = self._going.pop(number, None)
        if upload is not None:
            upload.close()
