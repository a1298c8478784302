"""A team's gateways, which share what sign-ins through them leave, and what a client and its user do."""

import re
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import cycle
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import httpx2

from fakes.backend import FakeBackend
from sandpod_gateway.app import Gateway
from sandpod_gateway.audit.settings import AuditSettings
from sandpod_gateway.auth.links import MemoryStore
from sandpod_gateway.auth.oidc.places import MemoryPlaces
from sandpod_gateway.auth.oidc.settings import OidcSettings
from sandpod_gateway.settings import AuthSettings, LinkSettings, Settings
from support.gateway.fake_gateway import keys_file
from support.gateway.server import listening
from support.servers.issuer import b64

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

    gateways: list[Gateway]
    addresses: list[str]
    key: str
    places: MemoryPlaces
    http: httpx2.AsyncClient
    issuer: Any = None  # the provider, where a test needs more than its pages
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

    async def at_provider(self, address: str) -> str:
        """Do what a user does at the provider's page; return where it leads. Here it asks nothing."""
        back: str = (await self.send("GET", address)).headers["location"]
        return back

    async def sign_in(self, client: str) -> str:
        """Do what a client and its user do; return the code that leads back."""
        began = await self.begin(client)
        page = await self.send("GET", began.headers["location"])
        agreed = await self.send("POST", f"{PUBLIC}/consent", data=consent(page.text))
        back = await self.send("GET", await self.at_provider(agreed.headers["location"]))
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


async def team_of(
    stack: AsyncExitStack,
    folder: Path,
    kind: type[Team] = Team,
    *,
    gateways: int = 2,
    audit: AuditSettings | None = None,
    **oidc: Any,
) -> Team:
    """Start a team's gateways with these settings of a provider, until the stack is left."""
    (folder / "secret").write_text("secret-of-the-client")
    path, [key] = keys_file(folder, "alice")
    own = {"client_id": "sandpod", "client_secret_file": folder / "secret", "proxy": {}}
    auth = AuthSettings(keys_file=path, oidc=OidcSettings.model_validate(own | oidc))
    settings = Settings(auth=auth, links=LinkSettings(public_url=PUBLIC), audit=audit or AuditSettings())
    places, key_store = MemoryPlaces(), MemoryStore()
    made = [Gateway(settings, SharedBackend(places, key_store)) for _ in range(gateways)]
    addresses = [await stack.enter_async_context(listening(each, settings)) for each in made]
    http = await stack.enter_async_context(httpx2.AsyncClient(timeout=60))
    return kind(made, addresses, key, places, http)
