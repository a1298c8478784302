"""Fits pictures that a program shows into an answer, and keeps them, and pages, whole in the workspace.

Pillow scales them, which libraries that draw bring with them; without it a large picture is kept and not shown.
"""

from __future__ import annotations

import contextlib
import io
import os
import warnings
from collections.abc import Callable
from importlib import import_module
from struct import Struct
from typing import Any, Final

from sandpod_runner.ipc.display_records import KEPT_FOLDER

MAX_SIDE: Final = 2000  # pixels a side: more is refused by models' APIs where a conversation has many pictures
_SUFFIXES: Final = {"image/png": "png", "image/jpeg": "jpg", "text/html": "html"}
_PNG: Final = b"\x89PNG\r\n\x1a\n"
_SIDES: Final = Struct(">16xII")  # where a PNG has its width and height
_WORTH: Final = 8  # A PNG this many times too large has noise or photos in it, for which JPEG is the better format
_STEP: Final = 0.7


def fit(mime: str, data: bytes, most: int) -> tuple[str, bytes] | None:
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


def keep(folder: str, mime: str, data: bytes) -> str:
    """Write a picture into a folder below this one, and return its path from here; "" where that can't be done."""
    path = ""
    try:
        os.makedirs(os.path.join(folder, KEPT_FOLDER), exist_ok=True)
        number = len(os.listdir(os.path.join(folder, KEPT_FOLDER))) + 1
        while os.path.lexists(path := os.path.join(folder, _name(number, mime))):
            number += 1
        with open(path, "xb") as file:
            file.write(data)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(path)  # half of it is of no use
        return ""
    return _name(number, mime)


def _name(number: int, mime: str) -> str:
    return f"{KEPT_FOLDER}/picture-{number:03}.{_SUFFIXES[mime]}"


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
