"""When an answer that waits for output comes."""

import asyncio
from typing import Any

from sandpod_runner.output.output_log import OutputLog
from sandpod_runner.runs.delivery import Delivery
from sandpod_runner.runs.request import parse_run
from sandpod_runner.server.connection import _wait

PATIENCE = 30.0
REQUEST = parse_run({"run": "r", "language": "shell"}, b"", ("shell",))


class Stream:
    """An owner that takes everything."""

    can_send = True

    def send(self, header: dict[str, Any], payload: bytes = b"") -> None:
        """Send a frame."""


async def test_end_that_comes_before_the_wait_has_begun_is_answered_and_nothing_watches_on() -> None:
    delivery = Delivery(REQUEST, OutputLog(1024), Stream())
    answered = asyncio.Event()
    waiting = asyncio.create_task(_wait(2 * PATIENCE, delivery, 0, answered.set))
    delivery.finish({"run": "r", "outcome": "ok"})
    await asyncio.wait_for(answered.wait(), PATIENCE)
    await waiting
    assert delivery.watchers == set()


async def test_answer_whose_stream_has_gone_watches_no_more() -> None:
    delivery = Delivery(REQUEST, OutputLog(1024), Stream())
    answered = asyncio.Event()
    waiting = asyncio.create_task(_wait(PATIENCE, delivery, 0, answered.set))
    await asyncio.sleep(0)
    assert len(delivery.watchers) == 1
    waiting.cancel()
    await asyncio.wait({waiting})
    assert delivery.watchers == set()
    assert not answered.is_set()
