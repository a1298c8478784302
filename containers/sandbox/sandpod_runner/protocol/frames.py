"""The wire format between gateway and runner: length-prefixed frames of a JSON header and a binary payload.

    header length (4 bytes, big endian) | payload length (4 bytes) | header (JSON object, UTF-8) | payload

Both sides call it and neither trusts the other, so every length is checked before anything is kept. It does no I/O.
The headers are described in `messages`. `tests/unit/runner/protocol/test_frames.py` holds golden vectors: a change of
this format is a new protocol version.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from struct import Struct
from typing import Any

MAX_HEADER = 256 * 1024  # largest header, bytes: arguments and environment of a run are in it
MAX_PAYLOAD = 4 * 1024 * 1024
"""Largest payload, bytes: a run's code or one part of a file. Output comes in far smaller pieces."""

_PREFIX = Struct(">II")


class FrameError(ValueError):
    """What came is no frame, or one over the limits. The stream can't be read on after it."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One message: `header["t"]` names its kind."""

    header: dict[str, Any]
    payload: bytes = field(default=b"", repr=False)

    @property
    def kind(self) -> str:
        """The kind of message; empty where the other side sent none."""
        kind = self.header.get("t")
        return kind if isinstance(kind, str) else ""


def encode(header: dict[str, Any], payload: bytes = b"") -> bytes:
    """Return the bytes of one frame. Raises FrameError: Header or payload is over its limit."""
    head = json.dumps(header, ensure_ascii=True, separators=(",", ":")).encode()
    if len(head) > MAX_HEADER:
        raise FrameError(f"header of {len(head)} bytes is over the limit of {MAX_HEADER}")
    if len(payload) > MAX_PAYLOAD:
        raise FrameError(f"payload of {len(payload)} bytes is over the limit of {MAX_PAYLOAD}")
    return _PREFIX.pack(len(head), len(payload)) + head + payload


class Decoder:
    """Turns bytes, in pieces of any size, into frames. It keeps one unfinished frame at most."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self.header_size = 0  # bytes of the last frame's header

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Take bytes and yield the frames that they complete. Raises FrameError: They are none, or over a limit."""
        self._buffer += data
        start = 0
        try:
            while len(self._buffer) - start >= _PREFIX.size:
                head_size, payload_size = _PREFIX.unpack_from(self._buffer, start)
                if head_size > MAX_HEADER or payload_size > MAX_PAYLOAD:
                    raise FrameError(f"frame of {head_size} + {payload_size} bytes is over the limits")
                body = start + _PREFIX.size
                end = body + head_size + payload_size
                if len(self._buffer) < end:
                    break
                header = _header(bytes(self._buffer[body : body + head_size]))
                payload = bytes(self._buffer[body + head_size : end])
                start = end
                self.header_size = head_size
                yield Frame(header, payload)
        finally:
            del self._buffer[:start]


def _header(raw: bytes) -> dict[str, Any]:
    # Before it is parsed, which takes up to 0.1 ms a kilobyte.
    if not raw.startswith(b"{"):
        raise FrameError("header is not an object")
    try:
        header: dict[str, Any] = json.loads(raw.decode())
    except (ValueError, RecursionError) as error:
        raise FrameError("header is not JSON") from error
    return header
