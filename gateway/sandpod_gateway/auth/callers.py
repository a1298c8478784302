"""Who calls, and what a credential may be used for."""

from dataclasses import dataclass
from typing import Final, Literal

from sandpod_gateway.api.toolsets import ALL

KEY_ID_BYTES: Final = 8  # of a key's hash: enough to find the key by, and nothing to call with
TOKEN_KEY_ID: Final = b"\xff" * KEY_ID_BYTES  # the same for callers who signed in elsewhere
LOCAL_KEY_ID: Final = bytes(KEY_ID_BYTES)  # stands in links for the key that the local caller does not need

Role = Literal["user", "admin"]
_OTHER_KEYS: Final = {LOCAL_KEY_ID: "none", TOKEN_KEY_ID: "token"}
_USER: Final = "user:"  # before the user, so that no user has the local caller's name
_TENANT: Final = "tenant:"  # before that, for a caller of a tenant


@dataclass(frozen=True, slots=True)
class Caller:
    """A caller with one credential. All credentials of a user share the user's sandboxes, within their scopes."""

    owner: str  # to whom sandboxes belong, from `owner_of`
    key_id: bytes = LOCAL_KEY_ID
    tools: frozenset[str] = ALL  # toolsets
    templates: tuple[str, ...] | None = None  # of the sandboxes that it may make and use, the default first; None: all
    read_only: bool = False  # whether it may use only tools that change nothing
    tenant: str = ""  # that the owner is of; empty for the default one
    role: Role = "user"
    key: str = ""  # the name of the API key; empty for callers who signed in elsewhere, or need none


LOCAL: Final = Caller("local", role="admin")
"""The one caller of a server without keys, which listens on loopback only."""


def facts_of(caller: Caller) -> dict[str, str]:
    """Return what the audit log says of a caller; the role where it is not the usual one."""
    key = _OTHER_KEYS.get(caller.key_id) or caller.key_id.hex()
    usual = caller.role == "user" or caller.key_id == LOCAL_KEY_ID
    return {"user": caller.owner, "key": key} | ({} if usual else {"role": caller.role})


def owner_of(tenant: str, user: str) -> str:
    """Return to whom a user's sandboxes belong; users of one name in two tenants are two owners.

    A tenant is a DNS label, or empty for the default one. It has no colon, so no user's name reads like it.
    """
    return f"{_TENANT}{tenant}:{_USER}{user}" if tenant else f"{_USER}{user}"


def tenant_of(owner: str) -> str:
    """Return the tenant of an owner; empty for the default one."""
    return owner[len(_TENANT) :].partition(":")[0] if owner.startswith(_TENANT) else ""


def user_of(owner: str) -> str:
    """Return the user's name of an owner; the local caller has its own."""
    return owner.removeprefix(f"{_TENANT}{tenant_of(owner)}:").removeprefix(_USER)
