"""API keys."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from sandpod_api.base import rfc3339
from sandpod_gateway.api.account_results import KeyInfo, KeyList, KeyMade, KeyRevoked
from sandpod_gateway.api.toolsets import ToolsetName
from sandpod_gateway.audit.act import note
from sandpod_gateway.auth.api_keys import KeyEntry
from sandpod_gateway.auth.callers import TOKEN_KEY_ID, user_of
from sandpod_gateway.auth.current import current_caller, current_expiry
from sandpod_gateway.auth.key_management import (
    GRACE_HOURS,
    MAX_DAYS,
    MAX_GRACE,
    Credential,
    KeyManager,
    new_key,
)
from sandpod_gateway.mcp.arguments import parsed
from sandpod_gateway.mcp.toolbox import Toolbox

LastUsed = Callable[[], dict[str, datetime]]

KeyId = Annotated[str, Field(description="`key_id` of a key.")]
KeyName = Annotated[str, Field(description="What the key is for; a user's keys have different names.")]
User = Annotated[str | None, Field(description="For administrators: whose it is; default: yours.")]
Tenant = Annotated[str | None, Field(description="For administrators: the user's tenant; default: yours.")]
Days = Annotated[
    int | None, Field(ge=1, le=MAX_DAYS, description="Days until it ends; default: as what you call with.")
]
NewDays = Annotated[int | None, Field(ge=1, le=MAX_DAYS, description="Days until it ends; default: as the old one.")]
Grace = Annotated[int, Field(ge=0, le=MAX_GRACE, description="Hours until the old key ends.")]
Tools = Annotated[
    list[ToolsetName] | None,
    BeforeValidator(parsed),
    Field(min_length=1, description="Toolsets that it may use; default: yours."),
]
Templates = Annotated[
    list[str] | None,
    BeforeValidator(parsed),
    Field(min_length=1, description="Templates whose sandboxes it may use, the default first; default: yours."),
]
ReadOnly = Annotated[bool, Field(description="Whether it may use only what changes nothing.")]
KeyRole = Annotated[Literal["user", "admin"], Field(description="Whether it is an administrator's.")]


def register(toolbox: Toolbox, keys: KeyManager, last_used: LastUsed, token_days: int | None) -> None:
    """Add the operations; users who signed in elsewhere may make keys for `token_days`, or until their token ends."""

    def credential() -> Credential:
        caller, expires = current_caller(), current_expiry()
        if caller.key_id == TOKEN_KEY_ID and token_days is not None:
            expires = datetime.now(UTC) + timedelta(days=token_days, seconds=1)  # no later than days from now
        return Credential(caller, expires)

    @toolbox.tool("List keys", toolset="account", effect="read")
    async def list_keys() -> KeyList:
        """List your API keys; an administrator sees those of all users of the tenant, or of all tenants."""
        used, now = last_used(), datetime.now(UTC)
        entries = keys.visible(current_caller())
        return KeyList(keys=[KeyInfo(**_fields(each, used.get(each.id), now)) for each in entries])

    @toolbox.tool("Make a key", toolset="account", effect="make")
    async def create_key(
        *,
        name: KeyName,
        user: User = None,
        tenant: Tenant = None,
        days: Days = None,
        tools: Tools = None,
        templates: Templates = None,
        read_only: ReadOnly = False,
        role: KeyRole = "user",
    ) -> KeyMade:
        """Make an API key, with no more rights than what you call with. It is shown in this answer alone."""
        by = credential()
        scopes = {
            "tools": tools,
            "templates": templates,
            "read_only": read_only,
            "role": role,
            "tenant": tenant or by.caller.tenant or None,
        }
        fresh = new_key(user or user_of(by.caller.owner), name, days, scopes)
        note(target_key=fresh.entry.id, target_user=fresh.entry.user)
        entry = await keys.create(by, fresh)
        return KeyMade(key=fresh.key, **_fields(entry))

    @toolbox.tool("Rotate a key", toolset="account", effect="make")
    async def rotate_key(*, key_id: KeyId, days: NewDays = None, grace: Grace = GRACE_HOURS) -> KeyMade:
        """Make a key like another one, which then ends. The new one is shown in this answer alone."""
        made = await keys.rotate(credential(), key_id, days, grace)
        note(target_key=key_id, new_key=made.entry.id, target_user=made.entry.user)
        return KeyMade(key=made.key, **_fields(made.entry))

    @toolbox.tool("Revoke a key", toolset="account", effect="write")
    async def revoke_key(key_id: KeyId) -> KeyRevoked:
        """Remove an API key: it is refused from now on."""
        entry = await keys.revoke(current_caller(), key_id)
        note(target_key=entry.id, target_user=entry.user)
        return KeyRevoked(key_id=entry.id)


def _fields(entry: KeyEntry, used: datetime | None = None, now: datetime | None = None) -> dict[str, object]:
    return {
        **entry.model_dump(include={"user", "tenant", "name", "tools", "templates", "read_only", "role"}),
        "key_id": entry.id,
        "created_at": rfc3339(entry.created),
        "expires_at": None if entry.expires is None else rfc3339(entry.expires),
        "expired": now is not None and not entry.is_valid(now),
        "last_used_at": None if used is None else rfc3339(used),
    }
