"""What an OpenID Connect provider publishes, its configuration and its keys, and requests to it.

The provider is asked when a token needs it, not at start: API keys work without it, and so do tokens whose signing key
is known. Nobody can make the gateway ask it more often than every few seconds, and a token whose key is known never
waits for it.
"""

import asyncio
import json
import logging
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import httpx2
from joserfc.errors import JoseError
from joserfc.jwk import KeySet

from sandpod_gateway.auth.oidc.settings import OidcSettings

logger = logging.getLogger(__name__)

REFRESH: Final = 3600.0  # seconds after which published keys are fetched again
PAUSE: Final = 10.0  # seconds between two fetches
RETIRE: Final = 86_400.0  # seconds for which keys are used while the provider can't be reached
FETCH_SECONDS: Final = 5.0
MAX_DOCUMENT: Final = 2**20  # bytes
UNUSABLE: Final = (JoseError, ValueError, LookupError, TypeError, AttributeError)
"""What comes of a document that is not what it should be."""
UNREACHABLE: Final = (httpx2.HTTPError, httpx2.InvalidURL, OSError, *UNUSABLE)
"""What a request to a provider raises; TimeoutError is among them."""


class Provider:
    """A provider's configuration and keys, as they were fetched last."""

    def __init__(self, settings: OidcSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._clock = clock
        self._keys: KeySet | None = None
        self._configuration: dict[str, Any] | None = None
        self._fetched = self._tried = float("-inf")
        self._tls: ssl.SSLContext | None = None
        self._tls_read = float("-inf")
        self.refreshing: asyncio.Task[None] | None = None  # the latest fetch

    async def keys(self, kid: object) -> KeySet | None:
        """Return the keys; None while there are none.

        They are fetched when they are old, or none has that id. Only a token whose key is not known waits for that:
        for all others a key stays in use until its successors are there, for a day at the most.
        """
        known = self._keys is not None and (kid is None or any(key.kid == kid for key in self._keys))
        await self._refresh(wait=not known or self._age() >= RETIRE)
        return self._keys if self._age() < RETIRE else None

    async def configuration(self) -> dict[str, Any] | None:
        """Return what the provider says of itself, its endpoints among it; None while it can't be reached."""
        await self._refresh(wait=self._configuration is None)
        return self._configuration

    async def post(self, address: str, form: dict[str, str]) -> dict[str, Any]:
        """Return the answer to a form that the gateway's client sends. Raises one of UNREACHABLE."""
        settings = self._settings
        user, secret = settings.client_id or "", await asyncio.to_thread(settings.client_secret)
        async with self.http() as http:
            if settings.client_auth == "client_secret_basic":
                return await _document(http, address, method="POST", data=form, auth=(user, secret))
            return await _document(
                http, address, method="POST", data={**form, "client_id": user, "client_secret": secret}
            )

    async def get(self, address: str, token: str) -> dict[str, Any]:
        """Return what a bearer of that token gets. Raises one of UNREACHABLE."""
        async with self.http() as http:
            return await _document(http, address, headers={"authorization": f"Bearer {token}"})

    @asynccontextmanager
    async def http(self) -> AsyncIterator[httpx2.AsyncClient]:
        """Give a client for requests to the provider, all of which end within seconds."""
        if self._tls is None or self._clock() - self._tls_read >= REFRESH:  # reading the authorities takes a while
            self._tls = await asyncio.to_thread(ssl.create_default_context, cafile=self._settings.ca_file)
            self._tls_read = self._clock()
        async with asyncio.timeout(FETCH_SECONDS), httpx2.AsyncClient(verify=self._tls) as http:
            yield http

    def _age(self) -> float:
        return self._clock() - self._fetched

    async def _refresh(self, *, wait: bool) -> None:
        """Fetch what is old or missing, unless that was tried just now; wait for the fetch only where it is needed."""
        now = self._clock()
        idle = self.refreshing is None or self.refreshing.done()
        if idle and now - self._tried >= PAUSE and (wait or now - self._fetched >= REFRESH):
            self._tried = now
            self.refreshing = asyncio.create_task(self._fetch())
        if wait and self.refreshing is not None:
            await asyncio.shield(self.refreshing)

    async def _fetch(self) -> None:
        issuer = self._settings.issuer
        try:
            async with self.http() as http:
                document = await _document(http, f"{issuer.rstrip('/')}/.well-known/openid-configuration")
                if document.get("issuer") != issuer:
                    raise ValueError("the configuration is another issuer's")
                published = await _document(http, str(document.get("jwks_uri")))
            usable = [key for key in published["keys"] if key.get("kty") != "oct" and key.get("use", "sig") == "sig"]
            self._keys = KeySet.import_key_set({"keys": usable})
        except UNREACHABLE as error:
            logger.warning("the keys of %s can't be had: %s: %s", issuer, type(error).__name__, error)
        else:
            self._fetched, self._configuration = self._clock(), document


async def _document(http: httpx2.AsyncClient, address: str, *, method: str = "GET", **request: Any) -> dict[str, Any]:
    """Return a JSON object. Raises httpx2.HTTPError, or ValueError: it is none, or too large."""
    content = bytearray()
    async with http.stream(method, address, **request) as answer:
        answer.raise_for_status()
        async for part in answer.aiter_bytes():
            content += part
            if len(content) > MAX_DOCUMENT:
                raise ValueError("a document is too large")
    document = json.loads(content)
    if not isinstance(document, dict):
        raise ValueError("a document is no object")  # noqa: TRY004 - what was read is wrong, not an argument
    return document
