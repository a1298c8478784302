"""Sign-in through the gateway, for providers where clients can't register: FastMCP's OAuth proxy.

Clients register with the gateway, which has one client of its own at the provider. A client gets a token of the
gateway, which stands for the provider's tokens; the gateway keeps those. Any gateway of an installation can go on with
what another began: they share the state and the key.
"""

import asyncio
import base64
import contextlib
import hashlib
import secrets
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any

import httpx2
from fastmcp.server.auth import AccessToken, TokenVerificationError, TokenVerifier
from fastmcp.server.auth.jwt_issuer import derive_jwt_key
from fastmcp.server.auth.oauth_proxy import OAuthProxy
from fastmcp.server.auth.oauth_proxy.models import UpstreamTokenSet
from fastmcp.server.auth.oauth_proxy.upstream import AsyncOAuth2Client
from joserfc.errors import JoseError
from mcp.server.auth.provider import AccessToken as SdkToken
from mcp.server.auth.provider import RefreshToken
from mcp.server.auth.settings import RevocationOptions
from mcp.shared.auth import OAuthClientInformationFull
from starlette.middleware import Middleware

from sandpod_api.fields import DAY
from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.auth.callers import Caller
from sandpod_gateway.auth.links import SecretStore
from sandpod_gateway.auth.oidc.answers import Answers, Introspection, unavailable
from sandpod_gateway.auth.oidc.claims import RefusedError, caller_token
from sandpod_gateway.auth.oidc.provider import UNREACHABLE, UNUSABLE, Provider
from sandpod_gateway.auth.oidc.proxied import CONSOLE_BACK, Proxied
from sandpod_gateway.auth.oidc.registrations import Registrations
from sandpod_gateway.auth.oidc.resource_server import JWT_DOTS, middleware_of
from sandpod_gateway.auth.oidc.settings import OidcSettings, ProxySettings
from sandpod_gateway.auth.oidc.shared_key import shared_key
from sandpod_gateway.auth.oidc.state import SignInState
from sandpod_gateway.auth.oidc.tokens import MAX_TOKEN, OidcVerifier
from sandpod_gateway.auth.verifier import RESOURCE_PATH, Keys
from sandpod_gateway.errors import SandpodError


class SignIn(OAuthProxy, Proxied):
    """Lets users sign in at the provider and checks what requests come with: the tokens that they get, and API keys."""

    def __init__(self, settings: OidcSettings, keys: Keys, state: SignInState, public_url: str) -> None:
        """Use a provider by settings that have `proxy`; nobody can sign in before `refresh`."""
        proxy = settings.proxy or ProxySettings()
        endpoints = proxy.endpoints
        self._settings = settings
        self._keys = keys
        self._state = state
        self._provider = Provider(settings)
        self._known = Answers[tuple[dict[str, Any], str] | None](proxy.remember_seconds)
        self._key: str | None = None
        scopes = list(settings.scopes) if endpoints else ["openid", *settings.scopes]
        scopes = list(dict.fromkeys(scopes))
        super().__init__(
            # Those of a provider with a configuration are known once it was read.
            upstream_authorization_endpoint=endpoints.authorization if endpoints else "",
            upstream_token_endpoint=endpoints.token if endpoints else "",
            upstream_client_id=settings.client_id or "",
            token_verifier=_Upstream(settings, self._provider),
            base_url=public_url,
            allowed_client_redirect_uris=None
            if proxy.redirect_uris is None
            else [*proxy.redirect_uris, f"{public_url}{CONSOLE_BACK}"],
            valid_scopes=scopes or None,
            forward_resource=False,  # the provider's tokens stay here; Entra ID refuses the parameter
            extra_authorize_params={"scope": " ".join(scopes), **proxy.parameters} if scopes else proxy.parameters,
            client_storage=state,
            jwt_signing_key=secrets.token_bytes(32),  # until `refresh`
            fallback_refresh_token_expiry_seconds=90 * DAY,
            enable_cimd=False,  # it would fetch what anybody names
        )
        self.revocation_options = RevocationOptions(enabled=True)
        self._client_store: Any = Registrations()

    async def refresh(self, store: SecretStore) -> None:
        """Use the key that all gateways share. Raises SandpodError: it can't be had; the one read before stays."""
        key = await shared_key(store)
        if key == self._key:
            return
        self._state.use(base64.urlsafe_b64decode(derive_jwt_key(high_entropy_material=key, salt="sandpod state")))
        self._client_store.use(derive_jwt_key(high_entropy_material=key, salt="sandpod clients"))
        self._jwt_signing_key = derive_jwt_key(high_entropy_material=key, salt="sandpod tokens")
        self.set_mcp_path(RESOURCE_PATH)
        self._known.clear()
        self._key = key

    async def check_ready(self) -> None:
        """Raise SandpodError (backend_unavailable) while nobody can sign in."""
        self._check_key()
        if self._settings.proxy is not None and self._settings.proxy.endpoints is None:
            found = await self._provider.configuration()
            if found is None:
                raise unavailable("who you are").error
            self._upstream_authorization_endpoint = str(found.get("authorization_endpoint"))
            self._upstream_token_endpoint = str(found.get("token_endpoint"))

    def _check_key(self) -> None:
        if self._key is None:
            message, step = "Nobody can sign in yet: the gateways' shared key can't be read.", "Try again in a moment."
            raise SandpodError(ErrorCode.BACKEND_UNAVAILABLE, message, next_step=step)

    def get_middleware(self) -> list[Middleware]:
        """Return what authenticates requests."""
        return middleware_of(self)

    # What follows are the places of FastMCP's proxy that it offers, or leaves, to be filled otherwise.

    async def get_client(self, client_id: str) -> OAuthClientInformationFull | None:
        """Return a client that has registered. FastMCP takes the gateway's own client at the provider for one too."""
        return None if client_id == self._settings.client_id else await super().get_client(client_id)

    async def register_client(self, client_info: OAuthClientInformationFull) -> None:
        """Register a client: give it an id from which its registration can be read."""
        await super().register_client(client_info)
        client_info.client_id = self._client_store.sealed(client_info.client_id)

    async def load_access_token(self, token: str) -> AccessToken | None:
        """Return who calls, or None. Raises RefusedError: the caller has no place here, or can't be checked now."""
        by_key = self._keys.verify(token)
        if by_key is not None or token.count(".") != JWT_DOTS or len(token) > MAX_TOKEN:
            return by_key
        try:
            self._check_key()
            found = await self._known.get(token, lambda: self._swapped(token))
        except SandpodError as error:
            raise RefusedError(error) from error
        except TokenVerificationError as error:
            raise unavailable("whose your token is") from error
        except (JoseError, ValueError):  # nobody's; not remembered, so that they take no room
            return None
        if found is None:
            return None
        claims, token_id = found
        caller = caller_token(self._settings, claims)
        return None if caller is None else caller.model_copy(update={"token": token_id})

    async def _swapped(self, token: str) -> tuple[dict[str, Any], str] | None:
        """Return the claims of the user for whom a token stands, and its id."""
        token_id: str = self.jwt_issuer.verify_token(token)["jti"]
        found = await super().load_access_token(token)
        return None if found is None else (found.claims or {}, token_id)

    async def caller_of(self, form: Mapping[str, str]) -> Caller | None:
        """Return who signed in for the code or token in a client's form.

        None where it is none of that client's, or its user has no place here, or nobody can say.
        """
        try:
            given = await self._given_for(form)
            claims = None if given is None else await self._token_validator.signed_in(given)  # type: ignore[attr-defined]
            found = None if claims is None else caller_token(self._settings, claims)
        except (RefusedError, TokenVerificationError):
            return None
        return None if found is None else found.caller

    async def _given_for(self, form: Mapping[str, str]) -> dict[str, Any] | None:
        """Return the provider's tokens for which the code or token of a client stands."""
        if form.get("grant_type") == "authorization_code":
            kept = await self._code_store.get(key=form.get("code", ""))
            return kept.idp_tokens if kept is not None and kept.client_id == form.get("client_id") else None
        token = form.get("refresh_token") or form.get("token", "")
        for use in ("refresh", "access"):
            with contextlib.suppress(*UNUSABLE):
                claims = self.jwt_issuer.verify_token(token, use)
                held = await self._session(claims["jti"]) if claims["client_id"] == form.get("client_id") else None
                return None if held is None else held.raw_token_data
        return None

    async def _session(self, token_id: str) -> UpstreamTokenSet | None:
        mapping = await self._jti_mapping_store.get(key=token_id)
        return None if mapping is None else await self._upstream_token_store.get(key=mapping.upstream_token_id)

    async def revoke_token(self, token: SdkToken | RefreshToken) -> None:
        """End a session: what its client has is worth nothing from now on, at other gateways within seconds."""
        token_id = token.token
        if isinstance(token, RefreshToken):
            token_id = self.jwt_issuer.verify_token(token.token, "refresh")["jti"]
        self._known.clear()
        held = await self._session(token_id)
        if held is None:
            return
        await self._upstream_token_store.delete(key=held.upstream_token_id)
        endpoint = (await self._provider.configuration() or {}).get("revocation_endpoint")
        if endpoint is not None:
            with contextlib.suppress(*UNREACHABLE):  # the provider's answer has no content, which is no JSON either
                await self._provider.post(str(endpoint), {"token": held.refresh_token or held.access_token})

    def _build_upstream_authorize_url(self, txn_id: str, transaction: dict[str, Any]) -> str:
        # Some providers want a nonce. It protects nothing here: the code is bound to this sign-in by PKCE.
        nonce = base64.urlsafe_b64encode(hashlib.sha256(txn_id.encode()).digest()).rstrip(b"=").decode()
        return f"{super()._build_upstream_authorize_url(txn_id, transaction)}&nonce={nonce}"

    def _get_verification_token(self, upstream_token_set: UpstreamTokenSet) -> str:
        # Both, for `_Upstream`: the one says who the user is, the other whether the session goes on.
        return f"{upstream_token_set.raw_token_data.get('id_token', '')} {upstream_token_set.access_token}"

    async def _try_transparent_refresh(self, upstream_token_set: UpstreamTokenSet) -> UpstreamTokenSet:
        await self.check_ready()
        return await super()._try_transparent_refresh(upstream_token_set)

    @asynccontextmanager
    async def _upstream_oauth_client(self) -> AsyncGenerator[AsyncOAuth2Client, None]:
        secret = await asyncio.to_thread(self._settings.client_secret)
        async with self._provider.http() as http:
            yield _TokenClient(self._settings, secret, http)


class _TokenClient(AsyncOAuth2Client):
    """FastMCP's client of the provider's token endpoint, by a connection that trusts the configured authority."""

    def __init__(self, settings: OidcSettings, secret: str, http: httpx2.AsyncClient) -> None:
        self.client_id = settings.client_id or ""
        self.client_secret = secret
        self.token_endpoint_auth_method = settings.client_auth
        self._client = http


class _Upstream(TokenVerifier):
    """Says whose the provider's tokens are."""

    def __init__(self, settings: OidcSettings, provider: Provider) -> None:
        super().__init__(required_scopes=[])
        endpoints = settings.proxy.endpoints if settings.proxy else None
        self._userinfo = endpoints.userinfo if endpoints else None
        self._provider = provider
        self._introspection = Introspection(settings, provider)
        self._verifier = OidcVerifier(settings, settings.client_id or "", provider)

    async def verify_token(self, token: str) -> AccessToken | None:
        """Return the claims of the user, from an ID token and an access token with a space between."""
        identity, _, access = token.partition(" ")
        claims = await (self._verifier.claims(identity) if self._userinfo is None else self._ask(access))
        if claims is None:
            return None
        try:
            active = await self._introspection.is_active(access)
        except RefusedError as error:
            raise TokenVerificationError(str(error)) from error
        return AccessToken(token="", client_id="", scopes=[], claims=claims) if active else None

    async def signed_in(self, given: dict[str, Any]) -> dict[str, Any] | None:
        """Return the claims of the user for whom the provider gave these tokens, even if they have ended."""
        if self._userinfo is not None:
            return await self._ask(str(given.get("access_token")))
        return await self._verifier.claims(str(given.get("id_token")), may_have_ended=True)

    async def _ask(self, access: str) -> dict[str, Any] | None:
        try:
            return await self._provider.get(str(self._userinfo), access)
        except httpx2.HTTPStatusError as error:
            if error.response.status_code in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
                return None
            raise TokenVerificationError("the provider answers with an error") from error
        except UNREACHABLE as error:
            raise TokenVerificationError("the provider can't be reached") from error
