"""The caller of the request that is being answered."""

from datetime import UTC, datetime
from typing import Self

from fastmcp.server.auth import AccessToken
from fastmcp.server.dependencies import get_access_token
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from pydantic import model_validator
from starlette.types import Scope

from sandpod_gateway.auth.callers import LOCAL, Caller


class CallerToken(AccessToken):
    """A checked credential. Its `token` is never the credential itself: whatever logs it must not log a key.

    Its `subject` is the owner: an MCP session is for whom it was begun, and users of two tenants may share a name.
    """

    caller: Caller

    @model_validator(mode="after")
    def _is_its_owner(self) -> Self:
        self.subject = self.caller.owner
        return self


def current_caller() -> Caller:
    """Return the caller of the request that is being answered.

    A server with keys answers 401 before any tool is reached, so no token here means a server without keys.
    """
    token = get_access_token()
    return token.caller if isinstance(token, CallerToken) else LOCAL


def current_expiry() -> datetime | None:
    """Return when what the caller calls with ends; None where it does not."""
    token = get_access_token()
    return None if token is None or token.expires_at is None else datetime.fromtimestamp(token.expires_at, UTC)


def current_owner() -> str:
    """Return whose the sandboxes are that the request may use."""
    return current_caller().owner


def owner_in(scope: Scope) -> str | None:
    """Return whose request it is, or None for one whose key will be refused, and for what is no request."""
    if scope["type"] != "http":
        return None
    user = scope.get("user")
    if user is None:
        return LOCAL.owner
    token = user.access_token if isinstance(user, AuthenticatedUser) else None
    return token.caller.owner if isinstance(token, CallerToken) else None
