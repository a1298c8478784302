"""Where a key may stand in a request, and what a client without one gets."""

import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import pytest
from fastmcp import Client
from fastmcp.client.transports import SSETransport

from fakes.backend import FakeBackend
from sandpod_gateway.app import Gateway
from sandpod_gateway.settings import AuthSettings, Settings
from support.gateway.fake_gateway import keys_file
from support.gateway.peers import ACCEPT, INITIALIZE, PING
from support.gateway.server import listening

PROBES = [
    ("GET", "/.well-known/oauth-protected-resource"),
    ("GET", "/.well-known/oauth-protected-resource/mcp"),
    ("GET", "/.well-known/oauth-authorization-server"),
    ("GET", "/.well-known/oauth-authorization-server/mcp"),
    ("GET", "/.well-known/openid-configuration"),
    ("GET", "/mcp/.well-known/oauth-protected-resource"),
    ("POST", "/register"),
    ("GET", "/authorize"),
    ("POST", "/token"),
]


@asynccontextmanager
async def served(folder: Path, *, allow_query_key: bool = False) -> AsyncIterator[tuple[httpx2.AsyncClient, str]]:
    path, [key] = keys_file(folder, "alice")
    settings = Settings(auth=AuthSettings(keys_file=path, allow_query_key=allow_query_key))
    async with (
        listening(Gateway(settings, FakeBackend()), settings) as address,
        httpx2.AsyncClient(base_url=address, headers=ACCEPT) as http,
    ):
        yield http, key


async def test_refusal_of_a_key_says_how_to_send_one(tmp_path: Path) -> None:
    async with served(tmp_path) as (http, _):
        for path in ("/mcp", "/sse"):
            method = "POST" if path == "/mcp" else "GET"
            for headers, scheme in (({}, "Bearer"), ({"x-api-key": "wrong"}, 'Bearer error="invalid_token"')):
                answer = await http.request(method, path, headers=headers, json=INITIALIZE)
                assert (answer.status_code, answer.headers["www-authenticate"]) == (401, scheme)
                assert answer.headers["content-type"] == "application/json"
                error = answer.json()["error"]
                assert error["data"]["error"] == "unauthorized"
                assert "`Authorization: Bearer KEY`" in error["message"]
                assert "`X-API-Key: KEY`" in error["message"]


@pytest.mark.parametrize("accept", ["*/*", "text/html"])
async def test_probes_for_sign_in_are_told_that_there_is_none(tmp_path: Path, accept: str) -> None:
    async with served(tmp_path) as (http, _):
        for method, path in PROBES:
            answer = await http.request(method, path, headers={"accept": accept})
            assert (answer.status_code, answer.headers["content-type"]) == (404, "application/json"), path
            assert answer.json()["error"] == "not_found"


async def test_key_is_taken_from_either_header(tmp_path: Path) -> None:
    async with served(tmp_path) as (http, key):
        for headers in ({"x-api-key": key}, {"authorization": f"bearer {key}"}):
            assert (await http.post("/mcp", json=INITIALIZE, headers=headers)).status_code == 200
        both = {"x-api-key": key, "authorization": "Bearer wrong"}
        assert (await http.post("/mcp", json=INITIALIZE, headers=both)).status_code == 401, "Bearer comes first"
        other = {"x-api-key": key, "authorization": "Basic YTpi"}
        assert (await http.post("/mcp", json=INITIALIZE, headers=other)).status_code == 200, "a proxy's own"


async def test_key_in_the_address_counts_only_where_the_settings_allow_it(tmp_path: Path) -> None:
    for allowed, status in ((False, 401), (True, 200)):
        async with served(tmp_path, allow_query_key=allowed) as (http, key):
            answer = await http.post(f"/mcp?api_key={key}", json=INITIALIZE)
            assert answer.status_code == status
            wrong = await http.post("/mcp?api_key=wrong", json=PING)
            assert wrong.status_code == 401


async def test_key_in_the_address_holds_for_the_messages_of_an_sse_session(tmp_path: Path) -> None:
    async with (
        served(tmp_path, allow_query_key=True) as (http, key),
        Client(SSETransport(f"{http.base_url}/sse?api_key={key}&tools=core")) as client,
    ):
        assert len(await client.list_tools()) == 8


async def test_key_in_the_address_is_never_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with served(tmp_path, allow_query_key=True) as (http, key):
        for path in ("/mcp", "/sse", "/nosuch", "/mcp/nosuch"):
            method = "GET" if path == "/sse" else "POST"
            async with http.stream(method, f"{path}?api_key={key}", content=json.dumps(PING)) as answer:
                assert answer.status_code
    ours = [record for record in caplog.records if not record.name.startswith(("httpx", "httpcore"))]
    assert ours
    assert not [record for record in ours if key in record.getMessage() + str(record.args)]
