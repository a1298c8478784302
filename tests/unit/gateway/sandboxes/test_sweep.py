"""Streams to sandboxes are closed when nobody uses them, and opened again for the next call."""

import asyncio

import pytest

from sandpod_gateway.sandboxes import service
from support.gateway.fake_gateway import Caller, Place
from support.gateway.peers import until


async def test_stream_that_nobody_has_used_for_a_while_is_closed_and_the_next_call_opens_one(
    alice: Caller, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandboxes = place.gateway._sandboxes
    await alice.python("print(1)")
    await sandboxes.sweep()
    assert sandboxes.open_streams() == 1
    monkeypatch.setattr(service, "IDLE_CONNECTION", -1)
    await sandboxes.sweep()
    assert sandboxes.open_streams() == 0
    assert (await alice.python("print(2)")).stdout == "2\n"


async def test_stream_that_a_run_uses_stays(alice: Caller, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "IDLE_CONNECTION", -1)
    sandbox = (await alice.call("create_sandbox"))["sandbox"]
    code = "import time\nfor i in range(1000000):\n    time.sleep(0.01)"
    run = asyncio.create_task(alice.python(code, sandbox=sandbox))
    await until(lambda: place.gateway._sandboxes.running(sandbox) == 1)
    await place.gateway._sandboxes.sweep()
    assert place.gateway._sandboxes.open_streams() == 1
    await alice.call("close_sandbox", sandbox=sandbox, force=True)
    assert (await run).outcome == "cancelled"


async def test_stream_to_a_sandbox_that_is_gone_is_closed(alice: Caller, place: Place) -> None:
    sandbox = (await alice.python("print(1)")).sandbox
    await place.backend.delete(sandbox)
    await place.gateway._sandboxes.sweep()
    assert sandbox not in place.gateway._sandboxes._slots
