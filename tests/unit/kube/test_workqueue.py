import asyncio
import contextlib
import weakref
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest

from sandpod_kube.errors import UnreachableError
from sandpod_kube.resources import Key
from sandpod_kube.workqueue import WorkQueue
from support.operator.world import NOW

A, B = Key("Sandbox", "boxes", "a"), Key("Sandbox", "boxes", "b")
PATIENCE = 60.0


class Bench:
    """A queue with workers whose work the test holds up and lets go."""

    def __init__(self) -> None:
        self.now = NOW
        self.queue = WorkQueue(clock=lambda: self.now, backoff_min=1, backoff_max=10)
        self.begun: list[Key] = []
        self.gates: dict[Key, asyncio.Event] = {}
        self.result: datetime | None = None
        self.error: Exception | None = None

    async def work(self, key: Key) -> datetime | None:
        self.begun.append(key)
        if key in self.gates:
            await self.gates[key].wait()
        if self.error is not None:
            raise self.error
        return self.result

    def later(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)
        self.queue.release_due()

    async def idle(self) -> None:
        """Let the workers take all that they can take."""
        for _ in range(20):
            await asyncio.sleep(0)


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    made = Bench()
    workers = [asyncio.create_task(made.queue.run_worker(made.work)) for _ in range(3)]
    yield made
    for worker in workers:
        worker.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await worker


async def test_repeats_before_its_turn_are_one_turn(bench: Bench) -> None:
    for _ in range(5):
        bench.queue.add(A)
    assert len(bench.queue) == 1
    await bench.idle()
    assert bench.begun == [A]


async def test_one_worker_at_a_time_for_a_key_and_the_last_word_is_heard(bench: Bench) -> None:
    bench.gates[A] = asyncio.Event()
    bench.queue.add(A)
    await bench.idle()
    bench.queue.add(A)
    bench.queue.add(A)
    bench.queue.add(B)
    await bench.idle()
    assert bench.begun == [A, B]
    bench.gates[A].set()
    await bench.idle()
    assert bench.begun == [A, B, A]


async def test_date_that_the_work_returns_is_kept(bench: Bench) -> None:
    bench.result = NOW + timedelta(seconds=30)
    bench.queue.add(A)
    await bench.idle()
    bench.later(29)
    await bench.idle()
    assert bench.begun == [A]
    bench.result = None
    bench.later(1)
    await bench.idle()
    bench.later(1000)
    await bench.idle()
    assert bench.begun == [A, A]


async def test_earlier_date_wins(bench: Bench) -> None:
    bench.queue.add_at(A, NOW + timedelta(seconds=50))
    bench.queue.add_at(A, NOW + timedelta(seconds=10))
    bench.queue.add_at(A, NOW + timedelta(seconds=90))
    bench.later(10)
    await bench.idle()
    bench.later(90)
    await bench.idle()
    assert bench.begun == [A]


@pytest.mark.parametrize("error", [UnreachableError("no answer"), KeyError("a fault of ours")])
async def test_errors_are_tried_again_after_growing_pauses_up_to_a_limit(bench: Bench, error: Exception) -> None:
    bench.error = error
    bench.queue.add(A)
    for wait in (1, 2, 4, 8, 10, 10):
        await bench.idle()
        turns = len(bench.begun)
        bench.later(wait - 0.5)
        await bench.idle()
        assert len(bench.begun) == turns
        bench.later(0.5)
        await bench.idle()
        assert len(bench.begun) == turns + 1
    bench.error = None
    bench.later(10)
    await bench.idle()
    bench.error = error
    bench.queue.add(A)
    await bench.idle()
    turns = len(bench.begun)
    bench.later(1)
    await bench.idle()
    assert len(bench.begun) == turns + 1


async def test_object_that_is_gone_has_no_date(bench: Bench) -> None:
    bench.queue.add_at(A, NOW + timedelta(seconds=1))
    bench.queue.forget(A)
    bench.later(1)
    await bench.idle()
    assert bench.begun == []


class Date(datetime):
    """A date that can be seen to be forgotten."""


async def test_date_of_an_earlier_turn_is_kept_no_longer(bench: Bench) -> None:
    bench.result = Date.fromtimestamp((NOW + timedelta(days=7)).timestamp(), UTC)
    earlier = weakref.ref(bench.result)
    bench.queue.add(A)
    await bench.idle()
    bench.result = NOW + timedelta(days=7)
    bench.queue.add(A)
    await bench.idle()
    assert bench.begun == [A, A]
    assert earlier() is None
