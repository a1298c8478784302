"""The bookkeeping of in-process sandboxes: limits, expiry and how long the ended are remembered."""

from datetime import UTC, datetime, timedelta

import pytest

from sandpod_api.conditions import Reason
from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.backends.base import ClaimRequest, SandboxRecord
from sandpod_gateway.backends.local import ledger
from sandpod_gateway.backends.local.ledger import KEEP_ENDED, Ledger
from sandpod_gateway.backends.local.settings import LocalSettings
from sandpod_gateway.errors import SandpodError

NOW = datetime(2030, 1, 1, tzinfo=UTC)
WHY = (Reason.POD_FAILED, "It ended.")


def make() -> Ledger:
    return Ledger(LocalSettings(max_sandboxes_per_owner=2, max_sandboxes=3))


def add(book: Ledger, owner: str = "alice", session: str = "", lifetime: tuple[int, int] = (100, 10)) -> SandboxRecord:
    return book.add(ClaimRequest(owner=owner, session=session), None, lifetime, NOW)


def later(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def test_names_can_not_be_guessed() -> None:
    names = {add(make()).name for _ in range(200)}
    assert len(names) == 200
    assert all(len(name) == 14 and name.startswith("sbx-") for name in names)


def test_use_moves_expiry_but_not_past_the_ttl() -> None:
    book = make()
    record = add(book)
    assert record.expires == later(10)
    book.touch(record.name, later(5))
    moved = book.records.get(record.name)
    assert moved is not None
    assert (moved.expires, moved.last_activity) == (later(15), later(5))
    book.touch(record.name, later(95))
    moved = book.records.get(record.name)
    assert moved is not None
    assert moved.expires == later(100)


def test_end_says_which_time_is_over() -> None:
    book = make()
    idle, old = add(book), add(book, lifetime=(20, 20))
    assert book.expire(later(9)) == []
    assert book.expire(later(10)) == [idle.name]
    book.touch(old.name, later(19))
    assert book.expire(later(20)) == [old.name]
    assert [book.records[r.name].reason for r in (idle, old)] == [Reason.IDLE_TIMEOUT, Reason.TTL_EXPIRED]


def test_next_event_is_the_first_expiry_or_the_first_to_forget() -> None:
    book = make()
    assert book.next_event() is None
    record = add(book)
    assert book.next_event() == later(10)
    book.end(record.name, "Expired", WHY, later(10))
    assert book.next_event() == later(10) + KEEP_ENDED


def test_an_ended_sandbox_frees_its_session_and_its_place() -> None:
    book = make()
    record = add(book, session="one")
    add(book)
    book.end(record.name, "Failed", WHY, NOW)
    assert book.of_session("alice", "one") is None
    with book.starting("alice"):
        pass
    ended = book.records.get(record.name)
    assert ended is not None
    assert (ended.status, ended.reason, ended.message) == ("Failed", "PodFailed", "It ended.")


def test_an_ended_sandbox_stays_as_it_ended() -> None:
    book = make()
    record = add(book)
    book.end(record.name, "Expired", (Reason.IDLE_TIMEOUT, "Idle."), NOW)
    before = book.records.get(record.name)
    book.end(record.name, "Failed", WHY, later(1))
    book.touch(record.name, later(1))
    assert book.records.get(record.name) == before


def test_ended_sandboxes_are_forgotten_in_time() -> None:
    book = make()
    record = add(book)
    book.end(record.name, "Expired", WHY, NOW)
    book.expire(NOW + KEEP_ENDED - timedelta(seconds=1))
    assert book.records.get(record.name) is not None
    book.expire(NOW + KEEP_ENDED)
    assert book.records.get(record.name) is None


def test_no_more_ended_sandboxes_are_kept_than_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "MAX_ENDED", 3)
    book = make()
    names = [add(book).name for _ in range(5)]
    for name in names:
        book.end(name, "Expired", WHY, NOW)
    assert [name for name in names if book.records.get(name) is not None] == names[2:]


@pytest.mark.parametrize(
    ("owners", "code"), [(["alice", "alice"], ErrorCode.MAX_SESSIONS), (["bob", "bob", "carol"], "pool_exhausted")]
)
def test_places_are_bounded(owners: list[str], code: str) -> None:
    book = make()
    for owner in owners:
        add(book, owner)
    with pytest.raises(SandpodError) as refused, book.starting("alice"):
        pass
    assert refused.value.code == code


def test_a_sandbox_that_starts_takes_a_place_until_it_failed() -> None:
    book = make()
    with book.starting("alice"), book.starting("alice"), pytest.raises(SandpodError), book.starting("alice"):
        pass
    with book.starting("alice"):
        pass
