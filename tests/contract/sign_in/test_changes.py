"""What a real provider does meanwhile: it signs with new keys, revokes tokens, and goes down."""

import json
import re
from base64 import b64decode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

import httpx2
import pytest
import pytest_asyncio

from fakes.backend import FakeBackend
from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.app import Gateway
from sandpod_gateway.auth.callers import owner_of
from sandpod_gateway.auth.oidc.answers import Introspection
from sandpod_gateway.auth.oidc.claims import RefusedError
from sandpod_gateway.auth.oidc.provider import PAUSE, REFRESH, Provider
from sandpod_gateway.auth.oidc.settings import OidcSettings
from sandpod_gateway.auth.oidc.tokens import OidcVerifier
from sandpod_gateway.settings import AuthSettings, LinkSettings, Settings
from support.clock import Clock
from support.gateway.browser import provider
from support.gateway.fake_gateway import keys_file
from support.gateway.server import listening
from support.gateway.sign_in import TAKEN, VERIFIER
from support.ports import free_port
from support.servers.issuer import AUDIENCE, b64

pytestmark = pytest.mark.asyncio(loop_scope="module")

BACK: Final = "http://127.0.0.1:1/callback"


@dataclass
class Client:
    """A client of the provider, and its users."""

    issuer: str
    http: httpx2.AsyncClient
    own: dict[str, Any]  # its registration

    async def post(self, path: str, **form: str) -> dict[str, Any]:
        """Send a form as the client itself; the answer may be empty."""
        credentials = (self.own["client_id"], self.own["client_secret"])
        answer = await self.http.post(f"{self.issuer}{path}", data=form, auth=credentials)
        assert answer.status_code == 200, answer.text
        return answer.json() if answer.content else {}

    async def token(self, user: str) -> str:
        """Do what a user does with a browser; return the access token."""
        query = {"client_id": self.own["client_id"], "redirect_uri": BACK, "response_type": "code"}
        query |= {"code_challenge": b64(sha256(VERIFIER.encode()).digest()), "code_challenge_method": "S256"}
        answer = await self.http.get(f"{self.issuer}/auth", params=query | {"scope": "openid run"})
        forms = [{"prompt": "consent"}, {"prompt": "login", "login": user, "password": "any"}]
        while not (target := answer.headers.get("location", "")).startswith(BACK):
            if target:
                answer = await self.http.get(str(answer.url.join(target)))
            else:
                [action] = re.findall(r'<form[^>]* action="([^"]+)"', answer.text)
                answer = await self.http.post(action, data=forms.pop())
        self.http.cookies.clear()  # the next user has a browser of their own
        given = {"code": dict(parse_qsl(urlsplit(target).query))["code"], "redirect_uri": BACK}
        found = await self.post("/token", grant_type="authorization_code", code_verifier=VERIFIER, **given)
        return str(found["access_token"])


@asynccontextmanager
async def registered(issuer: str, name: str = "any") -> AsyncIterator[Client]:
    body = {"client_name": name, "redirect_uris": [BACK], "token_endpoint_auth_method": "client_secret_basic"}
    async with httpx2.AsyncClient(timeout=60) as http:
        yield Client(issuer, http, (await http.post(f"{issuer}/reg", json=body)).json())


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def issuer() -> AsyncIterator[str]:
    async with provider(AUDIENCE, free_port()) as address:
        yield address


def verifier_of(clock: Clock, **settings: Any) -> OidcVerifier:
    chosen = OidcSettings.model_validate(settings)
    from_it = Provider(chosen, clock)
    return OidcVerifier(chosen, AUDIENCE, from_it, Introspection(chosen, from_it, clock))


def asking(client: Client, clock: Clock, folder: Path, **settings: Any) -> OidcVerifier:
    """Return a verifier that asks the provider of tokens, as that client."""
    (folder / "secret").write_text(client.own["client_secret"])
    own = {"client_id": client.own["client_id"], "client_secret_file": folder / "secret"}
    return verifier_of(clock, issuer=client.issuer, **own, **settings)


@pytest.mark.promise("tokens-verified")
async def test_token_that_is_signed_with_a_new_key_is_taken_and_so_is_one_of_the_old_key(issuer: str) -> None:
    clock = Clock()
    verifier = verifier_of(clock, issuer=issuer, scopes=["run"])
    async with registered(issuer) as client:
        old = await client.token("alice")
        assert await verifier.verify(old) is not None
        assert (await client.http.post(f"{issuer}/rotate")).status_code == 200
    async with registered(issuer) as client:
        new = await client.token("bob")
    clock.now += PAUSE
    for token, user in ((new, "bob"), (old, "alice")):
        found = await verifier.verify(token)
        assert found is not None
        assert found.caller.owner == owner_of("", user)
    kids = {json.loads(b64decode(f"{token.split('.')[0]}==", b"-_"))["kid"] for token in (old, new)}
    assert len(kids) == 2


@pytest.mark.promise("token-revoked")
async def test_token_that_the_provider_revokes_is_refused_within_the_seconds_of_the_settings(
    issuer: str, tmp_path: Path
) -> None:
    clock = Clock()
    async with registered(issuer, "opaque") as client:
        asked = {"opaque": True, "remember_seconds": 20}
        verifier = asking(client, clock, tmp_path, introspection=asked, tenants={"red": "red"}, scopes=["run"])
        revoked, other = [await client.token(f"{user}@red") for user in ("alice", "bob")]
        found = await verifier.verify(revoked)
        assert found is not None
        assert found.caller.owner == owner_of("red", "alice@red")
        assert await verifier.verify(other) is not None
        await client.post("/token/revocation", token=revoked)
    clock.now += 20
    assert await verifier.verify(revoked) is None
    assert await verifier.verify(other) is not None
    assert await verifier.verify("x" * 43) is None


@pytest.mark.promise("token-revoked")
async def test_token_of_which_the_provider_says_nothing_is_refused(issuer: str, tmp_path: Path) -> None:
    async with registered(issuer) as client:
        token = await client.token("alice")
        assert await verifier_of(Clock(), issuer=issuer).verify(token) is not None
        with pytest.raises(RefusedError) as refused:  # it introspects no JWTs
            await asking(client, Clock(), tmp_path, introspection={}).verify(token)
    assert refused.value.error.code == ErrorCode.BACKEND_UNAVAILABLE


@pytest.mark.promise("tokens-while-down")
async def test_while_the_provider_is_down_keys_and_its_tokens_work(tmp_path: Path) -> None:
    path, [key] = keys_file(tmp_path, "alice")
    async with provider(AUDIENCE, free_port()) as issuer:
        async with registered(issuer) as client:
            token = await client.token("alice")
        oidc, clock = OidcSettings(issuer=issuer, scopes=("run",)), Clock()
        verifier = verifier_of(clock, issuer=issuer)
        links = LinkSettings(public_url=AUDIENCE.removesuffix("/mcp"))
        settings = Settings(auth=AuthSettings(keys_file=path, oidc=oidc), links=links)
        gateway = Gateway(settings, FakeBackend())
        assert gateway._auth is not None
        for each in (verifier.verify, gateway._auth.verify_token):
            assert await each(token) is not None
    clock.now += REFRESH
    assert await verifier.verify(token) is not None
    assert verifier._provider.refreshing is not None
    await verifier._provider.refreshing  # which fails
    assert await verifier.verify(token) is not None
    async with listening(gateway, settings) as address, httpx2.AsyncClient(base_url=address) as http:
        for credential, status in ((key, TAKEN), (token, TAKEN), (f"{token[:-4]}AAAA", 401)):
            headers = {"authorization": f"Bearer {credential}"}
            assert (await http.post("/mcp", json={}, headers=headers)).status_code == status
