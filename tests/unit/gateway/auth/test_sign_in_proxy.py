"""Sign-in through the gateway: two gateways that share what it leaves, at a provider where clients can't register."""

import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import cycle
from pathlib import Path
from secrets import token_urlsafe
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import httpx2
import pytest
import pytest_asyncio

from fakes.backend import FakeBackend
from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.app import Gateway
from sandpod_gateway.auth.links import MemoryStore
from sandpod_gateway.auth.oidc.places import MemoryPlaces
from sandpod_gateway.auth.oidc.proxy import SignIn
from sandpod_gateway.auth.oidc.settings import OidcSettings
from sandpod_gateway.http.sign_in import MAX_BODY
from sandpod_gateway.settings import AuthSettings, LinkSettings, Settings
from support.gateway.fake_gateway import keys_file
from support.gateway.server import listening
from support.servers.issuer import Issuer, b64, provided

pytestmark = pytest.mark.asyncio(loop_scope="module")

PUBLIC = "http://localhost:1"
BACK = "http://127.0.0.1:7777/callback"
VERIFIER = "v" * 43
TAKEN = 400  # the caller is known, and {} is no message


class SharedBackend(FakeBackend):
    """The fake backend, with what gateways share of sign-ins."""

    def __init__(self, places: MemoryPlaces, key: MemoryStore) -> None:
        super().__init__()
        self._places, self._key_store = places, key

    def sign_in_places(self) -> MemoryPlaces:  # type: ignore[override]
        return self._places

    def sign_in_key_store(self) -> MemoryStore:  # type: ignore[override]
        return self._key_store


def consent(page: str) -> dict[str, str]:
    """Return the form of a consent page, agreed to."""
    return dict(re.findall(r'name="(txn_id|csrf_token)" value="([^"]+)"', page)) | {"action": "approve"}


@dataclass
class Team:
    """Two gateways behind one address, which take turns, and a browser."""

    issuer: Issuer
    gateways: list[Gateway]
    addresses: list[str]
    key: str
    places: MemoryPlaces
    http: httpx2.AsyncClient
    turns: Any = field(init=False)

    def __post_init__(self) -> None:
        self.turns = cycle(self.addresses)

    async def send(self, method: str, address: str, **request: Any) -> httpx2.Response:
        """Send a request to the team's address; it goes to the gateway whose turn it is."""
        if address.startswith(PUBLIC):
            address = next(self.turns) + address.removeprefix(PUBLIC)
        return await self.http.request(method, address, **request)

    async def register(self, **more: Any) -> httpx2.Response:
        body = {"redirect_uris": [BACK], "token_endpoint_auth_method": "none", "client_name": "a client"} | more
        return await self.send("POST", f"{PUBLIC}/register", json=body)

    async def begin(self, client: str, **more: str) -> httpx2.Response:
        query = {"client_id": client, "redirect_uri": BACK, "response_type": "code", "state": "s"}
        query |= {"code_challenge": b64(sha256(VERIFIER.encode()).digest()), "code_challenge_method": "S256"}
        query |= {"resource": f"{PUBLIC}/mcp"}
        return await self.send("GET", f"{PUBLIC}/authorize", params=query | more)

    async def sign_in(self, client: str) -> str:
        """Do what a client and its user do; return the code that leads back."""
        began = await self.begin(client)
        page = await self.send("GET", began.headers["location"])
        agreed = await self.send("POST", f"{PUBLIC}/consent", data=consent(page.text))
        signed_in = await self.send("GET", agreed.headers["location"])
        back = await self.send("GET", signed_in.headers["location"])
        query = dict(parse_qsl(urlsplit(back.headers["location"]).query))
        assert back.headers["location"].startswith(BACK)
        assert query["state"] == "s"
        return query["code"]

    async def exchange(self, client: str, **form: str) -> httpx2.Response:
        return await self.send("POST", f"{PUBLIC}/token", data={"client_id": client, **form})

    async def tokens(self, client: str) -> dict[str, Any]:
        code = await self.sign_in(client)
        found = await self.exchange(
            client, grant_type="authorization_code", code=code, redirect_uri=BACK, code_verifier=VERIFIER
        )
        assert found.status_code == 200, found.text
        tokens: dict[str, Any] = found.json()
        return tokens

    async def call(self, token: str) -> httpx2.Response:
        return await self.send("POST", f"{PUBLIC}/mcp", json={}, headers={"authorization": f"Bearer {token}"})


async def team_of(stack: AsyncExitStack, folder: Path, *, gateways: int = 2, **proxy: Any) -> Team:
    issuer = await stack.enter_async_context(provided())
    (folder / "secret").write_text("secret-of-the-client")
    path, [key] = keys_file(folder, "alice")
    endpoints = proxy.pop("endpoints", None)
    if endpoints:
        proxy["endpoints"] = {name: f"{issuer.address}/{at}" for name, at in endpoints.items()}
    more = {name: proxy.pop(name) for name in ("tenants", "user_claim", "required_claims") if name in proxy}
    oidc = OidcSettings.model_validate(
        {"issuer": issuer.address, "client_id": "sandpod", "client_secret_file": folder / "secret", "proxy": proxy}
        | more
    )
    settings = Settings(auth=AuthSettings(keys_file=path, oidc=oidc), links=LinkSettings(public_url=PUBLIC))
    places, key_store = MemoryPlaces(), MemoryStore()
    team = [Gateway(settings, SharedBackend(places, key_store)) for _ in range(gateways)]
    addresses = [await stack.enter_async_context(listening(each, settings)) for each in team]
    http = await stack.enter_async_context(httpx2.AsyncClient(timeout=60))
    return Team(issuer, team, addresses, key, places, http)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_team(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Team]:
    async with AsyncExitStack() as stack:
        yield await team_of(stack, tmp_path_factory.mktemp("team"))


@pytest.fixture
def team(shared_team: Team) -> Team:
    """The team, and a provider that works."""
    shared_team.issuer.claims = {}
    shared_team.issuer.sessions.clear()
    return shared_team


@pytest_asyncio.fixture(loop_scope="module")
async def client(team: Team) -> str:
    client: str = (await team.register()).json()["client_id"]
    return client


@pytest.mark.promise("sign-in-shared")
async def test_sign_in_goes_on_at_whichever_gateway_answers(team: Team, client: str) -> None:
    tokens = await team.tokens(client)
    for _ in team.addresses:
        assert (await team.call(tokens["access_token"])).status_code == TAKEN
    assert (await team.call(team.key)).status_code == TAKEN, "keys work beside it"
    asked = team.issuer.authorized[-1]
    assert (asked["client_id"], asked["scope"]) == ("sandpod", "openid")
    assert "resource" not in asked
    credentials, form = team.issuer.exchanged[-1]
    assert credentials is not None
    assert form["redirect_uri"] == f"{PUBLIC}/auth/callback"


@pytest.mark.promise("sign-in-shared")
async def test_codes_and_refresh_tokens_work_once(team: Team, client: str) -> None:
    code = await team.sign_in(client)
    form = {"grant_type": "authorization_code", "code": code, "redirect_uri": BACK}
    assert (await team.exchange(client, **form, code_verifier="w" * 43)).status_code == 401
    other = (await team.register(client_name="another")).json()["client_id"]
    assert (await team.exchange(other, **form, code_verifier=VERIFIER)).status_code == 401
    first = await team.exchange(client, **form, code_verifier=VERIFIER)
    assert first.status_code == 200
    assert (await team.exchange(client, **form, code_verifier=VERIFIER)).status_code == 401
    refresh = {"grant_type": "refresh_token", "refresh_token": first.json()["refresh_token"]}
    assert (await team.exchange(other, **refresh)).status_code == 401
    second = await team.exchange(client, **refresh)
    assert second.status_code == 200
    assert (await team.exchange(client, **refresh)).status_code == 401
    assert (await team.call(second.json()["access_token"])).status_code == TAKEN


@pytest.mark.promise("token-revoked")
async def test_session_that_its_client_ends_is_over_at_every_gateway(team: Team, client: str) -> None:
    tokens = await team.tokens(client)
    form = {"client_id": client, "client_secret": "", "token": tokens["access_token"]}
    assert (await team.send("POST", f"{PUBLIC}/revoke", data=form)).status_code == 200
    for _ in team.addresses:
        assert (await team.call(tokens["access_token"])).status_code == 401
    refresh = {"grant_type": "refresh_token", "refresh_token": tokens["refresh_token"]}
    assert (await team.exchange(client, **refresh)).status_code == 401
    assert not team.issuer.sessions, "at the provider too"


@pytest.mark.promise("tokens-verified")
async def test_token_that_no_gateway_made_is_refused_and_takes_no_room(team: Team, client: str) -> None:
    tokens = await team.tokens(client)
    head, body, code = tokens["access_token"].split(".")
    for gateway in team.gateways:
        gateway._auth._known.clear()  # type: ignore[union-attr]
    for wrong in (f"{head}.{body}.{code[:-4]}AAAA", tokens["refresh_token"], team.issuer.token(aud="sandpod"), "a.b.c"):
        assert (await team.call(wrong)).status_code == 401
    for gateway in team.gateways:
        assert isinstance(gateway._auth, SignIn)
        assert not gateway._auth._known._asked


@pytest.mark.promise("token-groups")
async def test_groups_of_the_id_token_count(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        team = await team_of(stack, tmp_path, gateways=1, tenants={"/red": "red"})
        client = (await team.register()).json()["client_id"]
        team.issuer.claims = {"groups": ["/green"]}
        refused = await team.call((await team.tokens(client))["access_token"])
        assert (refused.status_code, refused.json()["error"]["data"]["error"]) == (403, ErrorCode.FORBIDDEN)


@pytest.mark.parametrize("claims", [{"aud": "another"}, {"iss": "https://evil.example.com"}, {"exp": 1}], ids=str)
async def test_wrong_id_token_signs_nobody_in(team: Team, client: str, claims: dict[str, Any]) -> None:
    team.issuer.claims = claims
    tokens = await team.tokens(client)
    assert (await team.call(tokens["access_token"])).status_code == 401


async def test_provider_that_is_no_openid_connect_provider_says_who_signed_in(tmp_path: Path) -> None:
    endpoints = {"authorization": "authorize", "token": "token", "userinfo": "userinfo"}
    async with AsyncExitStack() as stack:
        bound = {"user_claim": "login", "required_claims": {"login": ("alice",)}}
        team = await team_of(stack, tmp_path, gateways=1, endpoints=endpoints, **bound)
        team.issuer.broken = "no configuration"
        client = (await team.register()).json()["client_id"]
        assert (await team.call((await team.tokens(client))["access_token"])).status_code == TAKEN
        team.issuer.user = "mallory"
        assert (await team.call((await team.tokens(client))["access_token"])).status_code == 401


@pytest.mark.promise("sign-in-shared")
async def test_nobody_is_led_to_an_address_that_was_not_registered(team: Team, client: str) -> None:
    for address in ("https://evil.example.com/callback", "http://127.0.0.1:7777/other", "javascript:alert(1)"):
        began = await team.begin(client, redirect_uri=address)
        assert began.status_code == 400
        assert "location" not in began.headers
    assert (await team.begin(client, redirect_uri=BACK.replace("7777", "8888"))).status_code == 302, "another port"
    for unknown in ("sandpod", client[:-4], "x", ""):
        assert (await team.begin(unknown)).status_code == 400


async def test_consent_is_of_the_browser_that_began(team: Team, client: str) -> None:
    began = await team.begin(client)
    page = await team.send("GET", began.headers["location"])
    agreed = await team.send("POST", f"{PUBLIC}/consent", data=consent(page.text))
    signed_in = await team.send("GET", agreed.headers["location"])
    async with httpx2.AsyncClient() as another:
        address = signed_in.headers["location"].replace(PUBLIC, team.addresses[0])
        assert (await another.get(address)).status_code == 403


async def test_provider_that_is_down_stops_sign_in_alone(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        team = await team_of(stack, tmp_path, gateways=1)
        team.issuer.broken = ""
        refused = await team.register()
        assert refused.status_code == 503
        assert refused.json()["error"] == ErrorCode.BACKEND_UNAVAILABLE
        assert refused.headers["retry-after"] == "5"
        assert (await team.call(team.key)).status_code == TAKEN


async def test_requests_of_sign_in_are_bounded(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    large = await team.register(client_name="x" * MAX_BODY)
    assert large.json()["error"] == ErrorCode.INVALID_ARGUMENT
    many = await team.register(redirect_uris=[f"http://127.0.0.1/{token_urlsafe(30)}" for _ in range(90)])
    assert (many.status_code, many.json()["error"]) == (400, "invalid_client_metadata")
    monkeypatch.setattr("sandpod_gateway.http.sign_in.PER_MINUTE", 0)
    answer = await team.send("GET", f"{PUBLIC}/consent")
    assert answer.status_code == 429
    assert answer.json()["error"] == ErrorCode.RATE_LIMITED
    assert answer.headers["retry-after"] == "60"


async def test_clients_are_led_to_the_gateway_to_sign_in(team: Team) -> None:
    refused = await team.send("POST", f"{PUBLIC}/mcp", json={})
    metadata = f"{PUBLIC}/.well-known/oauth-protected-resource/mcp"
    assert f'resource_metadata="{metadata}"' in refused.headers["www-authenticate"]
    found = (await team.send("GET", metadata)).json()
    assert [each.rstrip("/") for each in found["authorization_servers"]] == [PUBLIC]
    server = (await team.send("GET", f"{PUBLIC}/.well-known/oauth-authorization-server")).json()
    assert server["registration_endpoint"] == f"{PUBLIC}/register"
    assert server["token_endpoint_auth_methods_supported"] == ["none"]
