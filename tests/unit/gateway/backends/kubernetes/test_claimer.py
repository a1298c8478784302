import asyncio
import random
from collections.abc import AsyncIterator
from datetime import datetime, tzinfo
from typing import Any, cast

import pytest

from sandpod_api.conditions import Reason
from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.backends.base import ClaimRequest, WorkspaceRequest
from sandpod_gateway.backends.kubernetes.claims import claimer, readiness
from sandpod_gateway.errors import SandpodError
from sandpod_kube.errors import UnreachableError
from support.gateway.claiming import LIMIT, Place, quick_place
from support.gateway.kube_objects import READY, body, held_by, not_ready


@pytest.fixture
async def place(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Place]:
    async with quick_place(monkeypatch) as place:
        yield place


async def test_a_claim_of_a_warm_sandbox_is_one_request(place: Place) -> None:
    place.warm("w")
    sandbox = await place.claim()
    assert sandbox.metadata.name == "w"
    assert sandbox.spec.claim is not None
    assert place.api.requests == ["patch"]
    assert place.store.warm("default") == []


async def test_the_loser_of_a_race_takes_the_next_one(place: Place) -> None:
    for name in ("a", "b", "c"):
        place.warm(name)
    for name in ("a", "b"):
        place.api.put(body(name, claim=held_by("bob")))
    assert (await place.claim()).metadata.name == "c"
    assert place.api.requests.count("patch") == 1
    assert [place.api.objects[name]["spec"]["claim"]["owner"] for name in ("a", "b", "c")] == ["bob", "bob", "alice"]


async def test_a_version_that_one_claim_found_gone_is_not_tried_by_the_next_while_the_watch_is_behind(
    place: Place,
) -> None:
    place.warm("taken")
    place.warm("deleted")
    place.api.put(body("taken", claim=held_by("bob")))
    del place.api.objects["deleted"]
    one = place.claimer(cold_start=False)
    for _ in range(3):
        with pytest.raises(SandpodError) as refused:
            await one.claim(ClaimRequest(owner="alice"))
        assert refused.value.code == ErrorCode.POOL_EXHAUSTED
    assert place.api.patches == 2
    place.see(place.api.put(body("taken")))
    assert (await one.claim(ClaimRequest(owner="alice")))[0].metadata.name == "taken"


@pytest.mark.parametrize("session", ["", "one"])
async def test_a_claim_is_what_was_written_though_the_watch_still_shows_the_sandbox_free(
    place: Place, monkeypatch: pytest.MonkeyPatch, session: str
) -> None:
    place.warm("w")
    monkeypatch.setattr(place.store._cache, "put", lambda *_: None)
    claim = (await place.claim(session)).spec.claim
    assert claim is not None
    assert claim.owner == "alice"


async def test_claims_of_one_gateway_never_try_the_same_sandbox(place: Place) -> None:
    for number in range(20):
        place.warm(f"w{number}")
    one = place.claimer()
    taken = await asyncio.gather(*(one.claim(ClaimRequest(owner="alice")) for _ in range(20)))
    assert len({sandbox.metadata.name for sandbox, _ in taken}) == 20
    assert place.api.requests == ["patch"] * 20


async def test_an_empty_pool_is_told_where_nothing_is_made_on_demand(place: Place) -> None:
    place.warm("w")
    place.api.put(body("w", claim=held_by("bob")))
    with pytest.raises(SandpodError) as refused:
        await place.claim(cold_start=False)
    assert refused.value.code == ErrorCode.POOL_EXHAUSTED
    assert set(place.api.objects) == {"w"}


async def test_a_caller_may_rule_out_that_one_is_made(place: Place) -> None:
    place.warm("w")
    assert (await place.claim(ask=False)).metadata.name == "w"
    with pytest.raises(SandpodError) as refused:
        await place.claim(ask=False)
    assert refused.value.code == ErrorCode.POOL_EXHAUSTED
    assert set(place.api.objects) == {"w"}


async def test_a_caller_can_not_ask_for_more_than_the_server_does(place: Place) -> None:
    place.warm("w")
    with pytest.raises(SandpodError) as refused:
        await place.claim(ask=True, cold_start=False)
    assert refused.value.code == ErrorCode.INVALID_ARGUMENT
    assert place.api.requests == []


async def test_a_session_that_is_held_is_returned_without_a_request(place: Place) -> None:
    place.see(place.api.put(body("mine", claim=held_by("alice", "one"))))
    place.see(place.api.put(body("other", claim=held_by("alice", "two"))))
    place.see(place.api.put(body("bobs", claim=held_by("bob", "one"))))
    place.warm("w")
    assert (await place.claim("one")).metadata.name == "mine"
    assert place.api.requests == []


@pytest.mark.parametrize(
    ("theirs", "winner"), [(None, "w"), ("2020-01-01T00:00:00Z", "theirs"), ("2099-01-01T00:00:00Z", "theirs")]
)
async def test_a_claim_with_a_session_takes_no_list_from_the_api_server(
    place: Place, monkeypatch: pytest.MonkeyPatch, theirs: str | None, winner: str
) -> None:
    """What others claimed for it before is known from the watch, once that reports the own claim."""
    monkeypatch.setattr(claimer, "WATCH_LAG", LIMIT)
    place.warm("w")
    if theirs is not None:
        place.api.put(body("theirs", claim=held_by("alice", "one", theirs)))
    claiming = asyncio.create_task(place.claim("one"))
    async with asyncio.timeout(LIMIT):
        while "patch" not in place.api.requests:  # noqa: ASYNC110 # the API in memory has no event for it
            await asyncio.sleep(0)
    for _ in range(20):
        await asyncio.sleep(0)
    assert not claiming.done(), "the watch has not reported what was written before"
    place.watch_catches_up()
    assert (await claiming).metadata.name == winner
    await place.background.close()
    assert place.api.requests == (["patch"] if theirs is None else ["patch", "delete"])
    assert set(place.api.objects) == {winner}


async def test_an_older_claim_of_the_session_wins_and_ours_is_given_up(place: Place) -> None:
    place.warm("w")
    place.api.put(body("theirs", claim=held_by("alice", "one", "2020-01-01T00:00:00Z")))
    assert (await place.claim("one")).metadata.name == "theirs"
    await place.background.close()
    assert set(place.api.objects) == {"theirs"}
    assert [s.metadata.name for s in place.store.owned("alice")] == ["theirs"]


async def test_a_later_claim_of_the_session_gives_up_and_ours_stays(place: Place) -> None:
    place.warm("w")
    place.api.put(body("theirs", claim=held_by("alice", "one", "2099-01-01T00:00:00Z")))
    place.api.answer_after["list"] = asyncio.Event()
    claiming = asyncio.create_task(place.claim("one"))
    async with asyncio.timeout(LIMIT):
        while "list" not in place.api.requests:  # noqa: ASYNC110 # the API in memory has no event for it
            await asyncio.sleep(0)
    del place.api.objects["theirs"]
    place.api.answer_after["list"].set()
    assert (await claiming).metadata.name == "w"
    assert set(place.api.objects) == {"w"}


async def test_a_later_claim_that_had_looked_before_us_keeps_its_sandbox(place: Place) -> None:
    place.warm("w")
    place.api.put(body("theirs", claim=held_by("alice", "one", "2099-01-01T00:00:00Z")))
    assert (await place.claim("one")).metadata.name == "theirs"
    await place.background.close()
    assert set(place.api.objects) == {"theirs"}


async def test_a_sandbox_is_made_and_waited_for_where_none_is_warm(place: Place) -> None:
    claiming = asyncio.create_task(place.claim())
    name = await place.starting()
    place.see(place.api.set_conditions(name, not_ready("Starting")))
    place.see(place.api.set_conditions(name, READY))
    assert (await claiming).metadata.name == name
    assert place.api.requests == ["get", "create"]


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        ("ImagePullFailed", ErrorCode.IMAGE_PULL_FAILED),
        ("Unschedulable", ErrorCode.UNSCHEDULABLE),
        ("QuotaExceeded", ErrorCode.QUOTA_EXCEEDED),
        ("StartFailed", ErrorCode.BACKEND_ERROR),
    ],
)
async def test_a_sandbox_that_can_not_start_is_told_with_its_cause_and_nothing_is_left(
    place: Place, reason: str, code: ErrorCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    for full in (Reason.UNSCHEDULABLE, Reason.QUOTA_EXCEEDED):
        row = readiness._CODES[full]
        monkeypatch.setitem(readiness._CODES, full, (row[0], 0.0, row[2]))
    claiming = asyncio.create_task(place.claim())
    name = await place.starting()
    place.see(place.api.set_conditions(name, not_ready(reason, "because")))
    with pytest.raises(SandpodError) as refused:
        await claiming
    assert (refused.value.code, refused.value.cause) == (code, "because")
    assert place.api.objects == {}
    assert place.store.get(name) is None


async def test_a_sandbox_that_someone_waits_for_is_in_use(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "LOOK_AGAIN", 0.001)
    claiming = asyncio.create_task(place.claim())
    name = await place.starting()
    async with asyncio.timeout(LIMIT):
        while len(place.touched) < 2:  # noqa: ASYNC110 # a list has no event
            await asyncio.sleep(0.001)
    place.see(place.api.set_conditions(name, READY))
    await claiming
    assert set(place.touched) == {name}


async def test_a_sandbox_that_does_not_become_ready_in_time_is_told_and_nothing_is_left(place: Place) -> None:
    with pytest.raises(SandpodError, match="not ready within"):
        await place.claim(cold_start_timeout=0.01)
    assert place.api.objects == {}


async def test_a_cancel_while_the_sandbox_starts_leaves_nothing(place: Place) -> None:
    claiming = asyncio.create_task(place.claim())
    await place.starting()
    claiming.cancel()
    await asyncio.gather(claiming, return_exceptions=True)
    await place.background.close()
    assert claiming.cancelled()
    assert place.api.objects == {}


@pytest.mark.parametrize("write", ["patch", "create"])
async def test_a_cancel_while_the_answer_is_under_way_leaves_nothing(place: Place, write: str) -> None:
    if write == "patch":
        place.warm("w")
    place.api.answer_after[write] = asyncio.Event()
    claiming = asyncio.create_task(place.claim())
    async with asyncio.timeout(LIMIT):
        while write not in place.api.requests:  # noqa: ASYNC110 # the API in memory has no event for it
            await asyncio.sleep(0)
    claiming.cancel()
    await asyncio.gather(claiming, return_exceptions=True)
    assert claiming.cancelled()
    place.api.answer_after[write].set()
    await place.background.close()
    assert place.api.objects == {}


@pytest.mark.parametrize("steps", range(12))
async def test_a_cancel_at_any_step_of_a_warm_claim_leaves_a_result_or_nothing(place: Place, steps: int) -> None:
    place.warm("w")
    claiming = asyncio.create_task(place.claim("one"))
    for _ in range(steps):
        await asyncio.sleep(0)
    claiming.cancel()
    await asyncio.gather(claiming, return_exceptions=True)
    await place.background.close()
    held = [o for o in place.api.objects.values() if "claim" in o["spec"]]
    assert len(held) == (0 if claiming.cancelled() else 1)


async def test_a_patch_whose_answer_was_lost_is_ours_if_it_was_written(place: Place) -> None:
    place.warm("w")
    place.api.failures["patch"] = UnreachableError("the answer broke off")
    assert (await place.claim()).metadata.name == "w"


async def test_a_patch_whose_answer_was_lost_is_not_ours_if_the_same_owner_was_first_in_the_same_second(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two gateways, one owner: what they write differs in nothing that a caller chose."""
    monkeypatch.setattr(claimer, "datetime", SameSecond)
    for name in ("a", "b"):
        place.warm(name)
    other = Place()
    other.api = place.api
    for name in ("a", "b"):
        other.see(place.api.objects[name])
    monkeypatch.setattr(random, "choice", lambda warm: min(warm, key=lambda s: s.metadata.name))
    place.api.failures["lost"] = UnreachableError("the answer broke off")
    one = await other.claim()
    two = await place.claim()
    assert (one.metadata.name, two.metadata.name) == ("a", "b")


class SameSecond:
    @staticmethod
    def now(zone: tzinfo) -> datetime:
        return datetime(2026, 1, 2, 3, 4, 5, tzinfo=zone)


async def cancel_without_an_answer(place: Place, request: str, during: str | None = None) -> None:
    """Cancel a claim during a request of it, one of which has no answer; return when all is undone."""
    place.api.failures[request] = UnreachableError("the answer broke off")
    answer = place.api.answer_after[during or request] = asyncio.Event()
    claiming = asyncio.create_task(place.claim())
    async with asyncio.timeout(LIMIT):
        while (during or request) not in place.api.requests:  # noqa: ASYNC110 # the API in memory has no event for it
            await asyncio.sleep(0)
    claiming.cancel()
    await asyncio.gather(claiming, return_exceptions=True)
    answer.set()
    await place.background.close()


async def test_a_cancel_whose_patch_lost_the_race_and_had_no_answer_leaves_the_winners_sandbox_alone(
    place: Place,
) -> None:
    place.warm("w")
    place.api.put(body("w", claim=held_by("bob")))
    await cancel_without_an_answer(place, "lost")
    assert place.api.objects["w"]["spec"]["claim"]["owner"] == "bob"


@pytest.mark.parametrize("during", ["patch", "get"])
async def test_a_cancelled_patch_without_an_answer_is_undone_if_it_was_written(place: Place, during: str) -> None:
    place.warm("w")
    await cancel_without_an_answer(place, "patch", during)
    assert place.api.objects == {}


async def test_a_cluster_that_does_not_answer_is_told(place: Place) -> None:
    place.warm("w")
    place.api.failures |= dict.fromkeys(("patch", "get", "create"), UnreachableError("it took too long"))
    with pytest.raises(SandpodError) as refused:
        await place.claim()
    assert refused.value.code == ErrorCode.BACKEND_UNAVAILABLE


async def test_claims_under_way_count_for_the_limit(place: Place) -> None:
    for number in range(5):
        place.warm(f"w{number}")
    one = place.claimer(max_sandboxes_per_owner=2)
    request = ClaimRequest(owner="alice")
    results = await asyncio.gather(*(one.claim(request) for _ in range(4)), return_exceptions=True)
    codes = [result.code for result in results if isinstance(result, SandpodError)]
    assert codes == [ErrorCode.MAX_SESSIONS] * 2
    assert len(place.store.owned("alice")) == 2


@pytest.mark.parametrize(("field", "value"), [("template", "no-such"), ("network", "no-such")])
async def test_what_the_cluster_does_not_have_is_refused_before_anything_is_made(
    place: Place, field: str, value: str
) -> None:
    place.warm("w")
    with pytest.raises(SandpodError, match="no-such") as refused:
        await place.claimer().claim(ClaimRequest(owner="alice", **cast("dict[str, Any]", {field: value})))
    assert refused.value.code == ErrorCode.INVALID_ARGUMENT
    assert "create" not in place.api.requests


async def test_a_network_profile_of_the_template_gets_a_sandbox_of_its_own(place: Place) -> None:
    place.warm("w")
    place.api.templates["default"]["spec"]["networkProfiles"] = [{"name": "web"}]
    claiming = asyncio.create_task(place.claimer().claim(ClaimRequest(owner="alice", network="web")))
    name = await place.starting()
    place.see(place.api.set_conditions(name, READY))
    sandbox, fresh = await claiming
    assert (sandbox.spec.network, fresh) == ("web", True)


@pytest.mark.claim("create_sandbox(workspace)")
async def test_a_workspace_of_the_callers_own_is_never_a_warm_sandboxs(place: Place) -> None:
    place.warm("w")
    request = ClaimRequest(owner="alice", workspace=WorkspaceRequest(size=2**20))
    claiming = asyncio.create_task(place.claimer().claim(request))
    assert await place.starting() != "w"
    claiming.cancel()
    await asyncio.gather(claiming, return_exceptions=True)
    assert "patch" not in place.api.requests
