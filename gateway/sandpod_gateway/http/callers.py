"""Whose request it is, once its key has been checked."""

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from starlette.types import Scope

from sandpod_gateway.auth.api_keys import LOCAL_OWNER, owner_of


def owner_in(scope: Scope) -> str | None:
    """Return the caller, or None for one whose key will be refused."""
    if scope["type"] != "http":
        return None
    user = scope.get("user")
    if user is None:
        return LOCAL_OWNER
    return owner_of(user.access_token) if isinstance(user, AuthenticatedUser) else None
