"""An OpenID Connect provider that signs whatever a test wants."""

import json
import time
from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from aiohttp import web
from aiohttp.test_utils import TestServer
from joserfc import jwt
from joserfc.jwk import ECKey
from joserfc.jws import JWSRegistry
from yarl import URL

from sandpod_gateway.auth.oidc.tokens import ALGORITHMS

if TYPE_CHECKING:
    import asyncio

AUDIENCE = "https://sandpod.example.com/mcp"
REGISTRY = JWSRegistry(algorithms=[*ALGORITHMS], strict_check_header=False)


def b64(raw: bytes) -> str:
    return urlsafe_b64encode(raw).rstrip(b"=").decode()


class Issuer:
    """A provider that publishes keys, and signs what a test wants."""

    def __init__(self) -> None:
        self.keys: list[Any] = [ECKey.generate_key("P-256", {"kid": "one"})]
        self.address = ""
        self.fetched = 0
        self.hangs: asyncio.Event | None = None  # until it is set, nothing is answered
        self.broken: str | None = None  # what it answers in place of its configuration
        self.broken_keys: str | None = None  # and of its keys
        self.introspection = '{"active": true}'
        self.introspected: list[tuple[str | None, dict[str, Any]]] = []  # credentials and form of each question
        self.user, self.claims = "alice", dict[str, Any]()  # who signs in, and more of the ID token
        self.code: str | None = None
        self.sessions: set[str] = set()  # refresh tokens
        self.authorized: list[dict[str, str]] = []  # queries
        self.exchanged: list[tuple[str | None, dict[str, Any]]] = []  # credentials and forms
        self.more: dict[str, Any] = {}  # of its configuration

    async def configuration(self, _: web.Request) -> web.Response:
        if self.hangs is not None:
            await self.hangs.wait()
        paths = {"authorization": "authorize", "token": "token", "introspection": "introspect", "revocation": "revoke"}
        found = {"issuer": self.address, "jwks_uri": f"{self.address}/jwks"}
        found |= {f"{name}_endpoint": f"{self.address}/{path}" for name, path in paths.items()} | self.more
        return web.Response(text=self.broken if self.broken is not None else json.dumps(found))

    async def jwks(self, _: web.Request) -> web.Response:
        self.fetched += 1
        keys = [key if isinstance(key, dict) else key.as_dict(private=False) for key in self.keys]
        return web.Response(text=self.broken_keys if self.broken_keys is not None else json.dumps({"keys": keys}))

    async def introspect(self, request: web.Request) -> web.Response:
        self.introspected.append((request.headers.get("authorization"), dict(await request.post())))
        return web.Response(text=self.introspection)

    async def authorize(self, request: web.Request) -> web.Response:
        """Sign `user` in without asking, and lead back."""
        self.authorized.append(dict(request.query))
        self.code = f"code-{len(self.authorized)}"
        back = URL(request.query["redirect_uri"]).with_query(code=self.code, state=request.query["state"])
        return web.Response(status=302, headers={"location": str(back)})

    async def exchange(self, request: web.Request) -> web.Response:
        """Give tokens for the code that was made last, or for a refresh token."""
        form = dict(await request.post())
        self.exchanged.append((request.headers.get("authorization"), form))
        challenge = b64(sha256(str(form.get("code_verifier", "")).encode()).digest())
        by_code = form.get("code") == self.code and challenge == self.authorized[-1]["code_challenge"]
        if not by_code and form.get("refresh_token") not in self.sessions:
            return web.json_response({"error": "invalid_grant"}, status=400)
        refresh = f"refresh-{len(self.exchanged)}"
        self.code, self.sessions = None, {*self.sessions, refresh}
        identity = self.token(**{"aud": "sandpod", "sub": self.user} | self.claims)
        found = {"access_token": f"access-{len(self.exchanged)}", "refresh_token": refresh, "id_token": identity}
        return web.json_response({**found, "token_type": "Bearer", "expires_in": 300, "scope": "openid"})

    async def revoke(self, request: web.Request) -> web.Response:
        self.sessions -= {str((await request.post())["token"])}
        return web.Response()

    async def userinfo(self, request: web.Request) -> web.Response:
        known = request.headers.get("authorization", "").startswith("Bearer access-") and self.sessions
        return web.json_response({"login": self.user}) if known else web.Response(status=401)

    def token(self, *, alg: str = "ES256", key: Any = None, header: dict[str, Any] | None = None, **claims: Any) -> str:
        """Return a token; claims that are None are left out."""
        now = int(time.time())
        whole = {"iss": self.address, "aud": AUDIENCE, "sub": "alice", "exp": now + 300, "iat": now} | claims
        signer = key or self.keys[0]
        head = {"alg": alg, "kid": signer.kid} | (header or {})
        head = {name: value for name, value in head.items() if value is not None}
        kept = {name: value for name, value in whole.items() if value is not None}
        return jwt.encode(head, kept, signer, registry=REGISTRY)


@asynccontextmanager
async def provided() -> AsyncIterator[Issuer]:
    issuer = Issuer()
    app = web.Application()
    app.router.add_get("/.well-known/openid-configuration", issuer.configuration)
    app.router.add_get("/jwks", issuer.jwks)
    app.router.add_get("/authorize", issuer.authorize)
    app.router.add_post("/token", issuer.exchange)
    app.router.add_post("/revoke", issuer.revoke)
    app.router.add_get("/userinfo", issuer.userinfo)
    app.router.add_post("/introspect", issuer.introspect)
    server = TestServer(app)
    await server.start_server()
    issuer.address = str(server.make_url("/")).rstrip("/")
    try:
        yield issuer
    finally:
        await server.close()
