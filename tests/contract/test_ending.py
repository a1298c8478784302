"""A server that is told to end by a signal, and what becomes of its clients' requests."""

import asyncio
import os
import signal

import httpx2
import pytest

from support.cluster.server import serving
from support.gateway.peers import ACCEPT, INITIALIZE, PATIENCE
from support.gateway.served import LOCAL

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.needs_userns]

# It begins, waits to be told, and then goes on for longer than whoever ends streams takes to notice a signal.
CODE = """
import os, time
print('begun', flush=True)
while not os.path.exists('go'): time.sleep(0.01)
for number in range(100): print(number, flush=True); time.sleep(0.02)
"""


def call(tool: str, number: int, **arguments: object) -> dict[str, object]:
    params = {"name": tool, "arguments": arguments, "_meta": {"progressToken": number}}
    return {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}


@pytest.mark.promise("rolling-update")
async def test_calls_in_a_session_are_answered_after_the_signal_and_its_standing_stream_ends() -> None:
    async with (
        serving(*LOCAL, "--shutdown.calls=120", "--shutdown.drain=5") as (url, pid),
        httpx2.AsyncClient(headers=ACCEPT, timeout=PATIENCE) as client,
    ):
        answer = await client.post(url, json=INITIALIZE)
        client.headers["mcp-session-id"] = answer.headers["mcp-session-id"]
        client.headers["mcp-protocol-version"] = "2025-11-25"
        async with (
            client.stream("GET", url) as standing,
            client.stream("POST", url, json=call("run_python_code", 1, code=CODE)) as answer,
        ):
            lines = answer.aiter_lines()
            async for line in lines:
                if "begun" in line:
                    break
            os.kill(pid, signal.SIGTERM)
            told = await client.post(url, json=call("write_file", 2, path="go", text=""))
            assert '"isError":true' not in told.text
            result = [line async for line in lines if '"result"' in line]
            assert "99\\n" in result[0]
            async with asyncio.timeout(PATIENCE):
                assert [line async for line in standing.aiter_lines() if line.startswith("data")] == []
