"""How peers are asked and timed, without any of them."""

import pytest

from bench.beside import Beside
from bench.peers import agent_sandbox
from bench.peers.plan import PeerError, Plan, per_second, said, timed

PLAN = Plan(image="sandbox:1", namespace="here", pods=["a", "b"], calls=2, fresh=1, megabytes=1, runs=3)


async def test_a_command_that_fails_or_says_something_else_is_an_error_that_names_it() -> None:
    assert await said("echo", "1", expect="1") == "1"
    with pytest.raises(PeerError, match=r"^echo 2 failed: 2$"):
        await said("echo", "2", expect="1")
    with pytest.raises(PeerError, match=r"^sh -c failed: no engine$"):
        await said("sh", "-c", "echo much before; echo no engine >&2; exit 3")
    with pytest.raises(PeerError, match=r"^/nothing/here can't be started: No such file"):
        await said("/nothing/here", "exec")


async def test_calls_before_the_first_that_counts_are_not_counted() -> None:
    called = []

    async def work() -> None:
        called.append(1)

    assert len(await timed(4, work, 2)) == 4
    assert len(called) == 6
    assert await per_second(5, [work, work]) > 0
    assert len(called) == 6 + 2 + 10


async def test_a_peer_that_is_not_there_is_left_out_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nothing")
    beside = Beside()
    assert [row async for row in beside.peers(["docker", "kubectl"], PLAN)] == []
    assert beside.left_out == {
        name: f"{name} can't be started: No such file or directory" for name in ("docker", "kubectl")
    }
    assert beside.versions == {}


def test_a_claim_counts_once_it_is_ready_and_a_pool_once_it_is_full() -> None:
    ready = [{"type": "Ready", "status": "True"}]
    assert agent_sandbox.is_ready({"status": {"conditions": ready}})
    assert not agent_sandbox.is_ready({"status": {"conditions": [{"type": "Ready", "status": "False"}]}})
    assert not agent_sandbox.is_ready({"status": {"conditions": [{"type": "Finished", "status": "True"}]}})
    assert not agent_sandbox.is_ready({})
    assert agent_sandbox.is_full({"status": {"readyReplicas": agent_sandbox.WARM}})
    assert not agent_sandbox.is_full({"status": {}})
