"""Tokens of an OpenID Connect provider: JWTs that are verified with the keys that the provider publishes."""

import logging
import time
from typing import Any, Final

from joserfc import jwt
from joserfc.jws import JWSRegistry, extract_compact

from sandpod_gateway.auth.current import CallerToken
from sandpod_gateway.auth.oidc.answers import Introspection
from sandpod_gateway.auth.oidc.claims import LEEWAY, caller_token, scopes_of
from sandpod_gateway.auth.oidc.provider import UNUSABLE, Provider
from sandpod_gateway.auth.oidc.settings import OidcSettings

logger = logging.getLogger(__name__)

ALGORITHMS: Final = (*("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"), *("ES256", "ES384", "ES512", "Ed25519"))
"""Signatures with a private key. Those with a shared secret (HS256) would make everybody who can verify an issuer."""
MAX_TOKEN: Final = 16_384  # characters
_DOTS: Final = 2  # in a JWT
_TYPES: Final = {"jwt", "at+jwt", "application/at+jwt"}  # of an access or ID token; others are made for something else


class OidcVerifier:
    """Verifies tokens."""

    def __init__(
        self,
        settings: OidcSettings,
        audience: str,
        provider: Provider | None = None,
        introspection: Introspection | None = None,
    ) -> None:
        """Take tokens for that audience."""
        self._settings = settings
        self._provider = provider or Provider(settings)
        self._introspection = introspection or Introspection(settings, self._provider)
        self._registry = JWSRegistry(algorithms=list(ALGORITHMS), strict_check_header=False)
        self._claims = jwt.JWTClaimsRegistry(
            leeway=LEEWAY,
            iss={"essential": True, "value": settings.issuer},
            aud={"essential": True, "value": audience},
            exp={"essential": True},
        )
        # Of a token that is no JWT, the provider itself says the rest.
        self._told = jwt.JWTClaimsRegistry(
            leeway=LEEWAY, iss={"value": settings.issuer}, aud={"essential": True, "value": audience}
        )

    async def verify(self, token: str) -> CallerToken | None:
        """Return whose access token it is, or None where it is not valid here and now.

        Raises RefusedError: it is valid, but its user has no place here; or the provider can't be asked.
        """
        claims = await (self.claims(token) if token.count(".") == _DOTS else self._told_claims(token))
        if claims is None or not set(self._settings.scopes) <= set(scopes_of(claims)):
            return None
        return caller_token(self._settings, claims) if await self._introspection.is_active(token) else None

    async def claims(self, token: str, *, may_have_ended: bool = False) -> dict[str, Any] | None:
        """Return the claims of a token that the provider signed for this audience and this time, or else None."""
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
            self._claims.validate({**claims, "exp": int(time.time())} if may_have_ended else claims)
        except UNUSABLE as error:
            logger.info("a token was refused: %s", type(error).__name__)  # its content may be anybody's
            return None
        return claims

    async def _told_claims(self, token: str) -> dict[str, Any] | None:
        """Return what the provider says of a token that is no JWT, if it is for this audience and time."""
        if len(token) > MAX_TOKEN:
            return None
        claims = await self._introspection.claims(token)
        try:
            self._told.validate(claims)
        except UNUSABLE as error:
            logger.info("a token was refused: %s", type(error).__name__)
            return None
        return claims
