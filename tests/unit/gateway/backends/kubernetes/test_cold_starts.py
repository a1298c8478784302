"""The caller's choice while no warm sandbox is ready: an answer at once, or a new one, as far as the server allows."""

import json
from typing import Any

import pytest
from pydantic import ValidationError

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.api.toolsets import ALL
from sandpod_gateway.backends.base import ClaimRequest, WorkspaceRequest
from sandpod_gateway.backends.kubernetes.settings import KubernetesSettings
from sandpod_gateway.backends.local.settings import LocalSettings
from sandpod_gateway.backends.refusals import pool_exhausted
from sandpod_gateway.capabilities import capabilities
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.settings import Settings
from support.gateway.fake_gateway import Caller, Place


def request(*, cold_start: bool | None, **fields: Any) -> ClaimRequest:
    return ClaimRequest(owner="alice", cold_start=cold_start, **fields)


@pytest.mark.parametrize(
    ("asked", "allowed", "may"),
    [(None, True, True), (None, False, False), (True, True, True), (False, True, False), (False, False, False)],
)
def test_the_setting_is_the_default_and_the_caller_may_ask_for_less(
    *, asked: bool | None, allowed: bool, may: bool
) -> None:
    assert request(cold_start=asked).may_make(allowed=allowed) is may


def test_more_than_the_server_does_is_refused() -> None:
    with pytest.raises(SandpodError) as refused:
        request(cold_start=True).may_make(allowed=False)
    assert refused.value.code == ErrorCode.INVALID_ARGUMENT
    assert "pool_exhausted" in refused.value.next_step


@pytest.mark.parametrize(("asked", "allowed"), [(False, True), (None, False)])
def test_a_workspace_that_no_warm_sandbox_has_goes_with_a_cold_start_only(*, asked: bool | None, allowed: bool) -> None:
    wanted = request(cold_start=asked, workspace=WorkspaceRequest(size=2**30))
    with pytest.raises(SandpodError) as refused:
        wanted.may_make(allowed=allowed)
    assert refused.value.code == ErrorCode.INVALID_ARGUMENT
    assert ("cold_start" in refused.value.next_step) is allowed


def test_an_exhausted_pool_is_told_with_what_the_caller_can_do() -> None:
    chosen, bound = (pool_exhausted("python", "none", chosen=chosen) for chosen in (True, False))
    assert chosen.code == bound.code == ErrorCode.POOL_EXHAUSTED
    assert "leave cold_start out" in chosen.next_step
    assert "administrator" in bound.next_step


def test_a_server_that_could_never_give_a_sandbox_does_not_start() -> None:
    assert LocalSettings(warm=1, cold_start=False).warm == 1
    with pytest.raises(ValidationError, match="warm must be at least 1"):
        LocalSettings(warm=0, cold_start=False)


@pytest.mark.claim("run_python_code(cold_start)")
@pytest.mark.parametrize("cold_start", [True, False])
def test_capabilities_tell_what_is_done_by_default(*, cold_start: bool) -> None:
    settings = Settings(kubernetes=KubernetesSettings(cold_start=cold_start))
    assert json.loads(capabilities(settings, "kubernetes", [], toolsets=ALL))["cold_start"] is cold_start


@pytest.mark.claim("run_python_code(cold_start)", "create_sandbox(cold_start)")
async def test_tools_pass_the_choice_on_and_leave_nothing(alice: Caller, place: Place) -> None:
    for tool, arguments in (
        ("create_sandbox", {}),
        ("run_python_code", {"code": "print(1)", "fresh": True}),
        ("run_js_code", {"code": "1", "fresh": True}),
    ):
        answer = await alice.call(tool, cold_start=False, **arguments)
        assert answer["error"] == ErrorCode.POOL_EXHAUSTED
        assert "cold_start" in answer["next"]
    assert await place.backend.list("alice") == []
    assert (await alice.call("create_sandbox", cold_start=True))["status"] == "Ready"
    assert (await alice.python("print(1)", fresh=True, cold_start=True)).stdout == "1\n"


async def test_a_run_in_a_sandbox_that_is_there_has_no_such_choice(alice: Caller) -> None:
    answer = await alice.call("run_python_code", code="print(1)", cold_start=True)
    assert answer["error"] == ErrorCode.INVALID_ARGUMENT
    assert "fresh=true" in answer["next"]
