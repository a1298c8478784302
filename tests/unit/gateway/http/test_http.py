"""The plain HTTP side: keys, Host and Origin, both spellings of the endpoint, health and metrics."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from fakes.backend import FakeBackend
from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.app import Gateway
from sandpod_gateway.cli import serve
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.http import connections, routes
from sandpod_gateway.settings import AuthSettings, Settings
from support.gateway.fake_gateway import keys_file
from support.gateway.peers import ENVELOPE, HEADERS, until

CALL = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "tools/call",
    "params": {
        "name": "run_python_code",
        "arguments": {"code": "print(1)"},
        "_meta": ENVELOPE,
    },
}


@asynccontextmanager
async def serving(settings: Settings, backend: FakeBackend, host: str = "127.0.0.1:8000") -> AsyncIterator[Any]:
    gateway = Gateway(settings, backend)
    app = gateway.http_app()
    transport = httpx2.ASGITransport(app=app)
    async with (
        gateway.running(),
        app.router.lifespan_context(app),
        httpx2.AsyncClient(transport=transport, base_url=f"http://{host}", follow_redirects=False) as client,
    ):
        yield client


@pytest.fixture
def keyed(tmp_path: Path) -> tuple[Settings, str]:
    path, [key] = keys_file(tmp_path, "alice")
    return Settings(host="0.0.0.0", auth=AuthSettings(keys_file=path)), key


@pytest.mark.promise("urls-and-hosts")
@pytest.mark.parametrize("path", ["/mcp", "/mcp/"])
async def test_both_spellings_of_the_endpoint_answer_without_a_redirect(path: str) -> None:
    async with serving(Settings(), FakeBackend()) as client:
        answer = await client.post(path, json=CALL, headers={**HEADERS, "x-forwarded-proto": "https"})
    assert answer.status_code == 200
    assert "1\\n" in answer.text


async def test_without_a_key_nothing_is_answered_and_nothing_is_made(keyed: tuple[Settings, str]) -> None:
    backend = FakeBackend()
    settings, key = keyed
    async with serving(settings, backend) as client:
        for header in ({}, {"authorization": "Bearer wrong"}, {"authorization": f"Basic {key}"}):
            answer = await client.post("/mcp", json=CALL, headers={**HEADERS, **header})
            assert answer.status_code == 401
            assert answer.headers["www-authenticate"].startswith("Bearer")
        assert backend.launcher.cells == []
        answer = await client.post("/mcp", json=CALL, headers={**HEADERS, "authorization": f"Bearer {key}"})
        assert answer.status_code == 200
        assert len(await backend.list("user:alice")) == 1


@pytest.mark.promise("urls-and-hosts")
async def test_another_web_page_can_not_call_a_server_without_keys() -> None:
    async with serving(Settings(), FakeBackend()) as client:
        foreign = await client.post("/mcp", json=CALL, headers={**HEADERS, "origin": "https://evil.example"})
        rebound = await client.post("/mcp", json=CALL, headers={**HEADERS, "host": "evil.example:8000"})
    assert (foreign.status_code, rebound.status_code) == (403, 421)


@pytest.mark.promise("urls-and-hosts")
async def test_a_server_with_keys_takes_any_host_and_only_known_origins(keyed: tuple[Settings, str]) -> None:
    settings, key = keyed
    settings = settings.model_copy(update={"allowed_origins": ["https://console.example"]})
    bearer = {"authorization": f"Bearer {key}", "host": "sandpod.example"}
    async with serving(settings, FakeBackend()) as client:
        foreign = await client.post("/mcp", json=CALL, headers={**HEADERS, **bearer, "origin": "https://evil.example"})
        known = await client.post("/mcp", json=CALL, headers={**HEADERS, **bearer, "origin": "https://console.example"})
    assert (foreign.status_code, known.status_code) == (403, 200)


@pytest.mark.promise("urls-and-hosts")
async def test_health_of_a_server_with_keys_answers_whatever_the_host(keyed: tuple[Settings, str]) -> None:
    async with serving(keyed[0], FakeBackend()) as client:
        for path in ("/healthz", "/readyz"):
            answer = await client.get(path, headers={"host": "10.244.0.5:8000"})
            assert answer.status_code == 200


@pytest.mark.promise("urls-and-hosts")
async def test_server_that_lets_anybody_in_by_choice_answers_for_its_hosts_alone_and_keeps_its_metrics() -> None:
    settings = Settings(host="0.0.0.0", auth=AuthSettings(allow_anonymous=True), allowed_hosts=["sandpod.example"])
    async with serving(settings, FakeBackend(), host="sandpod.example") as client:
        called = await client.post("/mcp", json=CALL, headers=HEADERS)
        rebound = await client.post("/mcp", json=CALL, headers={**HEADERS, "host": "evil.example"})
        foreign = await client.post("/mcp", json=CALL, headers={**HEADERS, "origin": "https://evil.example"})
        probed = await client.get("/healthz", headers={"host": "10.244.0.5:8000"})
        metrics = await client.get("/metrics")
    answers = (called, rebound, foreign, probed, metrics)
    assert [each.status_code for each in answers] == [200, 421, 403, 200, 404]


async def test_metrics_of_a_server_with_keys_are_on_a_port_of_their_own(keyed: tuple[Settings, str]) -> None:
    gateway = Gateway(keyed[0], FakeBackend())
    with serve._listen("127.0.0.1", 0, flag="--metrics-port") as listener:
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        async with (
            gateway.running(),
            connections.serving(gateway.metrics_app(), listener, most=4),
            httpx2.AsyncClient() as client,
        ):
            answer = await client.get(f"{address}/metrics")
            assert 'sandpod_runs_total{language="python",outcome="ok"} 0.0' in answer.text
            assert (await client.post(f"{address}/mcp", json=CALL)).status_code == 404
    async with serving(keyed[0], FakeBackend()) as client:
        assert (await client.get("/metrics")).status_code == 404


async def test_metrics_leave_the_main_port_for_one_that_is_set() -> None:
    for port, status in ((None, 200), (0, 404)):
        async with serving(Settings(metrics_port=port), FakeBackend()) as client:
            assert (await client.get("/metrics")).status_code == status


async def test_another_web_page_can_not_read_health_and_metrics_of_a_server_without_keys() -> None:
    async with serving(Settings(), FakeBackend()) as client:
        for path in ("/healthz", "/readyz", "/metrics"):
            assert (await client.get(path)).status_code == 200
            assert (await client.get(path, headers={"host": "evil.example:8000"})).status_code == 421
            assert (await client.get(path, headers={"origin": "https://evil.example"})).status_code == 403


async def test_the_backend_is_asked_once_for_all_who_ask_whether_it_is_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = FakeBackend()
    asked = 0
    going_on = asyncio.Event()

    async def check() -> None:
        nonlocal asked
        asked += 1
        await going_on.wait()

    monkeypatch.setattr(backend, "check", check)
    monkeypatch.setattr(routes, "CHECK_SECONDS", 3600.0)
    async with serving(Settings(), backend) as client:
        waiting = [asyncio.create_task(client.get("/readyz")) for _ in range(20)]
        await until(lambda: asked > 0)
        going_on.set()
        assert [answer.status_code for answer in await asyncio.gather(*waiting)] == [200] * 20
        assert (await client.get("/readyz")).status_code == 200
        assert asked == 1


async def test_a_page_of_a_known_origin_may_ask_and_call_and_no_other(keyed: tuple[Settings, str]) -> None:
    settings, key = keyed
    settings = settings.model_copy(update={"allowed_origins": ["https://console.example"]})
    asks = {
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization, content-type, mcp-protocol-version, mcp-method, mcp-name",
    }
    known = {"origin": "https://console.example"}
    async with serving(settings, FakeBackend()) as client:
        for path in ("/mcp", "/sse", "/messages/"):
            answer = await client.options(path, headers={**asks, **known})
            assert answer.status_code == 200
            assert answer.headers["access-control-allow-origin"] == known["origin"]
            assert "POST" in answer.headers["access-control-allow-methods"]
            assert "authorization" in answer.headers["access-control-allow-headers"]
            foreign = await client.options(path, headers={**asks, "origin": "https://evil.example"})
            assert foreign.status_code == 400
            assert "access-control-allow-origin" not in foreign.headers
        uploads = {"access-control-request-method": "PUT", "access-control-request-headers": "content-type"}
        for path in ("/files/s/a.bin?token=x", "/archives/s.zip?token=x"):
            answer = await client.options(path, headers={**uploads, **known})
            assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, known["origin"])
            assert "PUT" in answer.headers["access-control-allow-methods"]
            answer = await client.get(path, headers=known)
            assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (403, known["origin"])
            foreign = await client.get(path, headers={"origin": "https://evil.example"})
            assert "access-control-allow-origin" not in foreign.headers
        bearer = {"authorization": f"Bearer {key}"}
        answer = await client.post("/mcp", json=CALL, headers={**HEADERS, **bearer, **known})
        assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, known["origin"])
        assert "mcp-session-id" in answer.headers["access-control-expose-headers"]
    async with serving(keyed[0], FakeBackend()) as client:
        answer = await client.options("/mcp", headers={**asks, **known})
        assert "access-control-allow-origin" not in answer.headers


async def test_a_backend_that_can_not_be_reached_makes_the_server_unready(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = FakeBackend()

    async def unreachable() -> None:
        raise SandpodError(ErrorCode.BACKEND_UNAVAILABLE, "The cluster can't be reached.", next_step="Look at it.")

    monkeypatch.setattr(backend, "check", unreachable)
    async with serving(Settings(), backend) as client:
        answer = await client.get("/readyz")
        assert answer.status_code == 503
        assert answer.json()["error"] == "backend_unavailable"
        assert (await client.get("/healthz")).status_code == 200


async def test_broken_utf8_and_broken_json_are_client_errors() -> None:
    async with serving(Settings(), FakeBackend()) as client:
        for body in (b"{", b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"\xff\xfe"}}', b"", b"[]"):
            answer = await client.post("/mcp", content=body, headers={**HEADERS, "content-type": "application/json"})
            assert 400 <= answer.status_code < 500


async def test_a_bug_is_told_without_its_text(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = FakeBackend()

    async def broken(_owner: str) -> None:
        raise RuntimeError("password=hunter2")

    monkeypatch.setattr(backend, "list", broken)
    async with serving(Settings(), backend) as client:
        answer = await client.post("/mcp", json=CALL, headers=HEADERS)
    assert "hunter2" not in answer.text
    assert "backend_error" in answer.text
