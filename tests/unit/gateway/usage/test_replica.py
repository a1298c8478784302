"""Several gateways over one store: limits are shared, and whoever dies when, everything counts once."""

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.metrics import Metrics
from sandpod_gateway.usage.amounts import Account, Amounts
from sandpod_gateway.usage.document import Document, decode, merged
from sandpod_gateway.usage.meter import Meter
from sandpod_gateway.usage.replica import GONE_SECONDS, Replica
from sandpod_gateway.usage.settings import QuotaSettings
from sandpod_gateway.usage.stores import LIVE, USAGE
from support.gateway.usage_store import MemoryStore

ALICE = Account("", "alice", "ci")
NOW = 1_795_000_000.0
METRICS = Metrics()


@dataclass(eq=False)
class BrokenStore(MemoryStore):
    """A store that fails now and then, before or after it has done what it was asked for."""

    chance: random.Random = field(default_factory=random.Random)
    failing: float = 0.0  # how often

    def _fail(self) -> None:
        if self.chance.random() < self.failing:
            raise SandpodError(ErrorCode.BACKEND_UNAVAILABLE, "No answer.", next_step="Wait.")

    async def read(self) -> Any:
        self._fail()
        return await super().read()

    async def write(self, name: str, content: bytes, version: str | None) -> str | None:
        self._fail()
        written = await super().write(name, content, version)
        self._fail()
        return written

    async def delete(self, name: str, version: str) -> None:
        self._fail()
        await super().delete(name, version)
        self._fail()


class Gateway:
    """What a gateway has of the accounting; its clock is the test's."""

    def __init__(self, store: MemoryStore, clock: list[float], **limits: Any) -> None:
        self.store, self.clock = store, clock
        self.meter = Meter(QuotaSettings.model_validate(limits), METRICS, lambda: NOW)
        self.replica = Replica(store, self.meter, METRICS, days=35, monotonic=lambda: clock[0])
        self.used = 0

    def use(self, amount: int = 1) -> None:
        self.used += amount
        self.meter.ended(ALICE, "sbx-a", cpu=amount, elapsed=amount, moved=(0, 0))

    async def use_one(self) -> None:
        self.use()

    async def look(self) -> None:
        """Take in what is there, as from a watch."""
        self.replica._take(dict(self.store.documents))

    async def beat(self) -> None:
        await self.replica.publish_now()
        await self.replica.keep_now()


async def turns_until(condition: Callable[[], bool]) -> None:
    """Let other tasks run, without a pause, until the condition holds."""
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never came")


def stored(store: MemoryStore) -> list[Document]:
    return [decode(each.content) for name, each in store.documents.items() if name.startswith(USAGE)]


def total(store: MemoryStore) -> int:
    whole = Amounts()
    for row in merged(stored(store)).rows.values():
        whole.add(row)
    return whole.cpu // 10**6


@pytest.mark.promise("limits-shared")
async def test_what_is_used_at_one_gateway_counts_at_the_other_as_soon_as_it_is_published() -> None:
    store, clock = MemoryStore(), [0.0]
    first, second = (Gateway(store, clock, per_user={"calls_per_minute": 3}) for _ in range(2))
    tasks = [
        asyncio.create_task(work)
        for each in (first, second)
        for work in (each.replica.follow(), each.replica.publish())
    ]
    for _ in range(3):
        first.meter.call(ALICE, bytes(8))
    # No time passes: the first write after a quiet time waits for nothing.
    await turns_until(lambda: bool(second.meter.others.calls))
    with pytest.raises(SandpodError, match="made 3 calls in the last minute"):
        second.meter.call(ALICE, bytes(8))
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_writes_do_not_grow_with_calls() -> None:
    store = MemoryStore()
    gateway = Gateway(store, [0.0])
    publishing = asyncio.create_task(gateway.replica.publish())
    for _ in range(1000):
        gateway.meter.call(ALICE, bytes(8))
        await asyncio.sleep(0)
    assert len(store.writes) == 1
    publishing.cancel()
    await gateway.replica.keep_now()
    await gateway.replica.keep_now()
    assert len(store.writes) == 2, "nothing new is not written"


async def test_gateway_that_ended_in_good_order_is_folded_at_once_and_a_killed_one_after_a_while(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    store, clock = MemoryStore(), [0.0]
    ended, killed, heir = (Gateway(store, clock) for _ in range(3))
    for each in (ended, killed):
        each.use(5)
        each.meter.claimed(ALICE, f"sbx-{each is killed}", "default", NOW - 100)
        await each.beat()
    await ended.replica.close()
    await heir.look()
    await heir.beat()
    assert (len(stored(store)), total(store)) == (2, 10)
    assert [name for name, use in heir.meter.document.sandboxes.items() if use.until] == ["sbx-False"]
    clock[0] += GONE_SECONDS - 1
    await heir.look()
    await heir.beat()
    assert len(stored(store)) == 2
    clock[0] += 1
    await heir.beat()
    assert (len(stored(store)), total(store)) == (1, 10)
    assert len(heir.meter.sandboxes(("",))) == 2
    assert [name for name in store.documents if not name.endswith(heir.replica._id)] == []


async def test_gateway_that_was_taken_for_gone_goes_on_and_nothing_counts_twice() -> None:
    store, clock = MemoryStore(), [0.0]
    slow, heir = (Gateway(store, clock) for _ in range(2))
    slow.use(5)
    slow.meter.claimed(ALICE, "sbx-a", "default", NOW)
    await slow.beat()
    await heir.look()
    slow.use(3)
    clock[0] += GONE_SECONDS
    await heir.beat()
    slow.meter.claimed(ALICE, "sbx-b", "default", NOW)
    for _ in range(2):
        await slow.beat()
    assert total(store) == 8
    holders = [name for each in stored(store) for name, use in each.sandboxes.items() if use.until]
    assert sorted(holders) == ["sbx-a", "sbx-b"]


async def test_folder_that_dies_halfway_is_followed_by_another() -> None:
    store, clock = MemoryStore(), [0.0]
    gone, folder, heir = (Gateway(store, clock) for _ in range(3))
    for each in (gone, folder):
        each.use(5)
        await each.beat()
    await gone.replica.close()
    await folder.look()
    [document] = [each for each in stored(store) if each.closed]
    assert await folder.replica._claim(document.replica, document)  # and here it stops
    await heir.look()
    await heir.beat()
    assert total(store) == 10
    assert len(stored(store)) == 3, "somebody else is about to fold it"
    clock[0] += GONE_SECONDS
    for _ in range(2):
        await heir.look()
        await heir.beat()
    assert (len(stored(store)), total(store)) == (1, 10)
    folder.replica._folding = document
    folder.meter.document.fold(document)  # it was only slow
    await folder.replica.keep_now()
    await folder.replica.keep_now()
    assert total(store) == 10


@pytest.mark.promise("usage-kept")
@pytest.mark.parametrize("seed", range(15))
async def test_whoever_dies_and_whatever_fails_all_use_counts_once(seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311 - no secret
    store, clock = BrokenStore(chance=chance), [0.0]
    alive = [Gateway(store, clock) for _ in range(3)]
    everyone = list(alive)
    for _ in range(40):
        gateway = chance.choice(alive)
        if chance.random() < 0.2:
            await _replace(gateway, alive, in_good_order=chance.random() < 0.5)
            everyone.append(alive[-1])
            continue
        store.failing = 0.15
        with contextlib.suppress(SandpodError):
            await chance.choice([gateway.use_one, gateway.use_one, gateway.beat, gateway.beat, gateway.look])()
        store.failing = 0
        clock[0] += chance.choice([0, 0, 1, GONE_SECONDS / 2, GONE_SECONDS])
    used = sum(each.used for each in everyone)
    for _ in range(3):
        for gateway in alive:
            await _all_written(gateway)
    assert total(store) == used
    clock[0] += GONE_SECONDS
    for gateway in alive:
        await gateway.replica.publish_now()
    for gateway in alive * 3:
        await gateway.look()
        await gateway.beat()
    assert total(store) == used
    assert len(stored(store)) <= len(alive), "no document is left behind"


async def _replace(gateway: Gateway, alive: list[Gateway], *, in_good_order: bool) -> None:
    """Let a gateway end, once it has written all, and another one start."""
    await _all_written(gateway)
    if in_good_order:
        await gateway.replica.close()
    alive.remove(gateway)
    alive.append(Gateway(gateway.store, gateway.clock))


async def _all_written(gateway: Gateway) -> None:
    for _ in range(3):
        await gateway.look()
        await gateway.beat()


async def test_what_is_no_document_is_left_out_with_a_word(caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryStore()
    for name in (f"{USAGE}x", "live-x"):
        await store.write(name, b"oops", None)
    gateway = Gateway(store, [0.0])
    await gateway.replica.start()
    await gateway.beat()
    assert caplog.text.count("is left out") == 2
    assert LIVE + "x" in store.documents
