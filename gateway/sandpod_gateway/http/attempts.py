"""Slows down whoever's credentials are refused again and again: API keys, tokens, sign-ins and links.

A credential can't be guessed, but each attempt costs the server something, and a client that goes on with a key that
was revoked should not be served as fast as one whose key is valid. Valid credentials are never held up: many people may
share an address.
"""

import asyncio
import hashlib
import ipaddress
from collections import Counter
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final

from cachetools import TTLCache
from starlette.datastructures import Headers, MutableHeaders, QueryParams
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sandpod_gateway.http.mcp.peers import was_passed_on
from sandpod_gateway.metrics import Metrics

FREE: Final = 10  # refusals that are answered at once
FORGET: Final = 60.0  # seconds without a refusal after which an address or a credential begins anew
FIRST: Final = 0.1  # seconds that the next refusal waits; each one after it waits twice as long
LONGEST: Final = 5.0  # seconds
MAX_KNOWN: Final = 10_000  # addresses and credentials that are remembered, newest first
# Refusals that wait at a time. The connections of more are closed, so that none gets a next answer sooner than a new
# connection takes, and no address takes the places of others.
MAX_WAITING: Final = 1000
MAX_WAITING_OF_ONE: Final = 50  # of one address
_PREFIX: Final = 64  # bits of an IPv6 address that one customer gets
_LINKS: Final = ("/files/", "/archives/")  # where a credential is refused with 403: it is a link


@dataclass(eq=False)
class Attempts:
    """Counts refused credentials by address and by credential, and holds their answers for as long as they deserve."""

    app: ASGIApp
    metrics: Metrics
    _refused: TTLCache[str, int] = field(default_factory=lambda: TTLCache(MAX_KNOWN, FORGET), init=False)
    _waiting: Counter[str] = field(default_factory=Counter, init=False)  # by address

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        if scope["type"] != "http" or was_passed_on(scope):  # the other gateway counts its answer
            await self.app(scope, receive, send)
            return

        async def send_on(message: Message) -> None:
            if message["type"] == "http.response.start" and _is_refusal(scope, message["status"]):
                self.metrics.refused_credentials.inc()
                if not await self._hold(scope):
                    MutableHeaders(scope=message)["connection"] = "close"
            await send(message)

        await self.app(scope, receive, send_on)

    async def _hold(self, scope: Scope) -> bool:
        """Wait for as long as a refusal deserves; return False at once where too many wait already."""
        address, credential = _address(scope), _credential(scope)
        pause = self._count(address)
        if credential is not None:
            pause = max(pause, self._count(hashlib.sha256(credential.encode()).hexdigest()))
        if pause:
            if self._waiting[address] >= MAX_WAITING_OF_ONE or self._waiting.total() >= MAX_WAITING:
                return False
            self._waiting[address] += 1
            try:
                await asyncio.sleep(pause)
            finally:
                self._waiting -= Counter([address])  # keeps no zeros
        return True

    def _count(self, name: str) -> float:
        """Count a refusal; return for how many seconds it waits."""
        count = self._refused.get(name, 0) + 1
        self._refused[name] = count
        return 0.0 if count <= FREE else min(LONGEST, FIRST * 2 ** min(count - FREE - 1, 10))


def _is_refusal(scope: Scope, status: int) -> bool:
    """Return whether an answer of that status refuses the request's credential."""
    return status == HTTPStatus.UNAUTHORIZED or (status == HTTPStatus.FORBIDDEN and scope["path"].startswith(_LINKS))


def _address(scope: Scope) -> str:
    """Return the address that a request comes from; for one of IPv6, the network."""
    host = str((scope.get("client") or ("", 0))[0])
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host  # a socket that has no address
    if address.version == 6:  # noqa: PLR2004 - the protocol's name
        return str(ipaddress.ip_network((address, _PREFIX), strict=False))
    return host


def _credential(scope: Scope) -> str | None:
    """Return a request's credential, from wherever it may stand; None where there is none."""
    headers, query = Headers(scope=scope), QueryParams(scope["query_string"])
    if scope["path"].startswith(_LINKS):
        return query.get("token")
    return headers.get("authorization") or headers.get("x-api-key") or query.get("api_key")
