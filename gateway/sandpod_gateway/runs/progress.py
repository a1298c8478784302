"""Output on its way to a client while the program runs: coalesced, bounded, never waited for.

The reader of a sandbox's stream only calls `feed`, which does not wait: a client that reads slowly must not slow the
program down. What does not fit is dropped here and counted; the run's result may still have it.
"""

import asyncio
import codecs
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Final

logger = logging.getLogger(__name__)

INTERVAL: Final = 0.05  # seconds between two notifications; each costs about 0.1 ms of processor time
SETTLE: Final = 0.005  # seconds that the first output waits for more: an unbuffered print writes its newline apart
ENOUGH: Final = 16 * 1024  # characters that are sent before the interval is over
FLOOD_INTERVAL: Final = 0.01  # seconds between two notifications of a program that never stops writing
MAX_MESSAGE: Final = 64 * 1024
"""Characters of one notification: each takes at most 12 bytes of ASCII JSON, and clients refuse an event of 1 MiB."""
MAX_BUFFER: Final = 256 * 1024  # characters that wait for a slow client
HEARTBEAT: Final = 15.0  # seconds of silence; proxies close quiet connections after 30 to 60
DRAIN: Final = 5.0  # seconds that a finished run waits for its client to read the rest

Send = Callable[[int, str], Awaitable[None]]
"""Sends one notification: its number, which grows, and its text."""


class OutputStream:
    """The streamed output of one run, from now until `finish` or `stop`."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._decoders = {name: codecs.getincrementaldecoder("utf-8")("replace") for name in ("stdout", "stderr")}
        self._waiting: list[str] = []
        self._size = 0
        self._sending = ""
        self._count = 0
        self._sent_at = -INTERVAL
        self._wake = asyncio.Event()
        self._enough = asyncio.Event()
        self._finished = False
        self._pump = asyncio.create_task(self._run())
        self.dropped = 0

    def feed(self, stream: str, data: bytes) -> None:
        """Take output of a program. Never waits."""
        text = self._decoders[stream].decode(data)
        if self._size + len(text) > MAX_BUFFER:
            self.dropped += len(data)
            return
        if text:
            self._waiting.append(text)
            self._size += len(text)
            self._wake.set()
            if self._size >= ENOUGH:
                self._enough.set()

    async def finish(self) -> None:
        """Send the rest, for a bounded time.

        A run that is over before anything was sent needs no notification: its result comes at once and has it all.
        """
        if self._count == 0 and self._size < ENOUGH:
            return self.stop()
        for decoder in self._decoders.values():
            if rest := decoder.decode(b"", final=True):
                self._waiting.append(rest)
                self._size += len(rest)
        self._finished = True
        self._wake.set()
        self._enough.set()
        try:
            async with asyncio.timeout(DRAIN):
                await asyncio.shield(self._pump)
        except TimeoutError:
            self.dropped += len("".join((self._sending, *self._waiting)).encode())
        finally:
            self.stop()

    def stop(self) -> None:
        """Send nothing more."""
        self._pump.cancel()

    async def _run(self) -> None:
        """Send what comes until the end; ends early, without an error, when the client is gone."""
        try:
            while self._waiting or not self._finished:
                await self._wait()
                if self._waiting or not self._finished:
                    await self._send_next()
        except Exception as error:  # noqa: BLE001  # whatever a transport raises, the run goes on without it
            logger.debug("progress stopped: %s", error)
            self._finished = True

    async def _wait(self) -> None:
        """Return when there is something to send and the last notification is old enough, or after a long silence."""
        try:
            async with asyncio.timeout(HEARTBEAT):
                await self._wake.wait()
            if self._finished:
                return
            async with asyncio.timeout(max(self._sent_at + INTERVAL - time.monotonic(), SETTLE)):
                await self._enough.wait()
        except TimeoutError:
            return
        if not self._finished:
            await asyncio.sleep(max(0.0, self._sent_at + FLOOD_INTERVAL - time.monotonic()))

    async def _send_next(self) -> None:
        text = "".join(self._waiting)
        message, rest = text[:MAX_MESSAGE], text[MAX_MESSAGE:]
        self._waiting = [rest] if rest else []
        self._size = len(rest)
        if not rest and not self._finished:
            self._wake.clear()
        if self._size < ENOUGH and not self._finished:
            self._enough.clear()
        self._count += 1
        self._sending = message
        await self._send(self._count, message)
        self._sending = ""
        self._sent_at = time.monotonic()
