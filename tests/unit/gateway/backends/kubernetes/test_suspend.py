"""Suspended sandboxes through the gateway: over the fake backend, and the Kubernetes backend's own waking."""

import asyncio
import copy
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, cast

import pytest

from sandpod_api.conditions import Reason
from sandpod_api.names import ANNOTATION_LAST_ACTIVITY
from sandpod_api.types import Sandbox, SandboxTemplate
from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.auth.callers import LOCAL
from sandpod_gateway.backends.base import ClaimRequest, SandboxRecord, WorkspaceRequest
from sandpod_gateway.backends.kubernetes.cache import records
from sandpod_gateway.backends.kubernetes.cache.sandbox_cache import SandboxStore
from sandpod_gateway.backends.kubernetes.claims import patches as claims
from sandpod_gateway.backends.kubernetes.claims import readiness
from sandpod_gateway.backends.kubernetes.claims.readiness import Background, Waker
from sandpod_gateway.backends.kubernetes.settings import KubernetesSettings
from sandpod_gateway.errors import SandpodError
from support.gateway.fake_gateway import Caller, Place
from support.gateway.kube_objects import READY, MemoryApi, body, held_by, not_ready

if TYPE_CHECKING:
    from sandpod_gateway.backends.kubernetes.cluster import Cluster

LIMIT = 60.0


@pytest.fixture
async def alice(place: Place) -> AsyncIterator[Caller]:
    async with place.connect(LOCAL.owner) as caller:
        yield caller


async def suspended(alice: Caller, place: Place) -> str:
    name = str((await alice.call("create_sandbox"))["sandbox"])
    await place.backend.suspend(name)
    return name


async def test_list_and_get_tell_of_a_suspended_sandbox_and_do_not_wake_it(alice: Caller, place: Place) -> None:
    name = await suspended(alice, place)
    [listed] = (await alice.call("list_sandboxes"))["sandboxes"]
    got = await alice.call("get_sandbox", sandbox=name)
    assert (listed["status"], got["status"], got["reason"]) == ("Suspended", "Suspended", "Suspended")
    assert place.backend.wakes == 0


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("run_python_code", {"code": "print(1)"}),
        ("write_file", {"path": "a.txt", "text": "a"}),
        ("list_files", {}),
        ("start_run", {"code": "print(1)"}),
    ],
)
async def test_call_that_names_a_suspended_sandbox_wakes_it(
    tool: str, arguments: dict[str, Any], alice: Caller, place: Place
) -> None:
    name = await suspended(alice, place)
    answer = await alice.call(tool, sandbox=name, **arguments)
    assert "error" not in answer, answer
    assert place.backend.wakes == 1
    assert (await alice.call("get_sandbox", sandbox=name))["status"] == "Ready"


async def test_default_sandbox_is_woken_by_what_only_looks_too(alice: Caller, place: Place) -> None:
    first = await alice.python("print(1)")
    await place.backend.suspend(first.sandbox)
    assert (await alice.call("list_files"))["sandbox"] == first.sandbox
    assert place.backend.wakes == 1


async def test_suspended_sandbox_is_closed_without_being_woken(alice: Caller, place: Place) -> None:
    name = await suspended(alice, place)
    assert (await alice.call("close_sandbox", sandbox=name))["closed"] is True
    assert place.backend.wakes == 0


@pytest.mark.claim("get_sandbox")
async def test_what_keeps_a_sandbox_from_coming_back_is_told_and_it_can_be_tried_again(
    alice: Caller, place: Place
) -> None:
    name = await suspended(alice, place)
    place.backend.refuse_claims(ErrorCode.UNSCHEDULABLE)
    answer = await alice.call("list_files", sandbox=name)
    assert (answer["error"], bool(answer["next"])) == (ErrorCode.UNSCHEDULABLE, True)
    assert (await alice.call("get_sandbox", sandbox=name))["status"] == "Suspended"
    place.backend.refuse_claims(None)
    assert "error" not in await alice.call("list_files", sandbox=name)


async def test_first_run_in_a_context_after_a_resume_is_told_what_is_gone(alice: Caller, place: Place) -> None:
    name = await suspended(alice, place)
    assert (await alice.python("print(1)", sandbox=name)).hint is None
    first = await alice.python("print(1)", sandbox=name, context="a")
    assert first.hint is not None
    assert "variables of contexts from before are gone" in first.hint
    assert (await alice.python("print(1)", sandbox=name, context="a")).hint is None
    assert (await alice.python("print(1)", sandbox=name, context="b")).hint is not None


@pytest.mark.claim("create_sandbox(workspace.persistent)")
async def test_run_and_context_from_before_a_suspension_are_told_to_be_gone_with_the_reason(
    alice: Caller, place: Place
) -> None:
    name = str((await alice.call("create_sandbox"))["sandbox"])
    begun = await alice.call("start_run", sandbox=name, code="print(1)")
    assert (await alice.call("read_run", run_id=f"{name}.run-0000000000000000"))["cause"] is None
    await place.backend.suspend(name)
    gone = await alice.call("read_run", run_id=begun["run_id"])
    assert (gone["error"], "was suspended" in gone["cause"]) == (ErrorCode.NOT_FOUND, True)
    gone = await alice.call("restart_context", sandbox=name, context="a")
    assert (gone["error"], "was suspended" in gone["cause"]) == (ErrorCode.NOT_FOUND, True)


async def test_workspace_of_a_callers_own_is_refused_where_there_is_none_to_choose(alice: Caller) -> None:
    for workspace in ({"persistent": True}, {"size": 2**30}):
        answer = await alice.call("create_sandbox", workspace=workspace)
        assert (answer["error"], "persistent" in answer["message"]) == (ErrorCode.INVALID_ARGUMENT, True)
    assert "error" not in await alice.call("create_sandbox", workspace={})
    for bad in ({"size": 1}, {"size": "1Gi"}, {"volume": "x"}):
        assert (await alice.call("create_sandbox", workspace=bad))["error"] == ErrorCode.INVALID_ARGUMENT


def template(**spec: Any) -> SandboxTemplate:
    return SandboxTemplate.model_validate({"metadata": {"name": "default"}, "spec": {"image": "x", **spec}})


def wanted(workspace: WorkspaceRequest | None) -> claims.Wanted:
    return claims.check_request(
        ClaimRequest(owner="alice", workspace=workspace), KubernetesSettings(), datetime.now(UTC)
    )


@pytest.mark.claim("create_sandbox(workspace)", "create_sandbox(workspace.size)")
def test_workspace_is_written_as_asked_for_within_the_templates_bounds() -> None:
    bounds = template(workspaceLimits={"maxSize": "2Gi", "persistent": True})
    made = claims.workspace_for(wanted(WorkspaceRequest(size=2**30, persistent=True)), bounds)
    assert made is not None
    assert (made.size, made.persistent) == (str(2**30), True)
    assert claims.workspace_for(wanted(None), bounds) is None
    own = claims.workspace_for(wanted(None), template(workspace={"size": "3Gi", "persistent": True}))
    assert own is not None
    assert (own.size, own.persistent) == ("3Gi", True)
    info = records.template_info({"metadata": {"name": "t"}, "spec": bounds.spec.to_wire()})
    assert info is not None
    assert (info.workspace_max, info.persistent) == (2 * 2**30, True)


@pytest.mark.claim("create_sandbox(workspace)")
@pytest.mark.parametrize(
    ("request_", "said"),
    [
        (WorkspaceRequest(size=2**28 + 1), f"at most {2**28} bytes"),
        (WorkspaceRequest(persistent=True), "Leave persistent out"),
    ],
)
def test_workspace_beyond_the_templates_bounds_is_refused_with_the_bound(request_: WorkspaceRequest, said: str) -> None:
    with pytest.raises(SandpodError) as refused:
        claims.workspace_for(wanted(request_), template())
    assert refused.value.code == ErrorCode.INVALID_ARGUMENT
    assert said in refused.value.next_step


class Sleeping:
    """A suspended sandbox of alice's, and what wakes it."""

    def __init__(self, **settings: Any) -> None:
        self.api, self.store, self.background = MemoryApi(), SandboxStore(), Background()
        made = body("s", claim=held_by("alice"), conditions=[not_ready("Suspended")])
        made["metadata"]["generation"] = 1
        made["spec"]["operatingMode"] = "Suspended"
        made["status"] |= {"phase": "Suspended", "observedGeneration": 1}
        self.see(self.api.put(made))
        cluster = cast("Cluster", self.api)
        self.waker = Waker(
            cluster,
            self.store,
            KubernetesSettings(**settings),
            background=self.background,
            touch=self.touch,
        )

    async def touch(self, name: str) -> None:
        pass

    def see(self, told: dict[str, Any]) -> None:
        self.store.take(told)

    async def becomes(self, *conditions: dict[str, Any], generation: int = 2) -> None:
        """The operator writes a status, once the waker has written its wish."""
        async with asyncio.timeout(LIMIT):
            while "merge" not in self.api.requests:  # noqa: ASYNC110 # what is waited for has no event of its own
                await asyncio.sleep(0)
        self.see(self.api.objects["s"])  # a watch tells of everything in order
        made = copy.deepcopy(self.api.objects["s"])
        made["status"] = {"conditions": list(conditions), "observedGeneration": generation}
        self.see(self.api.put(made))


@pytest.fixture
async def sleeping() -> AsyncIterator[Sleeping]:
    made = Sleeping()
    yield made
    await made.background.close()


async def test_two_calls_at_once_wake_a_sandbox_with_one_write(sleeping: Sleeping) -> None:
    calls = [asyncio.create_task(sleeping.waker.wake("s")) for _ in range(2)]
    await sleeping.becomes(READY)
    woken = await asyncio.wait_for(asyncio.gather(*calls), LIMIT)
    assert [each.metadata.name for each in woken] == ["s", "s"]
    assert sleeping.api.requests == ["merge"]
    written = sleeping.api.objects["s"]
    assert written["spec"]["operatingMode"] == "Running"
    used = datetime.fromisoformat(written["metadata"]["annotations"][ANNOTATION_LAST_ACTIVITY])
    assert datetime.now(UTC) - used < timedelta(minutes=1)


async def test_ready_of_before_the_suspension_is_not_taken_for_the_resumes(sleeping: Sleeping) -> None:
    call = asyncio.create_task(sleeping.waker.wake("s"))
    await sleeping.becomes(READY, generation=1)
    for _ in range(20):
        await asyncio.sleep(0)
    assert not call.done()
    await sleeping.becomes(READY)
    assert (await asyncio.wait_for(call, LIMIT)).status.observed_generation == 2


async def test_callers_cancel_does_not_stop_the_wake_that_another_waits_for(sleeping: Sleeping) -> None:
    first, second = (asyncio.create_task(sleeping.waker.wake("s")) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    await sleeping.becomes(READY)
    assert (await asyncio.wait_for(second, LIMIT)).metadata.name == "s"


@pytest.fixture
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    row = readiness._CODES[Reason.QUOTA_EXCEEDED]
    monkeypatch.setitem(readiness._CODES, Reason.QUOTA_EXCEEDED, (row[0], 0.0, row[2]))


@pytest.mark.usefixtures("_impatient")
@pytest.mark.parametrize(
    ("reason", "message", "code", "said"),
    [
        ("QuotaExceeded", "limited: pods=2", ErrorCode.QUOTA_EXCEEDED, "more quota"),
        ("QuotaExceeded", "limited: persistentvolumeclaims=5", ErrorCode.QUOTA_EXCEEDED, "volume"),
        ("ImagePullFailed", "not found", ErrorCode.IMAGE_PULL_FAILED, "another template"),
        ("StartFailed", "exit code 1", ErrorCode.BACKEND_ERROR, "Try again"),
    ],
)
async def test_sandbox_that_can_not_come_back_says_why(
    reason: str, message: str, code: ErrorCode, said: str, sleeping: Sleeping
) -> None:
    call = asyncio.create_task(sleeping.waker.wake("s"))
    await sleeping.becomes(not_ready(reason, message))
    with pytest.raises(SandpodError) as failed:
        await asyncio.wait_for(call, LIMIT)
    assert (failed.value.code, failed.value.cause) == (code, message)
    assert said in failed.value.next_step
    assert "s" in sleeping.api.objects


async def test_suspended_sandbox_takes_no_place_of_the_servers_and_needs_one_to_come_back() -> None:
    sleeping = Sleeping(max_sandboxes=1)
    assert (sleeping.store.live_total, sleeping.store.live("alice")) == (0, 1)
    sleeping.see(sleeping.api.put(body("other", claim=held_by("bob"))))
    assert sleeping.store.live_total == 1
    with pytest.raises(SandpodError) as full:
        await asyncio.wait_for(sleeping.waker.wake("s"), LIMIT)
    assert full.value.code == ErrorCode.MAX_SESSIONS
    assert sleeping.api.requests == []


async def test_of_two_that_come_back_at_once_only_one_gets_the_last_place() -> None:
    sleeping = Sleeping(max_sandboxes=1)
    other = copy.deepcopy(sleeping.api.objects["s"])
    other["metadata"] |= {"name": "t", "uid": "uid-t"}
    sleeping.see(sleeping.api.put(other))
    calls = [asyncio.create_task(sleeping.waker.wake(name)) for name in ("s", "t")]
    with pytest.raises(SandpodError) as full:
        await asyncio.wait_for(calls[1], LIMIT)
    assert full.value.code == ErrorCode.MAX_SESSIONS
    await sleeping.becomes(READY)
    assert (await asyncio.wait_for(calls[0], LIMIT)).metadata.name == "s"
    assert sleeping.api.requests == ["merge"]


def test_record_tells_when_the_sandbox_was_resumed_and_what_stays() -> None:
    made = body("s", claim=held_by("alice"))
    made["spec"]["workspace"] = {"size": "1Gi", "persistent": True}
    at = {"type": "Suspended", "status": "False", "reason": "Resumed", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    made["status"]["conditions"] = [READY, at]
    sandbox = Sandbox.model_validate(made)
    record = records.to_record(sandbox)
    assert record is not None
    assert (record.persistent, record.resumed) == (True, datetime(2026, 1, 1, tzinfo=UTC))


async def test_sandbox_tells_its_template_image_network_and_whether_its_files_stay(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = body("s", claim=held_by(LOCAL.owner, "mine"))
    made["spec"] |= {"templateRef": {"name": "big"}, "network": "web", "workspace": {"persistent": True}}
    made["status"] |= {"image": "own/image:1", "network": "web"}
    sandbox = Sandbox.model_validate(made)
    record = records.to_record(sandbox)
    assert record is not None

    async def of(_owner: str) -> list[SandboxRecord]:
        return [record]

    monkeypatch.setattr(place.backend, "list", of)
    async with place.connect(LOCAL.owner) as caller:
        told = await caller.call("get_sandbox", sandbox="s")
    assert (told["sandbox"], told["name"], told["template"]) == ("s", "mine", "big")
    assert (told["image"], told["network"], told["persistent"]) == ("own/image:1", "web", True)
