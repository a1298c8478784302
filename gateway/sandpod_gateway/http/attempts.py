"""Slows down whoever's credentials are refused again and again.

A key can't be guessed, but each attempt costs the server something, and a client that goes on with a key that was
revoked should not be served as fast as one whose key is valid. Valid credentials are never held up: many people may
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
from starlette.types import Message, Scope, Send

from sandpod_gateway.metrics import Metrics

FREE: Final = 10  # refusals that are answered at once
FORGET: Final = 60.0  # seconds without a refusal after which an address or a credential begins anew
FIRST: Final = 0.1  # seconds that the next refusal waits; each one after it waits twice as long
LONGEST: Final = 5.0  # seconds
MAX_KNOWN: Final = 10_000  # addresses and credentials that are remembered, newest first
MAX_WAITING: Final = 100  # refusals that wait at a time; more are answered at once, so that connections don't pile up
_PREFIX: Final = 64  # bits of an IPv6 address that one customer gets


@dataclass(eq=False)
class Attempts:
    """Counts refused credentials by address and by credential."""

    metrics: Metrics
    _refused: TTLCache[str, int] = field(default_factory=lambda: TTLCache(MAX_KNOWN, FORGET), init=False)
    _waiting: Counter[None] = field(default_factory=Counter, init=False)

    def slowed(self, scope: Scope, send: Send) -> Send:
        """Return a `send` that holds a refusal of this request's credential for as long as it deserves."""

        async def send_on(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] == HTTPStatus.UNAUTHORIZED:
                await self._hold(scope)
            await send(message)

        return send_on

    async def _hold(self, scope: Scope) -> None:
        self.metrics.refused_credentials.inc()
        pause = max(self._count(name) for name in _names(scope))
        if pause and self._waiting[None] < MAX_WAITING:
            self._waiting[None] += 1
            try:
                await asyncio.sleep(pause)
            finally:
                self._waiting[None] -= 1

    def _count(self, name: str) -> float:
        """Count a refusal; return for how many seconds it waits."""
        count = self._refused.get(name, 0) + 1
        self._refused[name] = count
        return 0.0 if count <= FREE else min(LONGEST, FIRST * 2 ** min(count - FREE - 1, 10))


def _names(scope: Scope) -> list[str]:
    host = (scope.get("client") or ("", 0))[0]
    try:
        address = ipaddress.ip_address(host)
        if address.version == 6:  # noqa: PLR2004 - the protocol's name
            host = str(ipaddress.ip_network((address, _PREFIX), strict=False))
    except ValueError:
        pass  # a socket that has no address
    credential = next((value for name, value in scope["headers"] if name == b"authorization"), None)
    return [host] if credential is None else [host, hashlib.sha256(credential).hexdigest()]
