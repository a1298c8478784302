"""Clients that sign in by themselves: a real provider, a real browser, FastMCP's client and the MCP SDK's.

Needs Chromium; without one these tests are left out, and say so, but fail where CI is set.
"""

import asyncio
import base64
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import httpx2
import pytest
import pytest_asyncio
from fastmcp import Client
from fastmcp.client.transports import StreamableHttpTransport
from mcp import ClientSession
from mcp.client.auth import OAuthClientProvider
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import AuthorizationCodeResult, OAuthClientInformationFull, OAuthClientMetadata, OAuthToken
from playwright.async_api import Browser
from pydantic import AnyUrl

from fakes.backend import FakeBackend
from sandpod import device_flow, endpoint
from sandpod.cli import login
from sandpod_gateway.app import Gateway
from sandpod_gateway.auth.oidc.settings import OidcSettings
from sandpod_gateway.settings import AuthSettings, LinkSettings, Settings
from support.command_line import client
from support.gateway.browser import ByBrowser, User, chromium, provider
from support.gateway.peers import call
from support.gateway.server import listening
from support.ports import free_port

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    # Of a client that ends with its test.
    pytest.mark.filterwarnings("ignore:Using in-memory token storage"),
]


@dataclass
class Place:
    """A server, and the provider where its users sign in."""

    address: str
    issuer: str
    browser: Browser


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    async with chromium() as browser:
        yield browser


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def place(browser: Browser) -> AsyncIterator[Place]:
    port = free_port()
    public = f"http://127.0.0.1:{port}"
    async with provider(f"{public}/mcp", free_port()) as issuer:
        oidc = OidcSettings(issuer=issuer, scopes=("run",))
        settings = Settings(port=port, auth=AuthSettings(oidc=oidc), links=LinkSettings(public_url=public))
        async with listening(Gateway(settings, FakeBackend()), settings, port=port):
            yield Place(public, issuer, browser)


async def test_fastmcps_client_signs_in_by_itself_and_each_user_has_sandboxes_of_their_own(place: Place) -> None:
    made = {}
    for user in ("alice", "bob"):
        auth = ByBrowser(User(user, place.browser))
        async with Client(StreamableHttpTransport(f"{place.address}/mcp", auth=auth)) as client:
            made[user] = (await call(client, "run_python_code", code="print(1)"))["sandbox"]
            assert [each["sandbox"] for each in (await call(client, "list_sandboxes"))["sandboxes"]] == [made[user]]
        await asyncio.gather(*auth.pages)
    assert made["alice"] != made["bob"]


@pytest.mark.promise("console-session", "sign-in-shared")
async def test_fastmcps_client_signs_in_through_a_gateway_where_it_can_not_register_with_the_provider(
    place: Place, tmp_path: Path
) -> None:
    port = free_port()
    public = f"http://127.0.0.1:{port}"
    wanted = {"redirect_uris": [f"{public}/auth/callback"], "token_endpoint_auth_method": "client_secret_basic"}
    async with httpx2.AsyncClient() as http:
        own = (await http.post(f"{place.issuer}/reg", json=wanted)).json()
    (tmp_path / "secret").write_text(own["client_secret"])
    client = {"client_id": own["client_id"], "client_secret_file": tmp_path / "secret", "proxy": {}}
    oidc = OidcSettings.model_validate({"issuer": place.issuer, **client})
    settings = Settings(port=port, auth=AuthSettings(oidc=oidc), links=LinkSettings(public_url=public))
    async with listening(Gateway(settings, FakeBackend()), settings, port=port):
        auth = ByBrowser(User("dora", place.browser))
        async with Client(StreamableHttpTransport(f"{public}/mcp", auth=auth)) as caller:
            assert (await call(caller, "run_python_code", code="print(1)"))["outcome"] == "ok"
        await asyncio.gather(*auth.pages)
        await signs_in_to_the_console(place, public)
        storage = Tokens()
        async with sdks_session(Place(public, place.issuer, place.browser), "erin", storage) as session:
            assert (await session.call_tool("list_sandboxes", {})).structured_content["sandboxes"] == []
            answer = await session.call_tool("run_python_code", {"code": "print(2)"})
            assert (answer.structured_content or {})["stdout"] == "2\n"
        assert storage.client is not None
        assert storage.client.client_id != own["client_id"], "it has registered with the gateway"


async def signs_in_to_the_console(place: Place, public: str) -> None:
    """Do what a user does who opens the console."""
    context = await place.browser.new_context()
    page = await context.new_page()
    await page.goto(f"{public}/console/connect")
    await page.click("text=Sign in with your organisation")
    await page.wait_for_url("**/consent?**")
    await User("dora", place.browser).agree(page)
    await page.wait_for_url("**/console/connect")
    await page.click("text=Sandboxes")
    await page.locator("#rows a").get_by_text("default").wait_for()  # what her other client has made
    assert await page.inner_text(".who-name") == "dora"
    cookies = {each["name"]: each["value"] for each in await context.cookies(public)}
    await page.click("text=Sign out")
    await page.wait_for_url("**/console/sign-in")
    async with httpx2.AsyncClient(cookies=cookies) as http:  # who has the cookie has nothing any more
        assert (await http.get(f"{public}/console/")).status_code == 303
        back = await http.get(f"{public}/console/sign-in/back?code=a&state=b")
        assert (back.status_code, "not begun in this browser" in back.text) == (403, True)
    await context.close()


class Tokens:
    """Keeps what the SDK's client gets; implements its `TokenStorage`."""

    def __init__(self) -> None:
        self.tokens: OAuthToken | None = None
        self.client: OAuthClientInformationFull | None = None

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.client = client_info


def sdks_sign_in(place: Place, user: str, storage: Tokens) -> OAuthClientProvider:
    backs: list[str] = []

    async def redirect(address: str) -> None:
        backs.append(await User(user, place.browser).sign_in(address, serves=False))

    async def callback() -> AuthorizationCodeResult:
        given = dict(parse_qsl(urlsplit(backs[-1]).query))
        return AuthorizationCodeResult(code=given["code"], state=given["state"], iss=given.get("iss"))

    metadata = OAuthClientMetadata(
        client_name="the SDK's client",
        redirect_uris=[AnyUrl("http://127.0.0.1:1/callback")],
        token_endpoint_auth_method="none",
    )
    return OAuthClientProvider(f"{place.address}/mcp", metadata, storage, redirect, callback)


@asynccontextmanager
async def sdks_session(place: Place, user: str, storage: Tokens) -> AsyncIterator[ClientSession]:
    async with (
        httpx2.AsyncClient(auth=sdks_sign_in(place, user, storage), timeout=60) as http,
        streamable_http_client(f"{place.address}/mcp", http_client=http) as (read, write, *_),
        ClientSession(read, write) as session,
    ):
        await session.initialize()
        yield session


async def test_the_mcp_sdks_client_signs_in_by_itself_and_its_token_is_for_this_server_alone(place: Place) -> None:
    storage = Tokens()
    async with sdks_session(place, "carol", storage) as session:
        answer = await session.call_tool("run_python_code", {"code": "print(1)"})
        assert (answer.structured_content or {})["stdout"] == "1\n"
    assert storage.tokens is not None
    claims = jwt_claims(storage.tokens.access_token)
    assert (claims["sub"], claims["aud"], claims["scope"]) == ("carol", f"{place.address}/mcp", "run")
    async with httpx2.AsyncClient() as http:
        spoilt = storage.tokens.access_token[:-6] + "AAAAAA"
        for token, status in ((storage.tokens.access_token, 400), (spoilt, 401)):
            headers = {"authorization": f"Bearer {token}"}
            assert (await http.post(f"{place.address}/mcp", json={}, headers=headers)).status_code == status


def jwt_claims(token: str) -> dict[str, Any]:
    body = token.split(".")[1]
    claims: dict[str, Any] = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    return claims


async def test_the_command_line_signs_in_from_a_terminal_and_renews_its_tokens(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SANDPOD_PROFILES", str(tmp_path / "profiles.json"))
    monkeypatch.setitem(sys.modules, "keyring", None)
    loop, told = asyncio.get_running_loop(), asyncio.Queue[str]()
    monkeypatch.setattr(login, "_tell", lambda address, _: loop.call_soon_threadsafe(told.put_nowait, address))
    with httpx2.Client() as http:
        client_id = await asyncio.to_thread(lambda: device_flow.find_provider(http, place.address, None))
    assert client_id is not None
    signing = asyncio.create_task(client("login", place.address, "--client-id", client_id.client_id))
    page = await (await place.browser.new_context()).new_page()
    await page.goto(await told.get())
    await page.click("button[type=submit]")  # the code is right
    await page.fill("[name=login]", "alice")
    await page.fill("[name=password]", "any")
    await page.click("button[type=submit]")
    await page.click("button[type=submit]")  # consents
    assert (await signing).code == 0
    await page.context.close()
    assert (await client("run", "-c", "print(1)")).code == 0
    profiles = endpoint.read_profiles().profiles
    [entry] = profiles.values()
    tokens = json.loads(entry["key"])
    endpoint.write_profile(next(iter(profiles)), {**entry, "key": json.dumps({**tokens, "expires": 0})}, default=True)
    assert len(json.loads((await client("ps", "--json")).out)) == 1
    assert json.loads(next(iter(endpoint.read_profiles().profiles.values()))["key"])["access"] != tokens["access"]
