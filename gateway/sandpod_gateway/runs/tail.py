"""A run's output, read from a cursor on, by whoever may ask for it."""

import asyncio
from dataclasses import dataclass, field
from itertools import count
from typing import Final, Literal

from sandpod_gateway.runner.connection import RunnerConnection
from sandpod_gateway.runner.messages import Ended, Tail, checked
from sandpod_gateway.runs.recorder import Recorder, unfinished_character, unfinished_sequence

WAIT_ONCE: Final = 30.0  # seconds that the runner waits for more output in one request
PAUSE: Final = 0.2  # most seconds until it is asked again where it did not have as much as was asked for
SOON: Final = 0.005  # seconds of the first pause, each twice as long as the last: most programs write and end at once
LOOK_BACK: Final = 64 * 1024
"""Bytes of output before a cursor that are read too where values have to be masked: those of the other stream may lie
between two pieces of one value."""
AT_ONCE: Final = 64  # requests without a pause: a runner keeps 17 MiB of a run's output


@dataclass(slots=True)
class TailReader:
    """Reads a run, named as the runner knows it, into a recorder from a cursor on, without becoming its owner.

    The runner is untrusted: it is asked at the gateway's pace, however soon it answers.
    """

    connection: RunnerConnection
    run: str
    cursor: int
    recorder: Recorder
    state: Literal["running", "ended"] = field(default="running", init=False)
    dropped: int = field(default=0, init=False)  # bytes since the first cursor that are no longer kept
    ended: Ended | None = field(default=None, init=False)  # once it has, and all is read

    async def read(self, limit: int, deadline: float, *, to_end: bool) -> None:
        """Read what there is, `limit` bytes at a time, and wait for some, or `to_end`, until the loop's `deadline`.

        Raises not_found, backend_error, or ConnectionLostError.
        """
        loop, begin, pause = asyncio.get_running_loop(), self.cursor, SOON
        if self.recorder.masker is not None and self.cursor > 0:
            await self._look_back(min(self.cursor, max(LOOK_BACK, self.recorder.masker.longest)))
        for requests in count(1):
            size = await self._ask(limit, max(0.0, deadline - loop.time()))
            if self.ended is not None or (not to_end and self.cursor != begin):
                break
            if size and (size == limit or self.state == "ended") and requests < AT_ONCE:
                continue  # there is more
            left = deadline - loop.time()
            if left <= 0:
                break
            await asyncio.sleep(min(pause, left))
            pause = min(2 * pause, PAUSE)
        self.recorder.finish()

    async def _ask(self, limit: int, wait: float) -> int:
        """Read once, and return how many bytes came."""
        fields = {"run": self.run, "cursor": self.cursor, "wait": min(wait, WAIT_ONCE), "limit": limit}
        reply = await self.connection.ask("tail", fields)
        tail = checked(Tail, reply)
        pieces = tail.parts(reply.payload)
        ended, held = tail.end, 0
        if ended is not None and reply.payload and tail.cursor < ended.stdout_bytes + ended.stderr_bytes:
            ended = None  # there is more to read
        if ended is None and pieces:
            stream, last = pieces[-1]
            held = unfinished_character(last) or (unfinished_sequence(last) if self.recorder.strip_ansi else 0)
            if held == limit:
                held = 0  # nothing would ever come after it
            pieces[-1] = stream, last[: len(last) - held]
        for stream, data in pieces:
            self.recorder.output(stream, self.recorder.streams[stream].received, data)
        self.state = "running" if tail.state == "live" else "ended"
        self.cursor, self.dropped, self.ended = max(0, tail.cursor - held), self.dropped + tail.dropped, ended
        return len(reply.payload)

    async def _look_back(self, size: int) -> None:
        """Show the recorder what came before the cursor, so that it sees a value that goes on after it."""
        fields = {"run": self.run, "cursor": self.cursor - size, "wait": 0.0, "limit": size}
        reply = await self.connection.ask("tail", fields)
        tail = checked(Tail, reply)
        room = max(0, len(reply.payload) - max(0, tail.cursor - self.cursor))  # bytes before the cursor
        for stream, data in tail.parts(reply.payload[:room]):
            self.recorder.look_back(stream, data)
