"""Limits of one gateway and of several, and the sentences for who meets one."""

from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import ValidationError

from sandpod_gateway.errors import SandpodError
from sandpod_gateway.metrics import Metrics
from sandpod_gateway.usage import live
from sandpod_gateway.usage.amounts import GIB, SECOND, Account
from sandpod_gateway.usage.document import Document, decode
from sandpod_gateway.usage.meter import MAX_CPUS, Meter
from sandpod_gateway.usage.settings import QuotaSettings
from sandpod_gateway.usage.shared import Others
from support.clock import Clock

CI, LAPTOP, BOB = Account("", "alice", "ci"), Account("", "alice", "laptop"), Account("", "bob", "ci")
KEY = bytes(8)
MEGABYTE = 10**6


@pytest.fixture
def clock() -> Clock:
    return Clock(datetime(2026, 11, 30, 12, tzinfo=UTC).timestamp())


def meter(clock: Clock, **limits: Any) -> Meter:
    return Meter(QuotaSettings.model_validate(limits), Metrics(), clock)


def sees(one: Meter, *others: Meter) -> None:
    """Let one gateway take in what others publish."""
    seen = Others([decode(each.document.encode()) for each in others])
    for each in others:
        seen.take(live.decode(each.publish(1)), is_alive=True)
    one.take_others(seen)


def calls(counter: Meter, account: Account, times: int) -> SandpodError | None:
    """Call until it is refused."""
    for _ in range(times):
        try:
            counter.call(account, KEY)
        except SandpodError as error:
            return error
    return None


def test_calls_of_a_minute_slide(clock: Clock) -> None:
    counter = meter(clock, per_user={"calls_per_minute": 3})
    assert calls(counter, CI, 2) is None
    clock.now += 20
    refused = calls(counter, LAPTOP, 2)
    assert refused is not None
    assert (refused.code, refused.retry_after) == ("rate_limited", 40)
    assert refused.message == "You have made 3 calls in the last minute, the most that are allowed."
    assert refused.next_step == "Try again in 40 seconds."
    assert calls(counter, BOB, 3) is None
    clock.now += 40
    assert calls(counter, CI, 2) is None
    assert calls(counter, CI, 1) is not None


def test_waiting_as_long_as_is_said_is_enough(clock: Clock) -> None:
    counter = meter(clock, per_key={"calls_per_minute": 5})
    for _ in range(40):
        refused = calls(counter, CI, 1)
        if refused is not None:
            assert refused.retry_after is not None
            clock.now += refused.retry_after
            assert calls(counter, CI, 1) is None
        clock.now += 3.7


def test_limits_hold_for_all_gateways_together(clock: Clock) -> None:
    limits = {"per_user": {"calls_per_minute": 4, "concurrent_runs": 2}, "per_tenant": {"cpu_seconds_per_day": 10}}
    first, second = meter(clock, **limits), meter(clock, **limits)
    assert calls(first, CI, 3) is None
    sees(second, first)
    assert calls(second, LAPTOP, 1) is None
    assert calls(second, LAPTOP, 1) is not None
    with first.running(CI), second.running(LAPTOP):
        sees(second, first)
        with pytest.raises(SandpodError, match="You have 2 runs going on") as refused:
            second.check_run(LAPTOP)
        assert refused.value.retry_after
        second.check_run(BOB)
    sees(second, first)
    second.check_run(LAPTOP)
    first.ended(CI, "sbx-a", cpu=6, elapsed=6, moved=(0, 0))
    second.ended(BOB, "sbx-b", cpu=4, elapsed=4, moved=(0, 0))
    sees(second, first)
    with pytest.raises(SandpodError, match="Your tenant has used the 10 seconds of processor time") as refused:
        second.check_run(LAPTOP)
    assert (refused.value.code, refused.value.retry_after) == ("quota_exceeded", 12 * 3600)
    first.check_run(LAPTOP)  # it has not seen the other's yet
    clock.now += 12 * 3600
    second.check_run(LAPTOP)


def test_sandboxes_are_limited_by_who_claimed_them_at_any_gateway(clock: Clock) -> None:
    limits = {"per_key": {"sandboxes": 1}, "per_user": {"sandboxes": 2}, "keys": {"alice/laptop": {"sandboxes": None}}}
    first, second = meter(clock, **limits), meter(clock, **limits)
    first.claimed(CI, "sbx-a", "default", clock())
    sees(second, first)
    with pytest.raises(SandpodError, match="Your key has 1 live sandboxes"), second.claiming(CI, set()):
        pass
    with second.claiming(CI, {"sbx-a"}):  # that one has ended, which its own gateway does not know yet
        pass
    with (
        second.claiming(LAPTOP, set()),
        pytest.raises(SandpodError, match="You have 2 live"),
        second.claiming(LAPTOP, set()),
    ):
        pass


def test_bytes_and_uploads_of_a_day_are_limited(clock: Clock) -> None:
    counter = meter(clock, per_user={"bytes_per_day": 10 * MEGABYTE}, per_key={"upload_bytes_per_day": 4 * MEGABYTE})
    counter.check_bytes(CI, 4 * MEGABYTE, upload=True)
    with pytest.raises(SandpodError, match="over the 4000000 bytes"):
        counter.check_bytes(CI, 4 * MEGABYTE + 1, upload=True)
    with pytest.raises(SandpodError, match="over the 4000000 bytes"):
        counter.move(CI, "sbx-a", into=4 * MEGABYTE + 1)
    counter.move(CI, "sbx-a", into=4 * MEGABYTE)
    with pytest.raises(SandpodError, match="Your key has used the 4000000 bytes of uploaded files"):
        counter.check_bytes(CI, upload=True)
    counter.check_bytes(CI, 6 * MEGABYTE)
    with pytest.raises(SandpodError, match="over the 6000000 bytes"):
        counter.move(CI, "sbx-a", out=6 * MEGABYTE + 1)
    counter.ended(CI, "sbx-a", cpu=0, elapsed=1, moved=(MEGABYTE, 5 * MEGABYTE))
    for check in (counter.check_run, counter.check_bytes):
        with pytest.raises(SandpodError, match="You have used the 10000000 bytes in and out"):
            check(LAPTOP)
    counter.check_run(BOB)


def test_bytes_on_their_way_have_room_that_nobody_else_gets_and_count_where_they_arrive(clock: Clock) -> None:
    counter = meter(clock, per_user={"bytes_per_day": 10}, per_key={"upload_bytes_per_day": 8})
    with counter.moving(CI, "sbx-a", packages=4), counter.moving(CI, "sbx-a", files=3):
        for moved in ({"into": 4}, {"out": 4}):
            with pytest.raises(SandpodError, match="over the 3 bytes"):
                counter.move(LAPTOP, "sbx-a", **moved)
        with pytest.raises(SandpodError, match="over the 3 bytes"), counter.moving(CI, "sbx-a", packages=4):
            pass
    row = counter.document.rows["2026-11-30", CI]
    assert (row.bytes_in, row.uploads) == (7, 3)
    with pytest.raises(ValueError, match="lost"), counter.moving(CI, "sbx-a", files=3):
        raise ValueError("lost")
    assert (row.bytes_in, row.uploads) == (7, 3)
    counter.move(CI, "sbx-a", into=3)


def test_run_holds_its_place_from_the_check_on_and_gives_it_back(clock: Clock) -> None:
    counter = meter(clock, per_user={"concurrent_runs": 1})
    with counter.running(CI), pytest.raises(SandpodError, match="You have 1 runs"), counter.running(LAPTOP):
        pass
    with pytest.raises(ValueError, match="it did not begin"), counter.running(LAPTOP):
        raise ValueError("it did not begin")
    counter.check_run(CI)


@pytest.mark.parametrize(
    "wrong",
    [
        {"per_user": {"sandboxes": 0}},
        {"users": {"alice": {"calls_per_minute": 0}}},
        {"per_key": {"cpu_seconds_per_day": 0.0}},
        {"per_tenant": {"upload_bytes_per_day": "0"}},
    ],
)
def test_limit_of_zero_is_refused_with_a_sentence(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="a limit of 0 would allow nothing; leave it out for no limit, or revoke"):
        QuotaSettings.model_validate(wrong)


def test_own_limit_of_a_user_replaces_what_it_names() -> None:
    limits = QuotaSettings.model_validate(
        {
            "per_user": {"sandboxes": 2, "concurrent_runs": 3},
            "users": {"alice": {"sandboxes": 9, "calls_per_minute": 5}, "red/alice": {"sandboxes": 1}},
            "keys": {"red/alice/ci": {"concurrent_runs": 1}},
            "tenants": {"": {"concurrent_runs": 7}},
        }
    )
    tenant, user, key = limits.of(CI)
    assert (user.sandboxes, user.concurrent_runs, user.calls_per_minute) == (9, 3, 5)
    assert (tenant.concurrent_runs, key.concurrent_runs) == (7, None)
    tenant, user, key = limits.of(Account("red", "alice", "ci"))
    assert (user.sandboxes, user.concurrent_runs, user.calls_per_minute) == (1, 3, None)
    assert (tenant.concurrent_runs, key.concurrent_runs) == (None, 1)


def test_forged_processor_time_is_bounded_by_the_time_that_the_run_had(clock: Clock) -> None:
    counter = meter(clock)
    counter.ended(CI, "sbx-a", cpu=1e9, elapsed=2, moved=(0, 0))
    [row] = counter.document.rows.values()
    assert row.cpu == 2 * MAX_CPUS * SECOND


def test_time_of_a_sandbox_with_its_memory_and_with_what_ran_in_it(clock: Clock) -> None:
    counter = meter(clock)
    counter.claimed(CI, "sbx-a", "default", clock())
    counter.document.sandboxes["sbx-a"].memory = GIB // 2
    with counter.busy("sbx-a"), counter.busy("sbx-a"):
        clock.now += 10
    clock.now += 20
    counter.accrue("sbx-a", clock())
    clock.now += 30
    counter.accrue("sbx-a", clock(), has_pod=False)  # suspended
    clock.now += 1
    counter.closed("sbx-a")
    counter.closed("sbx-a", clock() + 100)
    row = counter.document.rows["2026-11-30", CI]
    assert (row.wall, row.memory, row.busy) == (31 * SECOND, 31 * SECOND // 2, 10 * SECOND)
    assert counter.document.sandboxes["sbx-a"].amounts.wall == 31 * SECOND


def test_background_run_counts_once_however_often_its_end_is_seen(clock: Clock) -> None:
    counter = meter(clock, per_user={"concurrent_runs": 1})
    counter.ongoing.background_began(CI, "sbx-a", "sbx-a.run-1", sent=100, seconds=60)
    with pytest.raises(SandpodError, match="1 runs going on"):
        counter.check_run(LAPTOP)
    clock.now += 10
    for _ in range(2):
        counter.ongoing.background_ended("sbx-a.run-1", 7.5, 50)
    counter.check_run(LAPTOP)
    row = counter.document.rows["2026-11-30", CI]
    assert (row.cpu, row.bytes_in, row.bytes_out, row.runs) == (7_500_000, 100, 50, 1)


def test_background_run_whose_end_nobody_knows_is_charged_its_time(clock: Clock) -> None:
    counter = meter(clock)
    for seconds in (60, 5):
        counter.ongoing.background_began(CI, "sbx-a", f"sbx-a.run-{seconds}", sent=0, seconds=seconds)
    clock.now += 20
    for seconds in (60, 5):
        counter.ongoing.background_ended(f"sbx-a.run-{seconds}", None, 0)
    assert counter.document.rows["2026-11-30", CI].cpu == (20 + 5) * SECOND


def test_background_runs_of_another_gateway_are_followed_with_its_document(clock: Clock) -> None:
    gone, folder = meter(clock), meter(clock, per_user={"concurrent_runs": 1})
    gone.ongoing.background_began(CI, "sbx-a", "sbx-a.run-1", sent=0, seconds=60)
    folder.document.fold(gone.document)
    folder.reset(folder.document)
    with pytest.raises(SandpodError, match="1 runs going on"):
        folder.check_run(CI)
    folder.ongoing.background_ended("sbx-a.run-1", 1, 0)
    folder.check_run(CI)
    folder.reset(Document("new"))
    folder.check_run(CI)


def test_metrics_have_tenants_and_nobody_else(clock: Clock) -> None:
    metrics = Metrics()
    counter = Meter(QuotaSettings(), metrics, clock)
    counter.ended(Account("lab", "alice", "ci"), "sbx-a", cpu=1.5, elapsed=2, moved=(3, 4))
    samples = {sample.name: sample for family in metrics.registry.collect() for sample in family.samples}
    assert samples["sandpod_usage_cpu_seconds_total"].value == 1.5
    assert samples["sandpod_usage_sent_bytes_total"].labels == {"tenant": "lab"}
    assert not any("alice" in str(sample.labels) for sample in samples.values())
