"""A server with a provider: what it tells clients, whom it takes, and what tokens share with keys."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest
from fastmcp import Client
from fastmcp.client.transports import StreamableHttpTransport

from fakes.backend import FakeBackend
from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.app import Gateway
from sandpod_gateway.auth.oidc.settings import OidcSettings
from sandpod_gateway.errors import StartError
from sandpod_gateway.settings import AuthSettings, LinkSettings, Settings
from support.gateway.fake_gateway import keys_file
from support.gateway.peers import call
from support.gateway.server import listening
from support.servers.issuer import AUDIENCE, Issuer, provided

PUBLIC = AUDIENCE.removesuffix("/mcp")


@dataclass
class Server:
    address: str
    issuer: Issuer
    key: str  # alice's

    @asynccontextmanager
    async def caller(self, credential: str) -> AsyncIterator[Client[Any]]:
        async with Client(StreamableHttpTransport(f"{self.address}/mcp", auth=credential)) as client:
            yield client


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    path, [key] = keys_file(tmp_path, "alice")
    async with provided() as issuer:
        oidc = OidcSettings(issuer=issuer.address, scopes=("run",))
        settings = Settings(auth=AuthSettings(keys_file=path, oidc=oidc), links=LinkSettings(public_url=PUBLIC))
        async with listening(Gateway(settings, FakeBackend()), settings) as address:
            yield Server(address, issuer, key)


async def test_client_without_a_token_learns_where_users_sign_in(server: Server) -> None:
    async with httpx2.AsyncClient() as http:
        refused = await http.post(f"{server.address}/mcp", json={})
        challenge = refused.headers["www-authenticate"]
        assert refused.status_code == 401
        metadata = f"{PUBLIC}/.well-known/oauth-protected-resource/mcp"
        assert f'resource_metadata="{metadata}"' in challenge
        assert 'scope="run"' in challenge
        found = (await http.get(server.address + urlsplit(metadata).path)).json()
        bare = await http.get(server.address + urlsplit(metadata).path.removesuffix("/mcp"))
    assert (bare.status_code, bare.json()) == (200, found), "RFC 9728's other spelling"
    assert found["resource"] == AUDIENCE
    assert found["authorization_servers"] == [server.issuer.address]
    assert found["scopes_supported"] == ["run"]


@pytest.mark.promise("tokens-verified")
async def test_token_is_taken_and_a_wrong_one_is_not(server: Server) -> None:
    async with server.caller(server.issuer.token(scope="run")) as client:
        assert (await call(client, "run_python_code", code="print(1)"))["outcome"] == "ok"
    async with httpx2.AsyncClient() as http:
        for wrong in (server.issuer.token(scope="run", aud="other"), server.issuer.token(scope="walk"), "a.b.c"):
            answer = await http.post(f"{server.address}/mcp", json={}, headers={"authorization": f"Bearer {wrong}"})
            assert answer.status_code == 401


async def test_key_and_token_of_a_user_share_the_users_sandboxes_and_no_others(server: Server) -> None:
    async with server.caller(server.key) as by_key, server.caller(server.issuer.token(scope="run")) as by_token:
        made = await call(by_key, "create_sandbox", name="mine")
        assert (await call(by_token, "get_sandbox", sandbox="mine"))["sandbox"] == made["sandbox"]
    async with server.caller(server.issuer.token(scope="run", sub="bob")) as bob:
        assert (await call(bob, "get_sandbox", sandbox=made["sandbox"]))["error"] == ErrorCode.SESSION_NOT_FOUND
        assert (await call(bob, "list_sandboxes"))["sandboxes"] == []


@pytest.mark.promise("token-groups")
async def test_user_without_a_tenant_gets_a_coded_refusal_in_every_transport() -> None:
    async with provided() as issuer:
        oidc = OidcSettings(issuer=issuer.address, tenants={"/red": "red"})
        settings = Settings(auth=AuthSettings(oidc=oidc), links=LinkSettings(public_url=PUBLIC))
        async with listening(Gateway(settings, FakeBackend()), settings) as address, httpx2.AsyncClient() as http:
            headers = {"authorization": f"Bearer {issuer.token(groups=['/green'])}"}
            for answer in (
                await http.post(f"{address}/mcp", json={}, headers=headers),
                await http.get(f"{address}/sse", headers=headers),
            ):
                assert answer.status_code == 403
                assert answer.json()["error"]["data"]["error"] == ErrorCode.FORBIDDEN
                assert "no group that leads to a tenant" in answer.json()["error"]["message"]


async def test_link_of_a_user_who_signed_in_opens_that_users_file_alone(server: Server) -> None:
    async with server.caller(server.issuer.token(scope="run")) as alice, httpx2.AsyncClient() as http:
        await call(alice, "write_file", path="a.txt", text="mine")
        link = urlsplit((await call(alice, "create_link", path="a.txt"))["url"])
        opened = await http.get(f"{server.address}{link.path}?{link.query}")
        assert (opened.status_code, opened.text) == (200, "mine")
        async with server.caller(server.issuer.token(scope="run", sub="bob")) as bob:
            theirs = await call(bob, "write_file", path="a.txt", text="theirs")
        elsewhere = link.path.replace(link.path.split("/")[2], theirs["sandbox"])
        assert (await http.get(f"{server.address}{elsewhere}?{link.query}")).status_code == 403


def test_provider_without_a_public_address_is_refused_at_start() -> None:
    settings = Settings(auth=AuthSettings(oidc=OidcSettings(issuer="https://login.example.com")))
    with pytest.raises(StartError) as refused:
        Gateway(settings, FakeBackend())
    assert "links.public_url" in refused.value.next_step


def test_sign_in_without_encryption_is_refused_at_start(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("a")
    own = {"client_id": "a", "client_secret_file": tmp_path / "secret", "proxy": {}}
    oidc = OidcSettings.model_validate({"issuer": "https://login.example.com", **own})
    links = LinkSettings(public_url="http://sandpod.example.com")
    with pytest.raises(StartError, match="https://"):
        Gateway(Settings(auth=AuthSettings(oidc=oidc), links=links), FakeBackend())


def test_secret_that_can_not_be_read_is_named_at_start(tmp_path: Path) -> None:
    oidc = OidcSettings.model_validate(
        {"issuer": "https://login.example.com", "client_id": "a", "client_secret_file": tmp_path / "none", "proxy": {}}
    )
    settings = Settings(auth=AuthSettings(oidc=oidc), links=LinkSettings(public_url=PUBLIC))
    with pytest.raises(StartError, match="client_secret_file"):
        Gateway(settings, FakeBackend())
