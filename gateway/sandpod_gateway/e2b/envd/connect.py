"""Connect RPC as JSON: one message in an HTTP body, or a stream of enveloped ones. Pure.

An envelope is a byte of flags, the size in four bytes, and the message; the last one of a stream says how it ended.
"""

import json
import struct
from collections.abc import Iterator, Mapping
from typing import Any, Final

from sandpod_gateway.api import messages
from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.errors import SandpodError

STREAMED: Final = "application/connect+json"
_HEAD: Final = struct.Struct(">BI")
_COMPRESSED: Final = 1
_END: Final = 2
_STEP: Final = "Send it without compression."


def envelope(message: Mapping[str, Any]) -> bytes:
    """Return a message of a stream."""
    return _packed(0, message)


def ending(error: Mapping[str, Any] | None = None) -> bytes:
    """Return the end of a stream, with the error that it has ended with."""
    return _packed(_END, {} if error is None else {"error": error})


def _packed(flags: int, message: Mapping[str, Any]) -> bytes:
    data = json.dumps(message).encode()
    return _HEAD.pack(flags, len(data)) + data


class Decoder:
    """Takes a streamed body apart, however its bytes come."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the messages that are whole, as JSON. Raises SandpodError: invalid_argument, upload_too_large."""
        self._buffer += data
        while len(self._buffer) >= _HEAD.size:
            flags, size = _HEAD.unpack_from(self._buffer)
            if size > messages.MAX_BYTES:
                message = f"A message is over {messages.MAX_BYTES} bytes."
                raise SandpodError(ErrorCode.UPLOAD_TOO_LARGE, message, next_step="Send smaller ones.")
            if len(self._buffer) < _HEAD.size + size:
                return
            content = bytes(self._buffer[_HEAD.size : _HEAD.size + size])
            del self._buffer[: _HEAD.size + size]
            if flags & _COMPRESSED:
                raise SandpodError(ErrorCode.INVALID_ARGUMENT, "The message is compressed.", next_step=_STEP)
            if not flags & _END:
                yield content

    @property
    def rest(self) -> int:
        """Bytes of a message that is not whole."""
        return len(self._buffer)
