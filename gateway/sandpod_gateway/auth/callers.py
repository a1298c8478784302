"""Who calls, and what a credential may be used for."""

from dataclasses import dataclass
from typing import Final

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
    key: str = ""  # the name of the API key; empty for callers who signed in elsewhere, or need none
    tenant: str = ""  # empty where there are none


LOCAL: Final = Caller("local")
"""The one caller of a server without keys, which listens on loopback only."""
