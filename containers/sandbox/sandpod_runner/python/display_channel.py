"""The program's end of the pipe on which it sends what it shows, and that it is over."""

from __future__ import annotations

import _thread
import contextlib
import os
from collections.abc import Mapping
from typing import Final

from sandpod_runner.ipc.display_records import DONE, MAX_KEPT, RECORD, RecordKind
from sandpod_runner.protocol import messages
from sandpod_runner.protocol.messages import MIME_TYPES
from sandpod_runner.python import pictures

PICTURES: Final = ("image/png", "image/jpeg")


class Channel:
    """The writing end, in the process that it belongs to: processes forked from it show nothing.

    Pictures that are too large or too many to be sent as they are go into `folder`.
    """

    def __init__(self, fd: int, folder: str) -> None:
        self._fd = fd
        self._folder = folder
        self._owner = os.getpid()
        self._same = _identity(fd)
        self._lock = _thread.allocate_lock()
        self._shown = self._pictures = self._kept = 0
        self._room = messages.PICTURE_BYTES

    @property
    def takes_pictures(self) -> bool:
        """Whether a picture that is shown from now on is sent or kept, and not only counted."""
        return self._fd >= 0 and self._kept < MAX_KEPT and os.getpid() == self._owner

    def show(self, forms: Mapping[str, bytes]) -> None:
        """Send a display in its forms, by type, and count those as dropped that are too large or too many."""
        kind, records = RecordKind.DISPLAY, []
        for each in forms.items():
            fitted = self._fitted(*each)
            if fitted is None:
                continue
            if self._shown >= messages.MAX_DISPLAYS or len(fitted[1]) > messages.MAX_DISPLAY:
                self.drop()
                continue
            self._shown += 1
            records.append(_record(kind, *fitted))
            kind = RecordKind.FORM
        if records:
            self._write(b"".join(records))

    def result(self, mime: str, data: bytes) -> None:
        """Send a form of a last value, or count it as dropped where it is too large."""
        fitted = self._fitted(mime, data)
        if fitted is not None and len(fitted[1]) > messages.MAX_RESULT:
            self.drop()
        elif fitted is not None:
            self._write(_record(RecordKind.RESULT, *fitted))

    def _fitted(self, mime: str, data: bytes) -> tuple[str, bytes] | None:
        """Return a picture as it is to be sent, if it is; one that is sent smaller or not at all is kept whole.

        The first may take half of the room for pictures, and each other one its share of what is left.
        """
        if mime not in PICTURES:
            return mime, data
        if not self.takes_pictures:
            self.drop()
            return None
        is_room = self._pictures < messages.MAX_PICTURES and self._shown < messages.MAX_DISPLAYS
        share = self._room // (messages.MAX_PICTURES - self._pictures if self._pictures else 2) if is_room else 0
        fitted = pictures.fit(mime, data, share) if is_room else None
        if fitted is not None:
            self._pictures += 1
            self._room -= len(fitted[1])
        if fitted != (mime, data):
            if self.keep(mime, data):
                self._write(_record(RecordKind.KEPT, mime, b""))
            elif fitted is None:
                self.drop()
        return fitted

    def keep(self, mime: str, data: bytes) -> str:
        """Write a picture or a page into the workspace, and return its path; "" where that can't be done."""
        path = pictures.keep(self._folder, mime, data) if self.takes_pictures else ""
        self._kept += bool(path)
        return path

    def drop(self) -> None:
        """Count one that is not sent."""
        self._write(_record(RecordKind.DROPPED, MIME_TYPES[0], b""))

    def done(self, code: int, cpu: float, max_rss: int) -> None:
        """Report that the program is over, and send nothing more. `cpu` is in seconds, `max_rss` in bytes."""
        self._write(_record(RecordKind.DONE, MIME_TYPES[0], DONE.pack(code, cpu, max_rss)))
        self.close()

    def close(self) -> None:
        """Send nothing more."""
        fd, self._fd = self._fd, -1
        if fd >= 0 and _identity(fd) == self._same:
            os.close(fd)

    def _write(self, records: bytes) -> None:
        with self._lock:
            # A program may close descriptors that it does not know, and open others in their place.
            if self._fd < 0 or os.getpid() != self._owner or _identity(self._fd) != self._same:
                return
            left = memoryview(records)
            try:
                while left:
                    left = left[os.write(self._fd, left) :]
            except OSError:
                pass  # the runner has stopped listening
            finally:
                if left:  # half a record: what came after it could not be understood
                    self.close()


def _record(kind: RecordKind, mime: str, data: bytes) -> bytes:
    return RECORD.pack(kind, MIME_TYPES.index(mime), len(data)) + data


def _identity(fd: int) -> tuple[int, int] | None:
    with contextlib.suppress(OSError):
        info = os.fstat(fd)
        return info.st_dev, info.st_ino
    return None


_current = [Channel(-1, "")]  # on which nothing is sent


def use(fd: int, folder: str) -> Channel:
    """Make this the channel of this process, and return it."""
    _current[:] = [Channel(fd, folder)]
    return _current[0]


def current() -> Channel:
    """Return the channel of this process."""
    return _current[0]
