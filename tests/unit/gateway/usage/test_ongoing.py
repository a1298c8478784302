"""Runs that go on count once, whether their gateway sees their ends, is killed before, or is taken for gone."""

import random
from dataclasses import dataclass, field, replace
from itertools import count

import pytest

from sandpod_gateway.errors import SandpodError
from sandpod_gateway.metrics import Metrics
from sandpod_gateway.usage import document as documents
from sandpod_gateway.usage.amounts import SECOND, Account, Amounts
from sandpod_gateway.usage.document import Document, decode, merged
from sandpod_gateway.usage.meter import Meter
from sandpod_gateway.usage.ongoing import LEASE_SECONDS, AttendedRun
from sandpod_gateway.usage.replica import GONE_SECONDS, Replica
from sandpod_gateway.usage.settings import QuotaSettings
from sandpod_gateway.usage.stores import USAGE
from support.clock import Clock
from support.gateway.usage_store import MemoryStore

ALICE = Account("", "alice", "ci")
METRICS = Metrics()
NAMES = count(1)


@dataclass(eq=False)
class Run:
    """A run as its sandbox knows it."""

    name: str = field(default_factory=lambda: f"sbx-a.run-{next(NAMES)}")
    written: int = 0
    cpu: float | None = None  # once it has ended
    accepted: bool = True

    def so_far(self) -> tuple[str, tuple[int, int]] | None:
        return (self.name, (10, self.written)) if self.accepted else None


class Gateway:
    """A gateway's part of the accounting, and the runs that its calls wait for."""

    def __init__(self, store: MemoryStore, clock: Clock) -> None:
        self.meter = Meter(QuotaSettings(), METRICS, clock)
        self.replica = Replica(store, self.meter, METRICS, days=35, monotonic=clock)
        self.store = store
        self.runs: dict[Run, AttendedRun] = {}

    def begin(self, run: Run, seconds: float = 600) -> None:
        self.runs[run] = self.meter.ongoing.attend(ALICE, "sbx-a", seconds, run.so_far)

    def end(self, run: Run, cpu: float = 1.0) -> None:
        run.cpu = cpu
        self.meter.ongoing.left(self.runs.pop(run), cpu=cpu, elapsed=cpu, moved=(10, run.written))

    async def keep(self) -> None:
        self.replica._take(dict(self.store.documents))
        await self.replica.publish_now()
        await self.replica.keep_now()

    def look(self, runs: list[Run]) -> None:
        """Charge those of its background runs that have ended."""
        ended = {run.name: run for run in runs if run.cpu is not None}
        for name in self.meter.ongoing.background.keys() & ended.keys():
            self.meter.ongoing.background_ended(name, ended[name].cpu, ended[name].written)


def kept(store: MemoryStore) -> list[Document]:
    return [decode(each.content) for name, each in store.documents.items() if name.startswith(USAGE)]


def total(store: MemoryStore) -> Amounts:
    """Return the sum of all, but for the time in which there were runs."""
    whole = Amounts()
    for row in merged(kept(store)).rows.values():
        whole.add(row)
    return replace(whole, busy=0)


def sum_of(runs: list[Run]) -> Amounts:
    whole = Amounts()
    for run in runs:
        whole.add(Amounts(cpu=round((run.cpu or 0) * SECOND), bytes_in=10, bytes_out=run.written, runs=1))
    return whole


@pytest.fixture
def clock() -> Clock:
    return Clock(1_795_000_000.0)


async def test_run_that_ends_between_two_writes_is_written_as_before(clock: Clock) -> None:
    store = MemoryStore()
    gateway = Gateway(store, clock)
    await gateway.keep()
    writes = len(store.writes)
    for _ in range(100):
        run = Run(written=5)
        gateway.begin(run)
        gateway.end(run)
    assert len(store.writes) == writes
    assert not gateway.meter.document.late
    assert not gateway.meter.urgent.is_set()
    await gateway.keep()
    assert not kept(store)[0].background
    assert total(store) == sum_of([Run(written=5, cpu=1.0)] * 100)


@pytest.mark.promise("usage-kept")
async def test_run_of_a_killed_gateway_is_charged_to_its_caller_by_its_end(clock: Clock) -> None:
    store = MemoryStore()
    killed, heir = Gateway(store, clock), Gateway(store, clock)
    runs = [Run(written=100), Run(accepted=False)]
    for run in runs:
        killed.begin(run)
    await killed.keep()
    clock.now += 15
    runs[0].written = 300
    await killed.keep()
    assert total(store) == Amounts(bytes_in=10, bytes_out=300), "what was moved counts before the end"
    await heir.keep()
    clock.now += GONE_SECONDS
    runs[0].written, runs[0].cpu = 450, 7.5
    await heir.keep()
    with pytest.raises(SandpodError, match="1 runs going on"):
        _limited(heir, 1)
    assert list(heir.meter.ongoing.background) == [runs[0].name], "the runner does not have the other one"
    for _ in range(2):
        heir.look(runs)
    await heir.keep()
    assert total(store) == sum_of(runs[:1])
    _limited(heir, 1)


def _limited(gateway: Gateway, most: int) -> None:
    gateway.meter.limits = Meter(QuotaSettings.model_validate({"per_user": {"concurrent_runs": most}}), METRICS).limits
    gateway.meter.check_run(ALICE)


async def test_run_whose_end_nobody_knows_is_charged_for_little_more_than_the_time_it_was_seen_for(
    clock: Clock,
) -> None:
    store = MemoryStore()
    killed, heir = Gateway(store, clock), Gateway(store, clock)
    killed.begin(long := Run())
    killed.begin(short := Run(), seconds=20)
    clock.now += 15
    for each in (killed, heir):
        await each.keep()
    clock.now += 3600
    await heir.keep()
    for run in (long, short):
        heir.meter.ongoing.background_ended(run.name, None, 0)
    await heir.keep()
    assert total(store).cpu == (15 + LEASE_SECONDS + 20) * SECOND


async def test_runs_of_a_sandbox_that_ended_with_its_gateway_end_with_it(clock: Clock) -> None:
    gateway = Gateway(MemoryStore(), clock)
    for sandbox in ("sbx-a", "sbx-b"):
        gateway.meter.ongoing.background_began(ALICE, sandbox, f"{sandbox}.run-1", sent=0, seconds=600)
    began = clock.now
    clock.now += 300
    gateway.meter.ongoing.lost("sbx-a", began + 40)
    assert list(gateway.meter.ongoing.background) == ["sbx-b.run-1"]
    assert gateway.meter.document.rows["2026-11-18", ALICE].cpu == 40 * SECOND


async def test_run_of_another_call_with_the_same_key_is_not_charged(clock: Clock) -> None:
    store = MemoryStore()
    gateway = Gateway(store, clock)
    gateway.begin(run := Run(accepted=False))
    await gateway.keep()
    gateway.meter.ongoing.left(gateway.runs[run], cpu=1, elapsed=1, moved=None)
    await gateway.keep()
    assert total(store) == Amounts()


@pytest.mark.promise("usage-kept")
async def test_gateway_that_was_taken_for_gone_does_not_charge_what_its_heir_does(clock: Clock) -> None:
    store = MemoryStore()
    slow, heir = Gateway(store, clock), Gateway(store, clock)
    runs = [Run(written=5) for _ in range(3)]
    for run in runs[:2]:
        slow.begin(run)
    await slow.keep()
    await heir.keep()
    slow.begin(runs[2])
    runs[0].written = runs[1].written = 50
    slow.meter.ongoing.keep()
    slow.end(runs[0])  # before it knows that its document is another's
    clock.now += GONE_SECONDS
    await heir.keep()
    for _ in range(2):
        await slow.keep()
    slow.end(runs[1], 2.5)
    slow.end(runs[2], 4)
    heir.look(runs)
    for each in (slow, heir):
        await each.keep()
    assert total(store) == sum_of(runs)
    assert not any(each.background for each in kept(store))


@pytest.mark.promise("usage-kept")
@pytest.mark.parametrize("seed", range(12))
async def test_whatever_happens_each_run_counts_once(seed: int, clock: Clock) -> None:
    chance, store = random.Random(seed), MemoryStore()  # noqa: S311 - no secret
    alive, runs = [Gateway(store, clock) for _ in range(3)], []
    for _ in range(120):
        gateway, what = chance.choice(alive), chance.random()
        if what < 0.3:
            runs.append(Run(written=chance.randrange(100)))
            gateway.begin(runs[-1])
        elif what < 0.5 and gateway.runs:
            gateway.end(chance.choice(list(gateway.runs)), chance.randrange(1, 9))
        elif what < 0.55:
            await _killed(gateway, chance)
            alive.remove(gateway)
            alive.append(Gateway(store, clock))
        else:
            for run in gateway.runs:
                run.written += chance.randrange(50)
            await gateway.keep()
            gateway.look(runs)
        clock.now += chance.choice([0, 0, 1, GONE_SECONDS / 2, GONE_SECONDS])
    for gateway in alive:
        for run in list(gateway.runs):
            gateway.end(run, 3)
    for gateway in alive * 4:
        await gateway.keep()
        gateway.look(runs)
        clock.now += GONE_SECONDS / 4
    assert total(store) == sum_of(runs)
    assert not any(each.background for each in kept(store))


async def _killed(gateway: Gateway, chance: random.Random) -> None:
    """Let a gateway go once all is written; its programs go on for a while."""
    for _ in range(3):
        await gateway.keep()
    for run in gateway.runs:
        run.written += chance.randrange(50)
        run.cpu = chance.randrange(1, 9)


async def test_what_is_recorded_of_charges_is_bounded_and_forgotten_when_it_is_written(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "MAX_LATE", 3)
    store = MemoryStore()
    gateway = Gateway(store, clock)
    runs = [Run() for _ in range(5)]
    for run in runs:
        gateway.begin(run)
    await gateway.keep()
    for run in runs:
        gateway.end(run)
    assert [run for run, *_ in gateway.meter.document.late] == [run.name for run in runs[2:]]
    await gateway.keep()
    assert not gateway.meter.document.late


async def test_only_so_many_runs_are_written_down_and_background_runs_have_room_beside_them(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandpod_gateway.usage.ongoing.MAX_ATTENDED", 2)
    gateway = Gateway(MemoryStore(), clock)
    runs = [Run() for _ in range(3)]
    for run in runs:
        gateway.begin(run)
    gateway.meter.ongoing.keep()
    gateway.meter.ongoing.background_began(ALICE, "sbx-a", "sbx-a.run-b", sent=0, seconds=60)
    assert list(gateway.meter.document.background) == [runs[0].name, runs[1].name, "sbx-a.run-b"]
    for run in runs:
        gateway.end(run)
    gateway.meter.ongoing.background_ended("sbx-a.run-b", 1, 0)
    assert gateway.meter.document.rows["2026-11-18", ALICE].runs == 4
