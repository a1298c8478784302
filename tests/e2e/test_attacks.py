"""Attacks on the runner in a pod hurt their own sandbox at most, which goes on."""

import pytest

from sandpod_gateway.verify.attacks import ATTACKS
from support.cluster.callers import Session
from support.cluster.cluster import Cluster


@pytest.mark.promise("runner-attacked")
@pytest.mark.parametrize("attack", ATTACKS)
async def test_program_that_attacks_the_runner_hurts_nobody(
    session: Session, other: str, sandbox: str, cluster: Cluster, attack: str
) -> None:
    before = await cluster.restarts()
    await session.python("open('kept', 'w').write('mine')", sandbox=sandbox)
    reply = await session.python(ATTACKS[attack], sandbox=other, timeout=30)
    assert reply.data.get("outcome") in {"ok", "error", "out_of_memory"}, reply
    # Whatever became of the process that carries the stream: nothing of the output is missing.
    assert reply["outcome"] != "ok" or reply["stdout"].endswith("done\n"), reply
    after = await session.python("print('alive')", sandbox=other)
    assert (after.error, after.data.get("stdout")) == (None, "alive\n"), after
    assert (await session.python("print(open('kept').read())", sandbox=sandbox))["stdout"] == "mine\n"
    assert await cluster.restarts() == before
