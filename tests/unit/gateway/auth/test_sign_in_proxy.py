"""Sign-in through the gateway: two gateways that share what it leaves, at a provider where clients can't register."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from secrets import token_urlsafe
from typing import Any

import httpx2
import pytest
import pytest_asyncio

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.auth.oidc.proxy import SignIn
from sandpod_gateway.http import attempts
from sandpod_gateway.http.sign_in import MAX_BODY
from support.gateway.sign_in import BACK, PUBLIC, TAKEN, VERIFIER, Team, consent
from support.gateway.sign_in import team_of as team_at
from support.servers.issuer import provided

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def team_of(stack: AsyncExitStack, folder: Path, **more: Any) -> Team:
    issuer = await stack.enter_async_context(provided())
    if endpoints := more.pop("endpoints", None):
        more["proxy"] = {"endpoints": {name: f"{issuer.address}/{at}" for name, at in endpoints.items()}}
    team = await team_at(stack, folder, issuer=issuer.address, **more)
    team.issuer = issuer
    return team


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


@pytest.fixture(autouse=True)
def _as_fast_as_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no refusal wait: these are many, of one address."""
    monkeypatch.setattr(attempts, "FREE", 10_000)


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
    assert len(asked["nonce"]) == 43, "some providers want one"
    credentials, form = team.issuer.exchanged[-1]
    assert credentials is not None
    assert form["redirect_uri"] == f"{PUBLIC}/auth/callback"


@pytest.mark.promise("attempts")
async def test_code_or_refresh_token_that_is_refused_counts_as_a_credential(team: Team, client: str) -> None:
    def refused() -> float:
        name = "sandpod_refused_credentials_total"
        return sum(gateway.metrics.registry.get_sample_value(name) or 0 for gateway in team.gateways)

    before = refused()
    form = {"grant_type": "authorization_code", "code": "none", "redirect_uri": BACK, "code_verifier": VERIFIER}
    assert (await team.exchange(client, **form)).status_code == 401
    assert (await team.exchange(client, grant_type="refresh_token", refresh_token="none")).status_code == 401
    assert refused() == before + 2


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


async def test_page_names_client_address_and_server_and_loads_nothing_from_elsewhere(team: Team, client: str) -> None:
    page = await team.send("GET", (await team.begin(client)).headers["location"])
    assert all(word in page.text for word in ("a client", BACK, "sandpod"))
    assert "img-src data:; frame-ancestors 'none'" in page.headers["content-security-policy"]


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
    bare = await team.send("GET", metadata.removesuffix("/mcp"), headers={"origin": "https://client.example"})
    assert (bare.status_code, bare.json()) == (200, found)
    assert bare.headers["access-control-allow-origin"] == "*"  # for clients in browsers
    assert [each.rstrip("/") for each in found["authorization_servers"]] == [PUBLIC]
    server = (await team.send("GET", f"{PUBLIC}/.well-known/oauth-authorization-server")).json()
    assert server["registration_endpoint"] == f"{PUBLIC}/register"
    assert server["token_endpoint_auth_methods_supported"] == ["none"]
