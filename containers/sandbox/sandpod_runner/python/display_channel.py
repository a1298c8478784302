"""The program's end of the pipe on which it sends what it shows, and that it is over.

Pictures are made to fit into an answer, and kept whole, as pages are, in the workspace. Pillow scales them, which
libraries that draw bring with them; without it a large picture is kept and not shown.
"""

from __future__ import annotations

import _thread
import contextlib
import io
import itertools
import os
import warnings
from collections.abc import Callable, Mapping
from importlib import import_module
from struct import Struct
from typing import Any, ClassVar, Final

from sandpod_runner.ipc.display_records import DONE, KEPT_FOLDER, LIMITS, MAX_KEPT, RECORD, RecordKind
from sandpod_runner.protocol import messages
from sandpod_runner.protocol.messages import MIME_TYPES

PICTURES: Final = ("image/png", "image/jpeg")
MAX_SIDE: Final = 2000  # pixels a side: more is refused by models' APIs where a conversation has many pictures
_SUFFIXES: Final = {"image/png": "png", "image/jpeg": "jpg", "text/html": "html"}
_PNG: Final = b"\x89PNG\r\n\x1a\n"
_SIDES: Final = Struct(">16xII")  # where a PNG has its width and height
_WORTH: Final = 8  # A PNG this many times too large has noise or photos in it, for which JPEG is the better format
_STEP: Final = 0.7


class Channel:
    """The writing end of one process: those forked from it show nothing. Files are kept in a folder below `folder`."""

    current: ClassVar[Channel]  # of this process

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
        kind, records = RecordKind.DISPLAY, b""
        for mime, data in forms.items():
            record = self._record(kind, mime, data)
            if record:
                self._shown += 1
                records += record
                kind = RecordKind.FORM
        self._write(records)

    def result(self, mime: str, data: bytes) -> None:
        """Send a form of a last value, or count it as dropped where it is too large."""
        self._write(self._record(RecordKind.RESULT, mime, data))

    def _record(self, kind: RecordKind, mime: str, data: bytes) -> bytes:
        fitted = self._fitted(mime, data)
        if fitted is None:
            return b""
        if len(fitted[1]) > LIMITS[kind] or (kind != RecordKind.RESULT and self._shown >= messages.MAX_DISPLAYS):
            self.drop()
            return b""
        return _packed(kind, *fitted)

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
        fitted = _fit(mime, data, share) if is_room else None
        if fitted is not None:
            self._pictures += 1
            self._room -= len(fitted[1])
        if fitted != (mime, data):
            if self.keep(mime, data):
                self._write(_packed(RecordKind.KEPT, mime, b""))
            elif fitted is None:
                self.drop()
        return fitted

    def keep(self, mime: str, data: bytes) -> str:
        """Write a picture or a page into the workspace, and return its path; "" where that can't be done."""
        path = _store(self._folder, mime, data) if self.takes_pictures else ""
        self._kept += bool(path)
        return path

    def drop(self) -> None:
        """Count one that is not sent."""
        self._write(_packed(RecordKind.DROPPED, MIME_TYPES[0], b""))

    def done(self, code: int, cpu: float, max_rss: int) -> None:
        """Report that the program is over, and send nothing more. `cpu` is in seconds, `max_rss` in bytes."""
        self._write(_packed(RecordKind.DONE, MIME_TYPES[0], DONE.pack(code, cpu, max_rss)))
        self.close()

    def close(self) -> None:
        """Send nothing more."""
        fd, self._fd = self._fd, -1
        if fd >= 0 and _identity(fd) == self._same:
            os.close(fd)

    def _write(self, records: bytes) -> None:
        with self._lock:
            # A program may close descriptors that it does not know, and open others in their place.
            if not records or self._fd < 0 or os.getpid() != self._owner or _identity(self._fd) != self._same:
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


def _packed(kind: RecordKind, mime: str, data: bytes) -> bytes:
    return RECORD.pack(kind, MIME_TYPES.index(mime), len(data)) + data


def _identity(fd: int) -> tuple[int, int] | None:
    with contextlib.suppress(OSError):
        info = os.fstat(fd)
        return info.st_dev, info.st_ino
    return None


def _fit(mime: str, data: bytes, most: int) -> tuple[str, bytes] | None:
    """Return type and bytes of a picture, scaled down to MAX_SIDE and `most` bytes; None where it can't be."""
    if len(data) <= most and not _has_long_side(mime, data):
        return mime, data
    with warnings.catch_warnings(), contextlib.suppress(Exception):
        warnings.simplefilter("ignore")  # of its size
        library = import_module("PIL.Image")
        picture = library.open(io.BytesIO(data)).convert("RGBA")
        picture.thumbnail((MAX_SIDE, MAX_SIDE))
        if mime == "image/png" and len(data) <= _WORTH * most and len(found := saved(picture.save, "PNG")) <= most:
            return mime, found
        paper = library.new("RGB", picture.size, "white")
        paper.paste(picture, mask=picture.getchannel("A"))
        while most > 0 and min(paper.size) > 1:
            found = saved(paper.save, "JPEG")
            if len(found) <= most:
                return "image/jpeg", found
            paper.thumbnail([int(side * _STEP) for side in paper.size])
    return None


def _store(folder: str, mime: str, data: bytes) -> str:
    """Write a picture into a folder below this one, and return its path from here; "" where that can't be done."""
    with contextlib.suppress(OSError):
        os.makedirs(os.path.join(folder, KEPT_FOLDER), exist_ok=True)
        for number in itertools.count(len(os.listdir(os.path.join(folder, KEPT_FOLDER))) + 1):
            name = f"{KEPT_FOLDER}/picture-{number:03}.{_SUFFIXES[mime]}"
            try:
                file = open(os.path.join(folder, name), "xb")  # noqa: SIM115 - closed below
            except FileExistsError:
                continue
            try:
                with file:
                    file.write(data)
            except OSError:
                os.unlink(file.name)  # half of it is of no use
                raise
            return name
    return ""


def _has_long_side(mime: str, data: bytes) -> bool:
    if mime == "image/png":
        return data.startswith(_PNG) and len(data) >= _SIDES.size and max(_SIDES.unpack_from(data)) > MAX_SIDE
    with contextlib.suppress(Exception):
        return bool(max(import_module("PIL.Image").open(io.BytesIO(data)).size) > MAX_SIDE)
    return False


def saved(save: Callable[..., Any], *args: Any, **options: Any) -> bytes:
    """Return what a function writes that takes a file and these arguments."""
    data = io.BytesIO()
    save(data, *args, **options)
    return data.getvalue()


Channel.current = Channel(-1, "")  # on which nothing is sent
