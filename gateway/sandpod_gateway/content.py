"""A file's bytes as what an answer can hold: text, base64, or a picture. Pure."""

import base64
import json
import mimetypes
from dataclasses import dataclass, field
from typing import Final, Generic, Literal, TypeVar

from pydantic import BaseModel

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.errors import SandpodError
from sandpod_runner.protocol import messages as protocol

_Model_co = TypeVar("_Model_co", bound=BaseModel, covariant=True)

PICTURES: Final = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
MAX_PICTURES: Final = protocol.PICTURE_BYTES
"""Bytes of all pictures of one run before base64, which makes a third more of them."""

MAX_GROWTH: Final = 3
"""Bytes of JSON for one of a text, at most: what is not ASCII takes 6 for 2 bytes, 6 for 3, or 12 for 4."""


def json_size(value: object) -> int:
    """Return the bytes of a value as JSON; some servers on the way escape what is not ASCII, so it is counted so."""
    return len(json.dumps(value))


@dataclass(frozen=True, slots=True)
class Picture:
    """An image that a run showed."""

    mime_type: str
    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Answer(Generic[_Model_co]):
    """A result, and the pictures that go beside it."""

    result: _Model_co
    pictures: list[Picture] = field(default_factory=list)


def mime_type(path: str) -> str:
    """Return a file's type, by its name."""
    return mimetypes.guess_type(path)[0] or "application/octet-stream"


def decode_base64(text: str) -> bytes:
    """Return the bytes that base64 text stands for. Raises SandpodError: invalid_content."""
    try:
        return base64.b64decode(text.encode("ascii"), validate=True)
    except ValueError as error:
        step = "Encode the bytes as standard base64 with padding, or send text."
        raise SandpodError(ErrorCode.INVALID_CONTENT, "The content is not base64.", next_step=step) from error


def as_text(data: bytes, wanted: str | None) -> tuple[Literal["utf-8", "base64"], str]:
    """Return the encoding and the content in it: the one that is wanted, or by default text if the bytes are text.

    Raises SandpodError (invalid_content): text is wanted, and the bytes are not UTF-8.
    """
    text = _plain_text(data) if wanted != "base64" else None
    if text is not None:
        return "utf-8", text
    if wanted == "utf-8":
        message = "That part of the file is not UTF-8 text."
        raise SandpodError(ErrorCode.INVALID_CONTENT, message, next_step="Read it with encoding base64.")
    return "base64", base64.b64encode(data).decode("ascii")


def _plain_text(data: bytes) -> str | None:
    """Return the bytes as text, if they are text that does not grow much in JSON, as control characters do."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    if not all(char.isprintable() or char in "\t\r\n\f\x1b" or not char.isascii() for char in text):
        return None
    return text if json_size(text) <= MAX_GROWTH * len(data) + 2 else None
