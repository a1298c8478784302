"""Whose a token is, by its claims: the same rules whether it came to the gateway or was fetched by it."""

import re
from typing import Any, Final

from mcp_types import INVALID_REQUEST
from starlette.authentication import AuthenticationError
from starlette.requests import HTTPConnection
from starlette.responses import Response

from sandpod_api.names import is_dns_label
from sandpod_gateway.api.messages import Refusal
from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.auth.callers import TOKEN_KEY_ID, Caller, Role, owner_of
from sandpod_gateway.auth.current import CallerToken
from sandpod_gateway.auth.oidc.settings import MAX_GROUP, OidcSettings
from sandpod_gateway.errors import SandpodError

LEEWAY: Final = 60  # seconds by which clocks may differ
MAX_USER: Final = 128  # characters, as in a key file
_SHOWN: Final = 5  # tenants in a refusal
_ASK: Final = "Ask the administrator to change your groups at the provider, auth.oidc.tenants or tenant_pattern."


class RefusedError(AuthenticationError):
    """A token is valid, or may be, and its caller is refused for a reason that signing in again does not change."""

    def __init__(self, error: SandpodError) -> None:
        super().__init__(error.message)
        self.error = error


def answer_refused(_: HTTPConnection, refused: Exception) -> Response:
    """Return the answer to a request whose caller was refused; for Starlette's `AuthenticationMiddleware`."""
    if not isinstance(refused, RefusedError):
        raise refused
    error = refused.error
    body = Refusal(None, INVALID_REQUEST, error.message, error.code, error.next_step).body()
    return Response(body, status_code=error.code.http_status, media_type="application/json")


def caller_token(settings: OidcSettings, claims: dict[str, Any]) -> CallerToken | None:
    """Return whose a verified token is; None where it does not name a user, or lacks what the settings require.

    Raises RefusedError: the user's groups lead to no tenant, or to several.
    """
    user = claims.get(settings.user_claim)
    if not isinstance(user, str) or not 0 < len(user) <= MAX_USER:
        return None
    if not all(_texts(claims.get(name)) & set(values) for name, values in settings.required_claims.items()):
        return None
    groups = _texts(claims.get(settings.groups_claim))
    role: Role = "admin" if groups & set(settings.admin_groups) else "user"
    tenant = _tenant(settings, groups)
    owner = owner_of(tenant, user)
    client = claims.get("client_id") or claims.get("azp") or user
    return CallerToken(
        token="",
        client_id=str(client)[:MAX_USER],
        subject=owner,  # whose MCP sessions it may use
        scopes=scopes_of(claims),
        expires_at=int(claims["exp"]) + LEEWAY if "exp" in claims else None,
        caller=Caller(owner, TOKEN_KEY_ID, tenant=tenant, role=role),
    )


def used_claims(settings: OidcSettings) -> set[str]:
    """Return the names of all claims that say whose a token is, and whether it is valid here."""
    named = {settings.user_claim, settings.groups_claim, *settings.required_claims}
    return named | {"active", "iss", "aud", "exp", "nbf", "iat", "scope", "scp", "client_id", "azp"}


def scopes_of(claims: dict[str, Any]) -> list[str]:
    """Return the scopes that a token was given."""
    found = claims.get("scope", claims.get("scp", ""))
    return found.split() if isinstance(found, str) else sorted(_texts(found))


def _tenant(settings: OidcSettings, groups: set[str]) -> str:
    if not settings.tenants and not settings.tenant_pattern:
        return ""
    found = sorted({tenant for group in groups if (tenant := _tenant_of_group(settings, group)) is not None})
    if len(found) == 1:
        return found[0]
    if found:
        message = f"Your groups lead to several tenants: {', '.join(found[:_SHOWN])}."
    else:
        message = f"The claim {settings.groups_claim} of your token has no group that leads to a tenant."
    raise RefusedError(SandpodError(ErrorCode.FORBIDDEN, message, next_step=_ASK))


def _tenant_of_group(settings: OidcSettings, group: str) -> str | None:
    """Return the tenant that a group leads to, by its entry or else by the pattern; None where that is no name."""
    if group in settings.tenants or settings.tenant_pattern is None or len(group) > MAX_GROUP:
        return settings.tenants.get(group)
    match = re.fullmatch(settings.tenant_pattern, group)
    return match[1] if match and match[1] and is_dns_label(match[1]) else None


def _texts(claim: object) -> set[str]:
    """Return the texts of a claim that is one, or a list of some; what else is in it does not count."""
    found = claim if isinstance(claim, list) else [claim]
    return {each for each in found if isinstance(each, str)}
