"""A run's output as it comes, from a cursor on, for answers that go on until its end.

The sandbox answers a look when there is something new, whichever gateway began the run: nothing is asked for in vain,
and the first piece and the end come at once. A sandbox that answers sooner, or a program that writes without end, gets
no more looks than its follower has saved up by waiting.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Final

from sandpod_gateway.api.run_results import RunOutput
from sandpod_gateway.content import Answer
from sandpod_gateway.masking.current import calling
from sandpod_gateway.runs.background import READ_LIMIT, BackgroundRuns

Check = Callable[[], Awaitable[None]]
"""Raises SandpodError where what a request was let in with is not valid any more."""

WAIT_SECONDS: Final = 15.0  # for output, after which something is sent that keeps proxies from hanging up
_COST: Final = 0.05  # seconds of waiting that pay for a look
_FULL_COST: Final = 0.005  # for one that has shown that there is more already
_SAVED: Final = 1.0  # most seconds that are saved up


class Pace:
    """Holds looks up to as many as the time that has gone by pays for."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._paid = clock() - _SAVED  # until when all time is spent

    def owed(self, cost: float) -> float:
        """Spend time on a look, and return how many seconds the next one has to wait for."""
        now = self._clock()
        self._paid = max(self._paid, now - _SAVED) + cost
        return max(0.0, self._paid - now)


async def follow(
    background: BackgroundRuns, owner: str, run_id: str, cursor: int, check: Check
) -> AsyncGenerator[Answer[RunOutput] | None, None]:
    """Yield what a run writes until it has ended, the last with its result, and None where nothing comes.

    All of it is masked. What the program writes while nobody takes anything waits in its sandbox, bounded.

    Raises:
        SandpodError: As `check` does; not_found, sandbox_lost.
    """
    pace = Pace()
    while True:
        with calling("read_run") as call:
            await check()
            found = await background.read(owner, run_id, cursor=cursor, wait=WAIT_SECONDS, max_output=READ_LIMIT)
            output = RunOutput.model_validate(call.masked(found.result.model_dump(mode="json")))
        size, cursor = len(output.stdout) + len(output.stderr), output.cursor
        is_over = output.result is not None
        yield Answer(output, found.pictures) if size or output.dropped_bytes or is_over else None
        if is_over:
            return
        if owed := pace.owed(_FULL_COST if size > READ_LIMIT // 2 else _COST):
            await asyncio.sleep(owed)
