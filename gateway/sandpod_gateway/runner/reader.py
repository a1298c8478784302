"""Reads the frames of one stream into its inbox, whatever a sandbox sends.

Others have their turns however fast frames come, and a stream on which nothing comes that anybody waits for is over.
"""

import asyncio
from typing import Final

from sandpod_gateway.backends.base import ByteStream
from sandpod_gateway.runner.demux import BrokenProtocolError, Inbox
from sandpod_gateway.time_slices import Turn
from sandpod_runner.protocol.frames import Decoder, Frame, FrameError

MAX_UNASKED: Final = 1000
"""Frames beyond those that are waited for at which a stream is over. A runner sends some: it answers late."""
SMALL_HEADER: Final = 1024
"""Bytes. A frame that nobody waits for counts once more for each of them: what it costs is to parse its header."""
_LONG: Final = frozenset({"hello", "end", "reply", "error"})
"""Kinds whose headers may be of any length: each comes once for what was asked."""


async def read_frames(stream: ByteStream, inbox: Inbox) -> None:
    """Give the inbox each frame that comes, until the stream ends.

    Raises BrokenProtocolError: what came is no frame, or too much that nobody waits for.
    """
    decoder, turn, unasked = Decoder(), Turn(), 0
    try:
        while data := await stream.read():
            inbox.heard = asyncio.get_running_loop().time()
            for frame in decoder.feed(data):
                if _take(inbox, frame, decoder.header_size):
                    unasked = max(0, unasked - 1)
                else:
                    unasked += 1 + decoder.header_size // SMALL_HEADER
                    if unasked > MAX_UNASKED:
                        raise BrokenProtocolError("it sent too many frames that nobody asked for")
                if turn.over:
                    await turn.renew()
    except FrameError as error:
        raise BrokenProtocolError(f"it sent what is no frame: {error}") from error


def _take(inbox: Inbox, frame: Frame, header_size: int) -> bool:
    """Give a frame to whoever waits for it, unless no runner sends such a one; return whether somebody did."""
    return (header_size <= SMALL_HEADER or frame.kind in _LONG) and inbox.take(frame)
