"""Access tokens of an OpenID Connect provider: JWTs that are verified with the keys that the provider publishes.

The provider is asked for its configuration and keys when a token needs them, not at start: API keys work without it,
and so do tokens whose signing key is known. Nobody can make the gateway ask it more often than every few seconds.
"""

import asyncio
import json
import logging
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

import httpx2
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet
from joserfc.jws import JWSRegistry, extract_compact
from pydantic import Field, field_validator

from sandpod_gateway.api.strict_model import StrictModel
from sandpod_gateway.auth.callers import TOKEN_KEY_ID, Caller
from sandpod_gateway.auth.current import CallerToken

logger = logging.getLogger(__name__)

ALGORITHMS: Final = (*("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"), *("ES256", "ES384", "ES512", "Ed25519"))
"""Signatures with a private key. Those with a shared secret (HS256) would make everybody who can verify an issuer."""
LEEWAY: Final = 60  # seconds by which clocks may differ
REFRESH: Final = 3600.0  # seconds after which published keys are fetched again
PAUSE: Final = 10.0  # seconds between two fetches for tokens whose key is unknown
RETIRE: Final = 86_400.0  # seconds for which keys are used while the provider can't be reached
FETCH_SECONDS: Final = 5.0
MAX_DOCUMENT: Final = 2**20  # bytes
MAX_TOKEN: Final = 16_384  # characters
MAX_USER: Final = 128  # characters, as in a key file
_TYPES: Final = {"jwt", "at+jwt", "application/at+jwt"}  # of an access token; others are made for something else
_UNUSABLE: Final = (JoseError, ValueError, LookupError, TypeError, AttributeError)
"""What comes of a document that is not what it should be."""


class OidcSettings(StrictModel):
    """An OpenID Connect provider whose users may call."""

    issuer: Annotated[str, Field(max_length=2000)]
    """Its issuer, exactly as tokens name it, such as https://login.example.com/realms/team."""
    audience: Annotated[str | None, Field(min_length=1, max_length=2000)] = None
    """What tokens for this server have as audience; default: its address, links.public_url and /mcp, which clients ask
    for. Tokens for other services are refused."""
    user_claim: Annotated[str, Field(min_length=1, max_length=100)] = "sub"
    """Claim that names the user, to whom sandboxes belong. Choose one that the provider never gives to another person.
    An API key of the same user shares the sandboxes."""
    scopes: tuple[str, ...] = ()
    """Scopes that a token must have."""
    ca_file: Path | None = None
    """PEM file of the authority that the provider's certificate is from; default: the system's."""

    @field_validator("issuer")
    @classmethod
    def _encrypted(cls, value: str) -> str:
        url = urlsplit(value)
        if url.scheme != "https" and url.hostname not in {"localhost", "127.0.0.1", "::1"}:
            raise ValueError("the issuer's address begins with https://")
        return value


class Provider:
    """The keys that a provider publishes."""

    def __init__(self, settings: OidcSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self._issuer = settings.issuer
        self._ca_file = settings.ca_file
        self._clock = clock
        self._keys: KeySet | None = None
        self._fetched = self._tried = float("-inf")
        self._lock = asyncio.Lock()

    async def keys(self, kid: object) -> KeySet | None:
        """Return the keys; None while there are none. They are fetched when they are old or none has that id."""
        async with self._lock:
            now = self._clock()
            known = self._keys is not None and (kid is None or any(key.kid == kid for key in self._keys))
            if (not known or now - self._fetched >= REFRESH) and now - self._tried >= PAUSE:
                self._tried = now
                await self._fetch()
            return self._keys if self._clock() - self._fetched < RETIRE else None

    async def _fetch(self) -> None:
        try:
            context = ssl.create_default_context(cafile=self._ca_file)
            async with asyncio.timeout(FETCH_SECONDS), httpx2.AsyncClient(verify=context) as http:
                document = await _document(http, f"{self._issuer.rstrip('/')}/.well-known/openid-configuration")
                if document.get("issuer") != self._issuer:
                    raise ValueError("the configuration is another issuer's")
                published = await _document(http, str(document.get("jwks_uri")))
            usable = [key for key in published["keys"] if key.get("kty") != "oct" and key.get("use", "sig") == "sig"]
            self._keys = KeySet.import_key_set({"keys": usable})
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError, *_UNUSABLE) as error:
            logger.warning("the keys of %s can't be had: %s: %s", self._issuer, type(error).__name__, error)
        else:
            self._fetched = self._clock()


class OidcVerifier:
    """Verifies access tokens."""

    def __init__(self, settings: OidcSettings, audience: str, provider: Provider | None = None) -> None:
        """Take tokens for that audience, where the settings name none."""
        self._settings = settings
        self._provider = provider or Provider(settings)
        self._registry = JWSRegistry(algorithms=list(ALGORITHMS), strict_check_header=False)
        self._claims = jwt.JWTClaimsRegistry(
            leeway=LEEWAY,
            iss={"essential": True, "value": settings.issuer},
            aud={"essential": True, "value": settings.audience or audience},
            exp={"essential": True},
        )

    async def verify(self, token: str) -> CallerToken | None:
        """Return whose token it is, or None where it is not valid here and now."""
        if len(token) > MAX_TOKEN:
            return None
        try:
            header = extract_compact(token.encode()).headers()
            if str(header.get("typ", "jwt")).lower() not in _TYPES or "crit" in header:
                return None
            keys = await self._provider.keys(header.get("kid"))
            if keys is None:
                return None
            claims = jwt.decode(token, keys, list(ALGORITHMS), self._registry).claims
            self._claims.validate(claims)
        except _UNUSABLE as error:
            logger.info("a token was refused: %s", type(error).__name__)  # its content may be anybody's
            return None
        return self._accepted(claims)

    def _accepted(self, claims: dict[str, Any]) -> CallerToken | None:
        user, granted = claims.get(self._settings.user_claim), _scopes(claims)
        if not isinstance(user, str) or not 0 < len(user) <= MAX_USER or not set(self._settings.scopes) <= set(granted):
            return None
        client = claims.get("client_id") or claims.get("azp") or user
        return CallerToken(
            token="",
            client_id=str(client)[:MAX_USER],
            subject=user,
            scopes=granted,
            expires_at=int(claims["exp"]) + LEEWAY,
            caller=Caller(f"user:{user}", TOKEN_KEY_ID),
        )


def _scopes(claims: dict[str, Any]) -> list[str]:
    found = claims.get("scope", claims.get("scp", ""))
    return found.split() if isinstance(found, str) else [each for each in found if isinstance(each, str)]


async def _document(http: httpx2.AsyncClient, address: str) -> dict[str, Any]:
    """Return a JSON object. Raises httpx2.HTTPError, or ValueError: it is none, or too large."""
    content = bytearray()
    async with http.stream("GET", address) as answer:
        answer.raise_for_status()
        async for part in answer.aiter_bytes():
            content += part
            if len(content) > MAX_DOCUMENT:
                raise ValueError("a document is too large")
    document = json.loads(content)
    if not isinstance(document, dict):
        raise ValueError("a document is no object")  # noqa: TRY004 - what was read is wrong, not an argument
    return document
