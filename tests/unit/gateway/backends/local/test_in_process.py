"""The records of in-process sandboxes: limits, expiry and how long the ended are remembered."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest

from fakes.backend import FakeBackend
from sandpod_api.conditions import Reason
from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.backends.base import ClaimRequest, SandboxRecord
from sandpod_gateway.backends.local import in_process
from sandpod_gateway.backends.local.in_process import KEEP_ENDED
from sandpod_gateway.backends.local.settings import LocalSettings
from sandpod_gateway.errors import SandpodError

NOW = datetime(2030, 1, 1, tzinfo=UTC)


class Book(FakeBackend):
    """A backend whose clock the test sets."""

    def __init__(self) -> None:
        self.now = NOW
        super().__init__(LocalSettings(max_sandboxes_per_owner=2, max_sandboxes=3), clock=lambda: self.now)

    async def add(self, owner: str = "alice", session: str = "", ttl: int = 100, idle_timeout: int = 10) -> str:
        request = ClaimRequest(owner=owner, session=session, ttl=ttl, idle_timeout=idle_timeout)
        return (await self.claim(request)).name

    async def known(self, name: str) -> SandboxRecord:
        record = await self.get(name)
        assert record is not None
        return record

    async def use(self, name: str, seconds: float) -> SandboxRecord:
        """Return the record after a use so many seconds after the start."""
        self.now = later(seconds)
        await self.touch(name)
        return await self.known(name)

    async def ended(self, name: str, seconds: float) -> bool:
        """Return whether the sandbox has ended at so many seconds after the start."""
        self.now = later(seconds)
        self._expire()
        return (await self.known(name)).status == "Expired"


@pytest.fixture
async def book(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Book]:
    monkeypatch.setattr(in_process, "MAX_ENDED", 3)
    book = Book()
    await book.start()
    yield book
    await book.close()


def later(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


async def test_names_can_not_be_guessed(book: Book) -> None:
    names = set()
    for _ in range(200):
        names.add(name := await book.add())
        await book.delete(name)
    assert len(names) == 200
    assert all(len(name) == 16 and name.startswith("sbx-") for name in names)


async def test_use_moves_expiry_but_not_past_the_ttl(book: Book) -> None:
    name = await book.add()
    assert (await book.known(name)).expires == later(10)
    moved = await book.use(name, 5)
    assert (moved.expires, moved.last_activity) == (later(15), later(5))
    assert (await book.use(name, 95)).expires == later(100)


async def test_a_background_run_counts_as_use_until_its_end_and_a_shorter_one_does_not_replace_a_longer(
    book: Book,
) -> None:
    name = await book.add()
    await book.keep_busy(name, 50)
    await book.keep_busy(name, 20)
    assert (await book.use(name, 5)).expires == later(60)
    assert (await book.use(name, 70)).expires == later(80)


async def test_end_says_which_time_is_over(book: Book) -> None:
    idle, old = await book.add(), await book.add(ttl=20, idle_timeout=20)
    assert not await book.ended(idle, 9)
    assert await book.ended(idle, 10)
    await book.use(old, 19)
    assert await book.ended(old, 20)
    assert [(await book.known(name)).reason for name in (idle, old)] == [Reason.IDLE_TIMEOUT, Reason.TTL_EXPIRED]


async def test_next_look_is_at_the_first_expiry_and_never_far_away(book: Book) -> None:
    assert book._expire() == 60
    await book.add()
    assert book._expire() == 10
    book.now = later(4)
    assert book._expire() == 6


async def test_an_ended_sandbox_frees_its_session_and_its_place(book: Book) -> None:
    name = await book.add(session="one")
    await book.add()
    await book.lose(name)
    assert await book.add(session="one") != name
    ended = await book.known(name)
    assert (ended.status, ended.reason, bool(ended.message)) == ("Failed", "PodFailed", True)


async def test_an_ended_sandbox_stays_as_it_ended(book: Book) -> None:
    name = await book.add()
    assert await book.ended(name, 10)
    before = await book.known(name)
    assert await book.use(name, 11) == before
    book._end(name, ("Failed", Reason.POD_FAILED, "Again."))
    assert await book.known(name) == before


async def test_ended_sandboxes_are_forgotten_in_time(book: Book) -> None:
    name = await book.add()
    assert await book.ended(name, 10)
    assert await book.ended(name, 10 + KEEP_ENDED - 1)
    book.now = later(10 + KEEP_ENDED)
    assert await book.get(name) is None
    assert await book.list("alice") == []


async def test_no_more_ended_sandboxes_are_kept_than_the_bound(book: Book) -> None:
    names = []
    for _ in range(5):
        names.append(name := await book.add())
        await book.lose(name)
    assert [name for name in names if await book.get(name) is not None] == names[2:]


@pytest.mark.parametrize(
    ("owners", "code"), [(["alice", "alice"], ErrorCode.MAX_SESSIONS), (["bob", "bob", "carol"], "pool_exhausted")]
)
async def test_places_are_bounded(book: Book, owners: list[str], code: str) -> None:
    for owner in owners:
        await book.add(owner)
    with pytest.raises(SandpodError) as refused:
        await book.add("alice")
    assert refused.value.code == code


def test_a_sandbox_that_starts_takes_a_place_until_it_failed() -> None:
    book = Book()
    with book._place("alice"), book._place("alice"), pytest.raises(SandpodError), book._place("alice"):
        pass
    with book._place("alice"):
        pass
