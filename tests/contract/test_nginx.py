"""The gateway behind a real proxy, nginx with the settings of examples/proxies/nginx.conf.

Without nginx these tests are left out, and say so, but fail where CI is set.
"""

from ipaddress import ip_network
from pathlib import Path
from typing import Any, Final

import httpx2
import pytest
from fastmcp import Client
from fastmcp.client.transports import SSETransport, StreamableHttpTransport
from mcp.server import _streamable_http_modern

from fakes.backend import FakeBackend
from sandpod_gateway.app import Gateway
from sandpod_gateway.settings import Settings
from support.gateway.peers import ENVELOPE, HEADERS
from support.gateway.server import listening
from support.gateway.team import team
from support.gateway.terminal import terminal
from support.servers.nginx import nginx

SPEAKS_ONCE: Final = "import time\nprint('begun')\nfor i in range(1000000):\n    time.sleep(0.01)"


def call(name: str, meta: dict[str, Any] | None = None, **arguments: Any) -> dict[str, Any]:
    params = {"name": name, "arguments": arguments, "_meta": {**ENVELOPE, **(meta or {})}}
    return {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}


@pytest.mark.promise("heartbeat")
async def test_output_passes_while_a_program_runs_and_its_silence_outlasts_the_proxys_patience(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_streamable_http_modern, "_SSE_PING_INTERVAL", 0.1)
    settings, pings = Settings(trusted_proxies=[ip_network("127.0.0.1")]), 0
    async with listening(Gateway(settings, FakeBackend()), settings) as address:
        with nginx(tmp_path, address.removeprefix("http://"), patience="1s") as proxy:
            async with httpx2.AsyncClient(base_url=proxy.address, verify=proxy.trust, timeout=30) as client:
                body = call("run_python_code", {"progressToken": 1}, code=SPEAKS_ONCE)
                async with client.stream("POST", "/mcp", json=body, headers=HEADERS) as answer:
                    lines = answer.aiter_lines()
                    async for line in lines:
                        if "begun" in line:
                            break
                    async for line in lines:
                        pings += line.startswith(": ping")
                        if pings == 20:  # twice as long as nginx waits
                            break
    assert pings == 20


async def test_links_have_the_proxys_address_and_strangers_are_kept_out_behind_it_too(tmp_path: Path) -> None:
    settings = Settings(trusted_proxies=[ip_network("127.0.0.1")])
    async with listening(Gateway(settings, FakeBackend()), settings) as address:
        with nginx(tmp_path, address.removeprefix("http://")) as proxy:
            async with httpx2.AsyncClient(base_url=proxy.address, verify=proxy.trust, timeout=30) as client:
                write, link = call("write_file", path="a", text="b"), call("create_link", path="a")
                await client.post("/mcp", json=write, headers={**HEADERS, "mcp-name": "write_file"})
                answer = await client.post("/mcp", json=link, headers={**HEADERS, "mcp-name": "create_link"})
                url = answer.json()["result"]["structuredContent"]["url"]
                assert url.startswith(f"{proxy.address}/files/")
                assert (await client.get(url)).text == "b"
                for header, status in (({"origin": "https://evil.example"}, 403), ({"host": "evil.example"}, 421)):
                    answer = await client.post("/mcp", json=link, headers={**HEADERS, **header})
                    assert answer.status_code == status
            async with terminal(proxy.address, trust=proxy.trust, cols=0) as socket:  # which the gateway itself refuses
                assert (await socket.last())[1] == 1008


@pytest.mark.parametrize("kind", [StreamableHttpTransport, SSETransport])
async def test_older_clients_work_behind_a_proxy_whose_gateways_take_turns(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: type[Any]
) -> None:
    async with team(monkeypatch, trusted_proxies=[ip_network("127.0.0.1")]) as made:
        members = await made.both()
        with nginx(tmp_path, *(each.address.removeprefix("http://") for each in members)) as proxy:
            address = f"{proxy.address}/{'sse' if kind is SSETransport else 'mcp'}"
            async with Client(kind(address, verify=proxy.trust), mode="legacy") as client:
                for number in range(6):
                    result = await client.call_tool("run_python_code", {"code": f"print({number})"})
                    assert result.structured_content is not None
                    assert result.structured_content["stdout"] == f"{number}\n"
    assert sorted(len(each.backend.launcher.cells) for each in members) == [0, 1]
    assert sum(each.passed_on() for each in members) > 1, "no request came to the other gateway"
