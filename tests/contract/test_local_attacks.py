"""Attacks on the runner in local sandboxes hurt their own sandbox at most, and not even that. Real ones, all of them.

Needs user namespaces, as `test_local_isolation.py` does.
"""

import asyncio

import pytest

from sandpod_gateway.verify.attacks import ATTACKS
from support.gateway.probes import Box

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.needs_userns]


@pytest.mark.promise("local-apart")
@pytest.mark.parametrize("attack", ATTACKS)
async def test_program_that_attacks_the_runner_hurts_nobody(box: Box, victim: Box, attack: str) -> None:
    async with victim.talk() as peer:
        _, end = await asyncio.wait_for(peer.output(ATTACKS[attack]), 60)
        assert end.header["outcome"] in {"ok", "error", "out_of_memory", "output_limit"}, end
        await box.answers()
    await victim.answers()
    async with victim.talk() as peer:
        text, end = await peer.output("import os\nprint(sorted(os.listdir('/workspace')), os.path.isdir('/tmp'))")
    assert (text, end.header["outcome"]) == ("[] True\n", "ok")
