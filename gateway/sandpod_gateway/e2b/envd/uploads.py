"""Bodies of uploads that are compressed: taken apart piece by piece, so that little of them is ever held."""

import zlib
from collections.abc import AsyncIterator
from typing import Final

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.e2b.errors import NotHereError
from sandpod_gateway.errors import SandpodError

PIECE: Final = 64 * 1024  # bytes
_GZIP: Final = 16 + zlib.MAX_WBITS


def plain(body: AsyncIterator[bytes], encoding: str) -> AsyncIterator[bytes]:
    """Return a body without its encoding, which is gzip or none. Raises SandpodError: it is another one."""
    name = encoding.strip().lower()
    if name in {"", "identity"}:
        return body
    if name not in {"gzip", "x-gzip"}:
        raise NotHereError("Uploads are compressed by gzip or not at all.")
    return _unpacked(body)


async def _unpacked(body: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield what a body is made of. Raises SandpodError: it is no gzip, or breaks off."""
    unpacker = zlib.decompressobj(_GZIP)
    try:
        async for data in body:
            left = data
            while left:
                if unpacker.eof:  # one may follow another
                    unpacker = zlib.decompressobj(_GZIP)
                if part := unpacker.decompress(left, PIECE):
                    yield part
                left = unpacker.unused_data if unpacker.eof else unpacker.unconsumed_tail
            while not unpacker.eof and (part := unpacker.decompress(b"", PIECE)):
                yield part
    except zlib.error as error:
        raise _broken("The body is no gzip.") from error
    if not unpacker.eof:
        raise _broken("The body breaks off.")


def _broken(message: str) -> SandpodError:
    return SandpodError(ErrorCode.INVALID_ARGUMENT, message, next_step="Send it again.")
