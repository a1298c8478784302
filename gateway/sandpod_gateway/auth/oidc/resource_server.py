"""Users who sign in at the provider and bring its tokens; API keys work beside them."""

from typing import Annotated, Final

from fastmcp.server.auth import AccessToken, AuthProvider, RemoteAuthProvider, TokenVerifier
from mcp.server.auth.middleware.auth_context import AuthContextMiddleware
from mcp.server.auth.middleware.bearer_auth import BearerAuthBackend
from pydantic import AnyHttpUrl, TypeAdapter, UrlConstraints
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware

from sandpod_gateway.auth.oidc.claims import answer_refused
from sandpod_gateway.auth.oidc.settings import OidcSettings
from sandpod_gateway.auth.oidc.tokens import OidcVerifier
from sandpod_gateway.auth.verifier import RESOURCE_PATH, Keys

JWT_DOTS: Final = 2  # in a token that may be a JWT
# Clients compare the issuer letter by letter, and a slash at the end would make it another one.
_ADDRESS: Final = TypeAdapter(Annotated[AnyHttpUrl, UrlConstraints(preserve_empty_path=True)])


class _Verifier(TokenVerifier):
    """Checks what a request comes with: an API key, or a token of the provider."""

    def __init__(self, keys: Keys, tokens: OidcVerifier) -> None:
        super().__init__(required_scopes=[])
        self._keys = keys
        self._tokens = tokens

    async def verify_token(self, token: str) -> AccessToken | None:
        """Return who calls, or None."""
        found = self._keys.verify(token)
        if found is None and token.count(".") == JWT_DOTS:
            return await self._tokens.verify(token)
        return found


class ResourceServer(RemoteAuthProvider):
    """Checks the callers of a server whose users sign in elsewhere, and tells clients where."""

    def __init__(self, keys: Keys, settings: OidcSettings, public_url: str) -> None:
        super().__init__(
            _Verifier(keys, OidcVerifier(settings, settings.audience or public_url + RESOURCE_PATH)),
            authorization_servers=[_ADDRESS.validate_python(settings.issuer)],
            base_url=public_url,
            scopes_supported=list(settings.scopes),
            challenge_scopes=list(settings.scopes),
            resource_name="Sandpod",
        )

    def get_middleware(self) -> list[Middleware]:
        """Return what authenticates requests."""
        return middleware_of(self)


def middleware_of(provider: AuthProvider) -> list[Middleware]:
    """Return what authenticates requests by a provider, which may refuse a caller with an error of its own."""
    backend = BearerAuthBackend(provider)
    return [
        Middleware(AuthenticationMiddleware, backend=backend, on_error=answer_refused),
        Middleware(AuthContextMiddleware),
    ]
