"""What the REST API alone returns: keys, usage, audit records and pools."""

from typing import Any, Literal

from sandpod_gateway.api.results import OnlyIfSet, ResultModel


class KeyInfo(ResultModel):
    """An API key, without what would let anyone use it. Times are RFC 3339."""

    key_id: str
    user: str  # whose it is
    tenant: str | None = None  # that the user is of
    name: str  # what it is for
    created_at: str
    expires_at: str | None = None  # when it ends; null for never
    expired: bool = False
    last_used_at: str | None = None  # to the minute, as far as usage is kept
    tools: list[str] | None = None  # toolsets that it may use; null for all
    templates: list[str] | None = None  # whose sandboxes it may use, the default first; null for all
    read_only: bool = False  # whether it may use only what changes nothing
    role: Literal["user", "admin"] = "user"


class KeyList(ResultModel):
    """The keys that the caller may see."""

    keys: list[KeyInfo]


class KeyMade(KeyInfo):
    """A key that was made."""

    key: str  # the key itself, shown only now


class KeyRevoked(ResultModel):
    """A key that was revoked: it is refused from now on."""

    key_id: str
    revoked: Literal[True] = True


class UsageRow(ResultModel):
    """What was used on a day, or by a sandbox since it was claimed. Seconds and bytes."""

    day: OnlyIfSet[str] = None  # as 2026-11-30, UTC
    claimed: OnlyIfSet[str] = None  # when the sandbox was claimed, RFC 3339
    tenant: str  # empty for the default one
    user: OnlyIfSet[str] = None
    key: OnlyIfSet[str] = None  # the key's name; empty for who signed in without one
    sandbox: OnlyIfSet[str] = None
    template: OnlyIfSet[str] = None
    live: OnlyIfSet[Literal["yes", "no"]] = None
    cpu_seconds: float  # of runs that ended
    memory_gib_seconds: float  # of the sandboxes' limits
    wall_seconds: float  # from claim to end, but for time suspended
    idle_seconds: float  # part of it without a run
    bytes_in: int
    bytes_out: int
    upload_bytes: int
    runs: int
    calls: OnlyIfSet[int] = None  # of tools; they are of callers, not of sandboxes


class UsageReport(ResultModel):
    """What the caller may see of use."""

    columns: list[str]  # of each row
    rows: list[UsageRow]
    next: str | None = None  # cursor of those after


class AuditRecords(ResultModel):
    """Audit records that the caller may see, newest first, of the gateway that answers and of no other."""

    replica: str  # the gateway, as its records have it now
    records: list[dict[str, Any]]
    next: str | None = None  # cursor of those before; there may be some even if there are none here


class PoolCondition(ResultModel):
    """What is observed of a pool."""

    type: str
    status: str  # True, False or Unknown
    reason: str
    message: str = ""


class PoolClaims(ResultModel):
    """How often claims found a warm sandbox; those that were refused are not counted."""

    warm: int  # that took one of the pool
    cold: int  # that found none, and had one made
    hit_rate: float | None = None  # warm ones among both, from 0 to 1; None where nothing was claimed
    since: str | None = None  # when counting began


class PoolInfo(ResultModel):
    """Sandboxes of one template that wait for a claim."""

    pool: str
    template: str
    replicas: int  # that are wanted
    existing: int  # that there are, those that start among them
    ready: int  # that can be claimed
    reason: str | None = None  # why it is not full
    conditions: list[PoolCondition]
    claims: PoolClaims


class PoolList(ResultModel):
    """The pools of a tenant."""

    pools: list[PoolInfo]
