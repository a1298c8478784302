"""Reads a run's output from where a caller left off, without becoming its owner.

The runner is untrusted: it is asked at the gateway's pace, however soon it answers.
"""

import asyncio
from dataclasses import dataclass, field
from typing import Final, Literal

from sandpod_gateway.runner.connection import RunnerConnection
from sandpod_gateway.runner.messages import Ended, checked
from sandpod_gateway.runs.recorder import Recorder
from sandpod_gateway.runs.reports import Tail, unfinished

Until = Literal["output", "end"]

WAIT_ONCE: Final = 30.0  # seconds that the runner waits for more output in one request
PAUSE: Final = 0.2  # seconds until it is asked again where it did not have as much as was asked for
AT_ONCE: Final = 64  # requests without a pause: a runner keeps 17 MiB of a run's output


@dataclass(slots=True)
class TailReader:
    """Reads one run.

    Attributes:
        connection: The connection to its sandbox.
        run: Its name, as the runner knows it.
        cursor: Where reading goes on.
        recorder: Takes the output.
        strip_ansi: Whether the recorder removes control sequences, so that none may be split between two readings.
        state: Whether the run still goes on.
        dropped: Bytes since the first cursor that are no longer kept.
        ended: How it ended, once it has and all is read.
    """

    connection: RunnerConnection
    run: str
    cursor: int
    recorder: Recorder
    strip_ansi: bool = False
    state: Literal["running", "ended"] = field(default="running", init=False)
    dropped: int = field(default=0, init=False)
    ended: Ended | None = field(default=None, init=False)

    async def read(self, limit: int, deadline: float, *, to_end: bool) -> None:
        """Read what there is; wait for more until there is something, or for the end.

        Args:
            limit: Bytes to ask for at a time.
            deadline: When to stop waiting, on the event loop's clock.
            to_end: Whether to wait for the end.

        Raises:
            SandpodError: not_found, or backend_error.
            ConnectionLostError: The stream was lost.
        """
        loop, begin, requests = asyncio.get_running_loop(), self.cursor, 0
        while True:
            size = await self._ask(limit, max(0.0, deadline - loop.time()))
            requests += 1
            if self.ended is not None or (not to_end and self.cursor != begin):
                break
            if size and (size == limit or self.state == "ended") and requests < AT_ONCE:
                continue  # there is more
            left = deadline - loop.time()
            if left <= 0:
                break
            await asyncio.sleep(min(PAUSE, left))
        self.recorder.finish()

    async def _ask(self, limit: int, wait: float) -> int:
        """Read once, and return how many bytes came."""
        fields = {"run": self.run, "cursor": self.cursor, "wait": min(wait, WAIT_ONCE), "limit": limit}
        reply = await self.connection.ask("tail", fields)
        tail = checked(Tail, reply)
        pieces = tail.split(reply.payload)
        ended = tail.end if tail.is_all(reply.payload) else None
        held = 0
        if ended is None and pieces:
            stream, last = pieces[-1]
            held = unfinished(last, strip_ansi=self.strip_ansi)
            if held == limit:
                held = 0  # nothing would ever come after it
            pieces[-1] = stream, last[: len(last) - held]
        for stream, data in pieces:
            self.recorder.append(stream, data)
        self.state = "running" if tail.state == "live" else "ended"
        self.cursor, self.dropped, self.ended = max(0, tail.cursor - held), self.dropped + tail.dropped, ended
        return len(reply.payload)
