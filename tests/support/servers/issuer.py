"""An OpenID Connect provider that signs whatever a test wants."""

import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer
from joserfc import jwt
from joserfc.jwk import ECKey
from joserfc.jws import JWSRegistry

from sandpod_gateway.auth.oidc import ALGORITHMS

AUDIENCE = "https://sandpod.example.com/mcp"
REGISTRY = JWSRegistry(algorithms=[*ALGORITHMS], strict_check_header=False)


class Issuer:
    """A provider that publishes keys, and signs what a test wants."""

    def __init__(self) -> None:
        self.keys: list[Any] = [ECKey.generate_key("P-256", {"kid": "one"})]
        self.address = ""
        self.fetched = 0
        self.broken: str | None = None  # what it answers in place of its configuration
        self.broken_keys: str | None = None  # and of its keys
        self.more: dict[str, Any] = {}  # of its configuration

    async def configuration(self, _: web.Request) -> web.Response:
        found = {"issuer": self.address, "jwks_uri": f"{self.address}/jwks"} | self.more
        return web.Response(text=self.broken if self.broken is not None else json.dumps(found))

    async def jwks(self, _: web.Request) -> web.Response:
        self.fetched += 1
        keys = [key if isinstance(key, dict) else key.as_dict(private=False) for key in self.keys]
        return web.Response(text=self.broken_keys if self.broken_keys is not None else json.dumps({"keys": keys}))

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
    server = TestServer(app)
    await server.start_server()
    issuer.address = str(server.make_url("/")).rstrip("/")
    try:
        yield issuer
    finally:
        await server.close()
