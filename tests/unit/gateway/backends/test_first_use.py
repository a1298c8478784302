"""Tenants that are made when their first caller comes, behind one backend, in memory."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping

import pytest

from fakes.backend import FakeBackend
from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.auth.callers import owner_of
from sandpod_gateway.backends import first_use
from sandpod_gateway.backends.base import ClaimRequest, SandboxRecord
from sandpod_gateway.backends.first_use import FirstUse, TenantState
from sandpod_gateway.backends.tenants import TenantBackend
from sandpod_gateway.errors import SandpodError, StartError
from sandpod_gateway.metrics import Metrics
from sandpod_gateway.sandboxes.service import Sandboxes
from sandpod_gateway.usage.meter import Meter
from sandpod_gateway.usage.settings import QuotaSettings
from support.gateway.peers import until

RED, BLUE = owner_of("red", "alice"), owner_of("blue", "alice")


class Source:
    """SandboxTenants in memory, as all gateways see them; `made` has what was asked for."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self.states: dict[str, TenantState] = {}
        self.provides = True  # whether an operator is there
        self.shows = True  # whether those who follow it hear of anything
        self.error: SandpodError | None = None
        self.asked, self.read = asyncio.Event(), asyncio.Event()
        self._users: list[Callable[[Mapping[str, TenantState]], None]] = []

    async def make(self, tenant: str) -> bool:
        new = tenant not in self.states
        self.made.append(tenant)
        if self.error is not None:
            raise self.error
        await asyncio.sleep(0)  # others may come before the answer
        if self.shows:
            self.set(tenant, TenantState(f"sbx-{tenant}" if self.provides else None))
        self.asked.set()
        return new

    async def follow(self, use: Callable[[Mapping[str, TenantState]], None]) -> None:
        if self.error is not None:
            raise self.error
        self._users.append(use)
        use(dict(self.states))
        self.read.set()
        await asyncio.Event().wait()

    def set(self, tenant: str, state: TenantState | None) -> None:
        if state is None:
            del self.states[tenant]
        else:
            self.states[tenant] = state
        for use in self._users:
            use(dict(self.states))


class Part(FakeBackend):
    """The sandboxes of a place, which all gateways see."""

    def __init__(self) -> None:
        super().__init__()
        self.starts = self.closes = 0
        self.works = asyncio.Event()
        self.works.set()
        self.error: Exception | None = None

    async def start(self) -> None:
        await self.works.wait()
        self.starts += 1
        if self.error is not None and self.starts == 1:
            raise self.error
        if self.starts - (self.error is not None) == 1:
            await super().start()

    async def close(self) -> None:
        self.closes += 1


class World:
    """A source, the backends of its places, and gateways over them."""

    def __init__(self) -> None:
        self.source = Source()
        self.parts: dict[str, Part] = {}
        self.gateways: list[TenantBackend] = []

    def part(self, place: str) -> Part:
        return self.parts.setdefault(place, Part())

    def first_use(self, patience: float = 60, limit: int = 10) -> FirstUse:
        return FirstUse(self.source, self.part, timeout=patience, limit=limit)

    async def gateway(self, *, patience: float = 60, limit: int = 10) -> TenantBackend:
        first = self.first_use(patience, limit)
        backend = TenantBackend(FakeBackend(), {"chart": FakeBackend()}, first_use=first)
        self.gateways.append(backend)
        async with asyncio.timeout(60):
            await backend.start()
        return backend


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    yield made
    for each in made.gateways:
        await each.close()
    for part in made.parts.values():
        await FakeBackend.close(part)


async def claim(backend: TenantBackend, owner: str) -> SandboxRecord:
    async with asyncio.timeout(60):
        return await backend.claim(ClaimRequest(owner=owner))


async def refused(backend: TenantBackend, owner: str) -> SandpodError:
    with pytest.raises(SandpodError) as error:
        await claim(backend, owner)
    return error.value


@pytest.mark.promise("tenants-on-first-use")
async def test_first_call_makes_the_tenant_and_every_gateway_finds_its_sandbox(world: World) -> None:
    one, two = await world.gateway(), await world.gateway()
    record = await claim(one, RED)
    assert record.name.startswith("red.")
    assert await two.get(record.name) == await one.get(record.name) is not None
    assert [each.name for each in await two.list(RED)] == [record.name]
    assert (await two.templates(RED))[0].name == "default"
    assert world.source.made == ["red"]
    assert one.warm() == {(tenant, "default"): 0 for tenant in ("", "chart", "red")}
    # One that begins later knows it at once.
    three = await world.gateway()
    assert await three.get(record.name) is not None
    await three.delete(record.name)
    assert await one.get(record.name) is None


async def test_calls_at_once_make_a_tenant_once(world: World) -> None:
    backend = await world.gateway()
    records = await asyncio.gather(*(claim(backend, owner) for owner in (RED, RED, BLUE, RED)))
    assert sorted(record.name.partition(".")[0] for record in records) == ["blue", "red", "red", "red"]
    assert sorted(world.source.made) == ["blue", "red"]


@pytest.mark.promise("tenants-on-first-use")
async def test_names_of_unknown_tenants_and_callers_of_known_ones_make_nothing(world: World) -> None:
    backend = await world.gateway()
    for name in ("red.sbx-1", "red.", "red", ".x", "chart.x"):
        assert await backend.get(name) is None
    await claim(backend, owner_of("chart", "alice"))
    await claim(backend, owner_of("", "alice"))
    assert world.source.made == []


async def test_what_the_gateway_itself_asks_of_a_tenant_makes_none_and_not_again_one_that_was_removed(
    world: World,
) -> None:
    backend, itself = await world.gateway(), owner_of("red", "")

    async def is_refused() -> bool:
        with pytest.raises(SandpodError) as error:
            await backend.templates(itself)
        return error.value.code == ErrorCode.FORBIDDEN

    assert await is_refused()
    await claim(backend, RED)
    assert [each.name for each in await backend.templates(itself)] == ["default"]
    world.source.set("red", None)
    assert await is_refused()
    assert world.source.made == ["red"]


async def test_tenant_that_takes_too_long_is_unavailable_for_now_and_is_not_asked_for_again_at_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.source.shows = False
    backend = await world.gateway(patience=0.001)
    for _ in range(3):
        error = await refused(backend, RED)
        assert (error.code, error.retry_after) == (ErrorCode.BACKEND_UNAVAILABLE, 5)
        assert "sbx-" not in f"{error.message} {error.next_step}"
    assert world.source.made == ["red"]
    monkeypatch.setattr(first_use, "MAX_ATTEMPTS", 0)
    assert (await refused(backend, BLUE)).message.startswith("Too many tenants")
    # Its sandboxes are there in the end: it is served although it failed a moment ago.
    world.source.set("red", TenantState("sbx-red"))
    await until(lambda: world.part("sbx-red").starts == 1)
    assert (await claim(backend, RED)).status == "Ready"


async def test_tenant_that_can_not_be_is_refused_and_more_than_the_limit_are_not_asked_for(world: World) -> None:
    world.source.set("red", TenantState(refused=True))
    backend = await world.gateway(limit=1)
    error = await refused(backend, RED)
    assert (error.code, error.message) == (ErrorCode.FORBIDDEN, "This server can have no tenant red.")
    error = await refused(backend, BLUE)
    assert (error.code, error.message) == (
        ErrorCode.FORBIDDEN,
        "This server has no tenant blue, and as many as it may have.",
    )
    assert world.source.made == []


async def test_refusal_that_comes_while_a_caller_waits_is_the_answer(world: World) -> None:
    world.source.provides = False
    backend = await world.gateway()
    waiting = asyncio.create_task(refused(backend, RED))
    async with asyncio.timeout(60):
        await world.source.asked.wait()
    world.source.set("red", TenantState(refused=True))
    assert (await waiting).code == ErrorCode.FORBIDDEN


@pytest.mark.parametrize(
    "error", [StartError(ErrorCode.BACKEND_UNAVAILABLE, "No.", next_step="Wait."), ValueError("unexpected")]
)
async def test_backend_that_does_not_start_is_tried_again_while_the_caller_waits(
    world: World, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first_use, "RETRY_SECONDS", 0.001)
    world.part("sbx-red").error = error
    backend = await world.gateway()
    assert (await claim(backend, RED)).status == "Ready"
    assert world.part("sbx-red").starts == 2


@pytest.mark.promise("tenants-apart")
async def test_only_callers_of_a_tenant_wait_for_its_start(world: World) -> None:
    record = await claim(await world.gateway(), RED)
    world.part("sbx-red").works.clear()
    other = TenantBackend(FakeBackend(), {"chart": FakeBackend()}, first_use=world.first_use())
    world.gateways.append(other)
    world.source.read.clear()
    starting = asyncio.create_task(other.start())
    sandboxes = Sandboxes(other, Metrics(), Meter(QuotaSettings(), Metrics()))
    async with asyncio.timeout(60):
        await world.source.read.wait()
        await until(lambda: not other._missing)
        own = asyncio.create_task(sandboxes.find(RED, record.name))
        for owner in (owner_of("chart", "alice"), owner_of("", "alice")):
            said = set()
            for name in (record.name, "red.none", "nobody.none"):  # whatever would wait, would do so for ever
                with pytest.raises(SandpodError) as error:
                    await sandboxes.find(owner, name)
                said.add(str(error.value.problem()))
            assert len(said) == 1
        assert await sandboxes.owner_of(record.name) is None, "nor does whoever made up a link"
        assert not own.done()
        with pytest.raises(SandpodError) as error:
            await other.get(record.name)
        assert error.value.code == ErrorCode.BACKEND_UNAVAILABLE, "that it is gone would be wrong"
        world.part("sbx-red").works.set()
        assert await own == record
        assert await sandboxes.owner_of(record.name) == RED
        await starting


async def test_of_tenants_that_are_made_at_once_no_more_than_the_limit_are(world: World) -> None:
    backend = await world.gateway(limit=1)
    answers = await asyncio.gather(claim(backend, RED), claim(backend, BLUE), return_exceptions=True)
    [refusal] = [each for each in answers if isinstance(each, SandpodError)]
    assert refusal.code == ErrorCode.FORBIDDEN
    assert len(world.source.made) == 1


async def test_place_of_a_tenant_that_could_not_be_made_is_given_back(world: World) -> None:
    backend = await world.gateway(limit=1)
    world.source.error = SandpodError(ErrorCode.BACKEND_UNAVAILABLE, "No.", next_step="Wait.")
    assert (await refused(backend, RED)).message == "No."
    world.source.error = None
    assert (await claim(backend, BLUE)).status == "Ready"


async def test_tenant_that_was_removed_is_closed_and_made_again_when_its_caller_comes(world: World) -> None:
    backend = await world.gateway()
    name = (await claim(backend, RED)).name
    world.source.set("red", None)
    assert await backend.get(name) is None
    await claim(backend, RED)
    assert world.source.made == ["red", "red"]
    assert world.part("sbx-red").closes == 1


async def test_source_that_can_not_be_read_affects_only_its_tenants(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first_use, "RETRY_SECONDS", 0.001)
    monkeypatch.setattr(first_use, "FAILED_SECONDS", 0)
    unreachable = StartError(ErrorCode.BACKEND_UNAVAILABLE, "No.", next_step="Wait.")
    world.source.error = unreachable
    backend = await world.gateway()
    assert (await claim(backend, owner_of("chart", "alice"))).status == "Ready"
    assert (await refused(backend, RED)).message == "No."
    world.source.error = None
    async with asyncio.timeout(60):
        await world.source.read.wait()
    assert (await claim(backend, BLUE)).status == "Ready"


async def test_close_ends_what_is_still_tried(world: World) -> None:
    world.source.provides = False
    backend = await world.gateway()
    waiting = asyncio.create_task(claim(backend, RED))
    async with asyncio.timeout(60):
        await world.source.asked.wait()
    await backend.close()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert not [task for task in asyncio.all_tasks() if "tenant" in task.get_name()]
