"""Limits of use, and where use is kept: the settings."""

from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from sandpod_gateway.api.strict_model import StrictModel
from sandpod_gateway.usage.amounts import Account


def _not_zero(value: Any) -> Any:
    if value == 0 or value == "0":  # noqa: PLR1714 - it may be a list, which no set takes
        raise ValueError("a limit of 0 would allow nothing; leave it out for no limit, or revoke the keys")
    return value


Limit = Annotated[Annotated[int, Field(ge=1, le=2**53)] | None, BeforeValidator(_not_zero)]


class Quota(StrictModel):
    """Most that may be used; what is left out has no limit here. Days begin at midnight UTC."""

    sandboxes: Limit = None
    """Live sandboxes."""
    concurrent_runs: Limit = None
    """Runs going on, those in the background among them; a run's call counts from its beginning."""
    calls_per_minute: Limit = None
    """Calls of tools and reads of resources within any minute, to 5 seconds."""
    cpu_seconds_per_day: Limit = None
    """Processor time of runs; a run counts when it ends, and what has begun goes on."""
    bytes_per_day: Limit = None
    """Code, input and output of runs, files in both directions, and packages that are installed. What a run
    moves counts within 15 seconds, and what has begun goes on; the rest counts as it is moved."""
    upload_bytes_per_day: Limit = None
    """Files that are put into sandboxes."""


class QuotaSettings(StrictModel):
    """Limits of use, shared by all gateways. A call needs room in all that apply: its key's, user's and tenant's."""

    per_key: Quota = Quota()
    """Of each key."""
    per_user: Quota = Quota()
    """Of each user, with all keys together."""
    per_tenant: Quota = Quota()
    """Of each tenant, with all users together; without tenants, of all callers."""
    keys: dict[str, Quota] = Field(default_factory=dict)
    """Of single keys, as USER/NAME, or TENANT/USER/NAME: what is set here takes the place of per_key's."""
    users: dict[str, Quota] = Field(default_factory=dict)
    """Of single users, as USER, or TENANT/USER: what is set here takes the place of per_user's."""
    tenants: dict[str, Quota] = Field(default_factory=dict)
    """Of single tenants: what is set here takes the place of per_tenant's."""

    def of(self, account: Account) -> tuple[Quota, Quota, Quota]:
        """Return the limits of an account's tenant, user and key."""
        user = f"{account.tenant}/{account.user}" if account.tenant else account.user
        return (
            _with(self.per_tenant, self.tenants.get(account.tenant)),
            _with(self.per_user, self.users.get(user)),
            _with(self.per_key, self.keys.get(f"{user}/{account.key}")),
        )


def _with(default: Quota, own: Quota | None) -> Quota:
    return default if own is None else default.model_copy(update=own.model_dump(exclude_unset=True))


class UsageSettings(StrictModel):
    """What is kept of use."""

    directory: Path | None = None
    """Folder where it is kept, for gateways on one machine; ~ is not expanded. Default: it is kept by the Kubernetes
    backend in its cluster, and else ends with the gateway."""
    days: Annotated[int, Field(ge=2, le=400)] = 35
    """Days for which it is kept."""
