"""Headers that say whom a proxy speaks for: believed of trusted proxies alone."""

import ipaddress
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import httpx2
import pytest
from starlette.types import Receive, Scope, Send

from fakes.backend import FakeBackend
from sandpod_gateway.app import Gateway
from sandpod_gateway.errors import StartError
from sandpod_gateway.http import attempts
from sandpod_gateway.http.connections import config
from sandpod_gateway.http.forwarded import ForwardedHeaders
from sandpod_gateway.http.mcp.peers import Peers, PeerSettings
from sandpod_gateway.metrics import Metrics
from sandpod_gateway.settings import AuthSettings, Settings, load
from support.gateway.fake_gateway import keys_file
from support.gateway.peers import ENVELOPE, HEADERS

PROXIES: Final = [ipaddress.ip_network("10.0.0.0/8"), ipaddress.ip_network("2001:db8::/32")]
PROXY: Final = "10.0.0.1"
STRANGER: Final = "192.0.2.66"
NO_PEERS: Final = Peers(settings=PeerSettings(), metrics=Metrics(), port=1)


async def seen(address: str | None, *headers: tuple[str, str]) -> tuple[str | None, str]:
    """Return the client and the scheme that an app behind the proxies sees."""
    found: list[Scope] = []

    async def app(scope: Scope, _receive: Receive, _send: Send) -> None:
        found.append(scope)

    scope: dict[str, Any] = {"type": "http", "scheme": "http", "client": address and (address, 5)}
    scope["headers"] = [(name.encode(), value.encode("latin-1")) for name, value in headers]
    nothing: Any = None
    await ForwardedHeaders(app, PROXIES, NO_PEERS)(scope, nothing, nothing)
    assert found[0].keys() == {"type", "scheme", "client", "headers"}
    client = found[0]["client"]
    return client and client[0], found[0]["scheme"]


FOR: Final = "x-forwarded-for"
CASES: Final = {
    "one proxy": (PROXY, [(FOR, "198.51.100.7")], "198.51.100.7"),
    "with a port": (PROXY, [(FOR, "198.51.100.7:4711")], "198.51.100.7"),
    "IPv6": ("2001:db8::1", [(FOR, "[2001:db9::7]:4711")], "2001:db9::7"),
    "a chain of two": (PROXY, [(FOR, "198.51.100.7, 10.0.0.2")], "198.51.100.7"),
    "what the client itself sent before": (PROXY, [(FOR, "1.1.1.1, 198.51.100.7, 10.0.0.2")], "198.51.100.7"),
    "several headers": (PROXY, [(FOR, "1.1.1.1"), (FOR, "198.51.100.7"), (FOR, "10.0.0.2")], "198.51.100.7"),
    "a client beside the proxies": (PROXY, [(FOR, "10.0.0.9, 10.0.0.2")], "10.0.0.9"),
    "a stranger": (STRANGER, [(FOR, "198.51.100.7")], STRANGER),
    "a stranger who names a proxy": (STRANGER, [(FOR, f"198.51.100.7, {PROXY}")], STRANGER),
    "no address": (PROXY, [(FOR, "unknown")], PROXY),
    "rubbish": (PROXY, [(FOR, "\xff' OR 1=1--, 10.0.0.2")], PROXY),
    "very long rubbish": (PROXY, [(FOR, "a" * 60_000)], PROXY),
    "nothing": (PROXY, [(FOR, "")], PROXY),
    "nothing but commas": (PROXY, [(FOR, ",,,")], PROXY),
    "another header": (PROXY, [("forwarded", "for=198.51.100.7"), ("x-real-ip", "198.51.100.7")], PROXY),
    "no headers": (PROXY, [], PROXY),
    "a socket without addresses": (None, [(FOR, "198.51.100.7")], None),
}


@pytest.mark.promise("proxies")
@pytest.mark.parametrize(("address", "headers", "client"), CASES.values(), ids=CASES)
async def test_client_is_the_last_address_that_is_no_trusted_proxy(
    address: str | None, headers: list[tuple[str, str]], client: str | None
) -> None:
    assert await seen(address, *headers) == (client, "http")


@pytest.mark.promise("proxies")
@pytest.mark.parametrize(
    ("address", "value", "scheme"),
    [(PROXY, "https", "https"), (STRANGER, "https", "http"), (PROXY, "javascript", "http"), (PROXY, "", "http")],
)
async def test_scheme_is_what_a_trusted_proxy_says(address: str, value: str, scheme: str) -> None:
    assert await seen(address, ("x-forwarded-proto", value)) == (address, scheme)


@asynccontextmanager
async def calling(settings: Settings, address: str) -> AsyncIterator[httpx2.AsyncClient]:
    gateway = Gateway(settings, FakeBackend())
    app = gateway.http_app()
    transport = httpx2.ASGITransport(app=app, client=(address, 5))
    async with (
        gateway.running(),
        app.router.lifespan_context(app),
        httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as client,
    ):
        yield client


@pytest.mark.parametrize(("address", "scheme"), [(PROXY, "https"), (STRANGER, "http")])
async def test_links_have_the_scheme_that_a_trusted_proxy_serves(address: str, scheme: str) -> None:
    async with calling(Settings(trusted_proxies=PROXIES), address) as client:
        for name, arguments in (("write_file", {"path": "a", "text": "b"}), ("create_link", {"path": "a"})):
            params = {"name": name, "arguments": arguments, "_meta": ENVELOPE}
            body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
            headers = {**HEADERS, "mcp-name": name, "x-forwarded-proto": "https", "x-forwarded-host": "evil.example"}
            answer = await client.post("/mcp", json=body, headers=headers)
            assert answer.status_code == 200, answer.text
        url = answer.json()["result"]["structuredContent"]["url"]
    assert url.startswith(f"{scheme}://127.0.0.1:8000/files/")


@pytest.mark.promise("proxies")
@pytest.mark.parametrize(("address", "apart"), [(PROXY, True), (STRANGER, False)])
async def test_refusals_are_slowed_by_the_client_and_not_by_what_strangers_say(
    address: str, *, apart: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(attempts, "asyncio", SimpleNamespace(sleep=sleep))
    path, _ = keys_file(tmp_path, "alice")
    settings = Settings(host="0.0.0.0", auth=AuthSettings(keys_file=path), trusted_proxies=PROXIES)
    async with calling(settings, address) as client:
        for number in range(attempts.FREE + 2):
            headers = {"authorization": f"Bearer {number}", FOR: f"198.51.100.{number}"}
            assert (await client.post("/mcp", headers=headers)).status_code == 401
    assert (pauses == []) == apart


@pytest.mark.parametrize("value", ["*", "10.0.0.1/8", "proxy.example"])
def test_what_is_no_address_and_no_range_is_refused(value: str) -> None:
    with pytest.raises(StartError, match="trusted_proxies"):
        load(["--trusted-proxies", value], config=None, program="sandpod serve")


def test_the_server_itself_believes_nobody_whatever_its_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "*")
    assert not config(ForwardedHeaders(_nothing, (), NO_PEERS), most=1).proxy_headers


async def _nothing(_scope: Scope, _receive: Receive, _send: Send) -> None: ...
