from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandpod_api import names
from sandpod_api.base import rfc3339
from sandpod_api.conditions import Reason
from sandpod_api.types import MAX_LIFETIME, Sandbox
from sandpod_operator.status.lifetime import expires_at, expiry, last_activity, ttl_end
from support.operator.world import NOW, a_sandbox, ago, condition


def used(at: str, *, claimed: float = 100, ttl: int = 1000, idle: int = 50) -> Sandbox:
    return a_sandbox(
        claimed=claimed,
        lifetime={"ttl": ttl, "idleTimeout": idle},
        meta={"annotations": {names.ANNOTATION_LAST_ACTIVITY: at}},
    )


def test_idle_clock_starts_at_the_claim_and_again_at_each_use() -> None:
    assert expires_at(used(""), NOW) == ago(50)
    assert expires_at(used(rfc3339(ago(10))), NOW) == ago(-40)


def test_use_never_moves_the_end_past_the_ttl() -> None:
    assert expires_at(used(rfc3339(NOW), ttl=110), NOW) == ago(-10)


def test_sandbox_with_a_background_run_is_not_idle_until_the_runs_timeout() -> None:
    sandbox = used("", ttl=1000)
    sandbox.metadata.annotations[names.ANNOTATION_BUSY_UNTIL] = rfc3339(ago(-300))
    assert expires_at(sandbox, NOW) == ago(-350)
    for far in (rfc3339(ago(-(10**8))), "9999-12-31T23:59:59Z"):
        sandbox.metadata.annotations[names.ANNOTATION_BUSY_UNTIL] = far
        assert expires_at(sandbox, NOW) == ago(-900), "the ttl bounds it"


@pytest.mark.parametrize(
    "note", ["", "yesterday", "2026-03-01T12:00:00", "2126-01-01T00:00:00Z", rfc3339(ago(5000)), "\udcff", "0" * 9999]
)
def test_note_that_is_no_believable_time_counts_as_none(note: str) -> None:
    assert last_activity(used(note), NOW) == ago(100)


@given(
    claimed=st.integers(0, 10**6),
    noted=st.integers(-(10**6), 10**6),
    ttl=st.integers(1, MAX_LIFETIME),
    idle=st.integers(1, MAX_LIFETIME),
)
def test_sandbox_ends_after_its_claim_and_never_after_its_ttl(claimed: int, noted: int, ttl: int, idle: int) -> None:
    sandbox = used(rfc3339(ago(noted)), claimed=claimed, ttl=ttl, idle=idle)
    end = expires_at(sandbox, NOW)
    assert end is not None
    assert ago(claimed) < end <= ago(claimed) + timedelta(seconds=ttl)
    assert (expiry(sandbox, NOW) is not None) == (end <= NOW)


def test_expired_sandbox_stays_so_whatever_is_noted_later() -> None:
    sandbox = used(rfc3339(NOW))
    assert expiry(sandbox, NOW) is None
    told = a_sandbox(
        claimed=100,
        meta={"annotations": sandbox.metadata.annotations},
        status={"conditions": [condition("Expired", "True", "IdleTimeout")]},
    )
    assert expiry(told, NOW) == Reason.IDLE_TIMEOUT


def test_warm_sandbox_of_a_pool_has_no_end_of_its_own() -> None:
    assert ttl_end(a_sandbox(meta={"labels": {names.LABEL_POOL: "warm"}})) is None


def test_sandbox_that_nobody_holds_and_no_pool_owns_ends_too() -> None:
    assert ttl_end(a_sandbox(lifetime={"ttl": 100, "idleTimeout": 10})) == ago(-40)
