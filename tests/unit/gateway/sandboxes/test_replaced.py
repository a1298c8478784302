"""A default sandbox that is lost or has expired is replaced, and the first answer after that says what is gone."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from sandpod_api.conditions import Reason
from sandpod_gateway.api.results import ErrorCode
from support.gateway.fake_gateway import Caller, Place

GONE = "Your previous default sandbox is gone, with its files: "
ENDS = {
    Reason.TTL_EXPIRED: "has expired: its lifetime (ttl) was over.",
    Reason.IDLE_TIMEOUT: "has expired: it was not used for its idle timeout.",
}

Call = Callable[[Caller], Awaitable[dict[str, Any]]]
CALLS: dict[str, Call] = {
    "run": lambda caller: caller.call("run_python_code", code="print(1)"),
    "write_file": lambda caller: caller.call("write_file", path="b.txt", text="2"),
    "upload_file": lambda caller: caller.call("upload_file", filename="b.txt", text="2"),
    "make_directory": lambda caller: caller.call("make_directory", path="b"),
}


async def lost(alice: Caller, place: Place, reason: Reason) -> str:
    """Return the name of alice's default sandbox, which had a file and has ended."""
    name = str((await alice.call("write_file", path="a.txt", text="1"))["sandbox"])
    await place.backend.lose(name, reason)
    return name


@pytest.mark.parametrize("reason", ENDS)
@pytest.mark.parametrize("tool", CALLS)
async def test_first_answer_of_a_new_default_sandbox_says_what_is_gone(
    alice: Caller, place: Place, tool: str, reason: Reason
) -> None:
    name = await lost(alice, place, reason)
    first = await CALLS[tool](alice)
    assert first["sandbox"] != name
    assert first["hint"] == GONE + ENDS[reason]
    assert (await alice.call("run_python_code", code="print(1)"))["hint"] is None


@pytest.mark.parametrize("tool", ["list_files", "read_file", "stat_file", "list_artifacts"])
async def test_what_only_looks_is_refused_with_what_is_gone_and_the_next_answer_says_it_too(
    alice: Caller, place: Place, tool: str
) -> None:
    await lost(alice, place, Reason.IDLE_TIMEOUT)
    arguments = {"path": "a.txt"} if tool in {"read_file", "stat_file"} else {}
    refused = await alice.call(tool, **arguments)
    assert (refused["error"], refused["cause"]) == (ErrorCode.SESSION_NOT_FOUND, GONE + ENDS[Reason.IDLE_TIMEOUT])
    assert (await CALLS["run"](alice))["hint"] == GONE + ENDS[Reason.IDLE_TIMEOUT]


async def test_first_default_sandbox_of_a_caller_replaces_none(alice: Caller) -> None:
    assert (await CALLS["write_file"](alice))["hint"] is None


def starts(place: Place, name: str) -> None:
    """Let a sandbox be one that is not ready yet, as a pod is at first."""
    place.backend._live[name] = replace(place.backend._live[name], status="Pending")


async def test_default_sandbox_that_another_call_has_just_claimed_replaces_none(alice: Caller, place: Place) -> None:
    name = str((await CALLS["write_file"](alice))["sandbox"])
    starts(place, name)
    answer = await CALLS["run"](alice)
    assert (answer["sandbox"], answer["hint"]) == (name, None)


async def test_loss_is_still_said_where_another_call_has_found_the_new_sandbox_starting(
    alice: Caller, place: Place
) -> None:
    await lost(alice, place, Reason.TTL_EXPIRED)
    sandboxes = place.gateway._sandboxes
    name = (await sandboxes.resolve("alice", None)).name
    starts(place, name)
    assert (await sandboxes.resolve("alice", None)).name == name
    assert sandboxes.replaced(name) == GONE + ENDS[Reason.TTL_EXPIRED]
