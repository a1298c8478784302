"""Who calls, and what the credential of a request may be used for."""

from dataclasses import dataclass
from typing import Final

from fastmcp.server.auth import AccessToken
from fastmcp.server.dependencies import get_access_token
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from starlette.types import Scope

from sandpod_gateway.api.toolsets import ALL

KEY_ID_BYTES: Final = 8  # of a key's hash: enough to find the key by, and nothing to call with
TOKEN_KEY_ID: Final = b"\xff" * KEY_ID_BYTES  # the same for callers who signed in elsewhere
LOCAL_KEY_ID: Final = bytes(KEY_ID_BYTES)  # stands in links for the key that the local caller does not need


@dataclass(frozen=True, slots=True)
class Caller:
    """A caller with one credential. All credentials of a user share the user's sandboxes, within their scopes."""

    owner: str  # to whom sandboxes belong: `user:` and the user, so that no user has the local caller's name
    key_id: bytes = LOCAL_KEY_ID
    tools: frozenset[str] = ALL  # toolsets
    templates: tuple[str, ...] | None = None  # of the sandboxes that it may make and use, the default first; None: all
    read_only: bool = False  # whether it may use only tools that change nothing


class CallerToken(AccessToken):
    """A checked credential. Its `token` is never the credential itself: whatever logs it must not log a key."""

    caller: Caller


LOCAL: Final = Caller("local")
"""The one caller of a server without keys, which listens on loopback only."""


def current_caller() -> Caller:
    """Return the caller of the request that is being answered.

    A server with keys answers 401 before any tool is reached, so no token here means a server without keys.
    """
    token = get_access_token()
    return token.caller if isinstance(token, CallerToken) else LOCAL


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
