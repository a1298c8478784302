"""Answers `tail`: what a run has written since a cursor, at once or when there is something."""

import asyncio
import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from sandpod_runner.output.output_log import STREAMS
from sandpod_runner.protocol.errors import Refusal
from sandpod_runner.protocol.fields import request_id, require, seconds, whole
from sandpod_runner.runs.delivery import Delivery

DEFAULT_BYTES: Final = 64 * 1024
MAX_BYTES: Final = 1024 * 1024
MAX_WAIT: Final = 30.0  # seconds
MAX_WAITING: Final = 64  # requests of one stream that wait at a time
SETTLE = 0.02
"""Seconds in which a request that waited gathers what comes after the first output.

A line often comes in several writes, and the end of a short program right behind its last line.
"""
_PIECES: Final = 1024


class Tails:
    """The requests of one stream that wait."""

    def __init__(self, send: Callable[[dict[str, Any], bytes], None]) -> None:
        self._send = send
        self._waiting: set[asyncio.Task[None]] = set()

    def ask(self, header: dict[str, Any], delivery: Delivery) -> None:
        """Answer a request, now or later. Raises Refusal: A field is malformed, or too many wait."""
        number, cursor = request_id(header), whole(header, "cursor")
        limit, wait = whole(header, "limit", DEFAULT_BYTES, MAX_BYTES), seconds(header, "wait", 0.0, MAX_WAIT)
        require(limit, "limit must be a whole number of bytes over 0.")
        require(cursor <= delivery.log.end, "The run has not written so much.")
        answer = partial(self._answer, number, delivery, cursor, limit)
        if cursor < delivery.log.end or delivery.end is not None or not wait:
            answer()
        elif len(self._waiting) >= MAX_WAITING:
            raise Refusal("session_busy", f"{MAX_WAITING} requests already wait, which is the maximum.")
        else:
            task = asyncio.get_running_loop().create_task(_wait(wait, delivery, cursor, answer))
            self._waiting.add(task)
            task.add_done_callback(self._waiting.discard)

    def close(self) -> None:
        """Answer nothing more."""
        for task in self._waiting:
            task.cancel()

    def _answer(self, number: int, delivery: Delivery, cursor: int, limit: int) -> None:
        reading = delivery.log.read(cursor, limit, _PIECES)
        header = {
            "t": "reply",
            "id": number,
            "state": "live" if delivery.end is None else "ended",
            "cursor": reading.cursor,
            "dropped": reading.dropped,
            "pieces": [[STREAMS[stream], len(data)] for stream, _, data in reading.pieces],
            "end": delivery.end,
        }
        self._send(header, b"".join(data for _, _, data in reading.pieces))


async def _wait(seconds: float, delivery: Delivery, cursor: int, answer: Callable[[], None]) -> None:
    """Answer when there is output after the cursor and what follows it at once, at the run's end, or after so long."""
    more = asyncio.Event()
    delivery.watchers.add(more.set)
    try:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while cursor == delivery.log.end and delivery.end is None:
                    await more.wait()
                    more.clear()
            async with asyncio.timeout(SETTLE):
                while delivery.end is None:
                    await more.wait()
                    more.clear()
    finally:
        delivery.watchers.discard(more.set)
    answer()
