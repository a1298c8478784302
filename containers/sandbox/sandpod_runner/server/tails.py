"""Answers `tail`: what a run has written since a cursor, at once or when there is something."""

import asyncio
from collections.abc import Callable
from typing import Any, Final

from sandpod_runner.output.output_log import STREAMS, Reading
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

Send = Callable[[dict[str, Any], bytes], None]


class Tails:
    """The requests of one stream that wait."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._waiting: set[Callable[[], None]] = set()

    def ask(self, header: dict[str, Any], delivery: Delivery) -> None:
        """Answer a request, now or later. Raises Refusal: A field is malformed, or too many wait."""
        number, cursor = request_id(header), whole(header, "cursor")
        limit, wait = whole(header, "limit", DEFAULT_BYTES, MAX_BYTES), seconds(header, "wait", 0.0, MAX_WAIT)
        require(limit, "limit must be a whole number of bytes over 0.")
        require(cursor <= delivery.log.end, "The run has not written so much.")

        def answer() -> None:
            self._answer(number, delivery, delivery.log.read(cursor, limit, _PIECES))

        if cursor < delivery.log.end or delivery.end is not None or not wait:
            answer()
        elif len(self._waiting) >= MAX_WAITING:
            raise Refusal("session_busy", f"{MAX_WAITING} requests already wait, which is the maximum.")
        else:
            self._wait(wait, delivery, answer)

    def close(self) -> None:
        """Answer nothing more."""
        for leave in tuple(self._waiting):
            leave()

    def _wait(self, wait: float, delivery: Delivery, answer: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()

        def leave() -> None:
            timer.cancel()
            delivery.watchers.discard(notice)
            self._waiting.discard(leave)

        def finish() -> None:
            leave()
            answer()

        timer = loop.call_later(wait, finish)
        settling = False

        def notice() -> None:
            nonlocal timer, settling
            if delivery.end is not None:
                finish()
            elif not settling:
                settling = True
                timer.cancel()
                timer = loop.call_later(SETTLE, finish)

        delivery.watchers.add(notice)
        self._waiting.add(leave)

    def _answer(self, number: int, delivery: Delivery, reading: Reading) -> None:
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
