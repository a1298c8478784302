"""The limits of an account, and the refusals where one is used up: a sentence each, and when to try again. Pure."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from cachetools import LRUCache

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.usage.amounts import Account, Scope
from sandpod_gateway.usage.settings import Quota, QuotaSettings

RUN_SECONDS: Final = 5
"""Seconds after which to try again where somebody's run has to end first: nobody knows when it does."""

_KNOWN_ACCOUNTS: Final = 4096
_NO_LIMIT: Final = Quota()
# Whose limit it is, in the order of an account's scopes.
_HAS: Final = ("Your tenant has", "You have", "Your key has")
_DAY_ENDS: Final = "It begins anew at midnight UTC"


class Limits:
    """The limits of all accounts."""

    def __init__(self, settings: QuotaSettings) -> None:
        self._settings = settings
        self._known: LRUCache[Account, Sequence[tuple[int, Scope, Quota]]] = LRUCache(_KNOWN_ACCOUNTS)

    def of(self, account: Account) -> Sequence[tuple[int, Scope, Quota]]:
        """Return the limits of an account that limit anything, each with its level and scope."""
        if account not in self._known:
            both = enumerate(zip(account.scopes(), self._settings.of(account), strict=True))
            self._known[account] = [(level, scope, quota) for level, (scope, quota) in both if quota != _NO_LIMIT]
        return self._known[account]

    def bound_sandboxes(self, account: Account) -> bool:
        """Return whether there is any limit of the account's sandboxes."""
        return any(quota.sandboxes is not None for _, _, quota in self.of(account))


def too_many_calls(level: int, limit: int, wait: int) -> SandpodError:
    """Return the refusal of a call; `level` is 0 for a tenant's limit, 1 for a user's, 2 for a key's."""
    message = f"{_HAS[level]} made {limit} calls in the last minute, the most that are allowed."
    step = f"Try again in {wait} seconds."
    return SandpodError(ErrorCode.RATE_LIMITED, message, next_step=step, retry_after=wait)


def too_many_runs(level: int, limit: int) -> SandpodError:
    """Return the refusal of a run while others are going on."""
    message = f"{_HAS[level]} {limit} runs going on, the most that are allowed at a time."
    step = f"Wait for one of them to end, or stop one, and try again in {RUN_SECONDS} seconds."
    return SandpodError(ErrorCode.RATE_LIMITED, message, next_step=step, retry_after=RUN_SECONDS)


def too_many_sandboxes(level: int, limit: int) -> SandpodError:
    """Return the refusal of a new sandbox; when there is room is up to the callers, so it has no time to wait for."""
    message = f"{_HAS[level]} {limit} live sandboxes, the most that are allowed."
    step = "Close one that is not needed: list_sandboxes shows yours. An unused one ends by itself."
    return SandpodError(ErrorCode.QUOTA_EXCEEDED, message, next_step=step)


def day_is_used_up(level: int, limit: int, what: str, now: float) -> SandpodError:
    """Return the refusal where a day's amount is used up; `what` names it with its unit."""
    wait = seconds_to_midnight(now)
    message = f"{_HAS[level]} used the {limit} {what} that are allowed a day."
    step = f"{_DAY_ENDS}, in {wait} seconds. What needs none of it goes on working."
    return SandpodError(ErrorCode.QUOTA_EXCEEDED, message, next_step=step, retry_after=wait)


def too_large_for_today(room: int, now: float) -> SandpodError:
    """Return the refusal of what is larger than what is left of a day's bytes."""
    wait = seconds_to_midnight(now)
    message = f"This is over the {room} bytes that are left of today's limit."
    return SandpodError(
        ErrorCode.QUOTA_EXCEEDED, message, next_step=f"{_DAY_ENDS}, in {wait} seconds.", retry_after=wait
    )


def seconds_to_midnight(now: float) -> int:
    """Return the seconds from a time (since 1970) to the end of its day, at least 1."""
    time = datetime.fromtimestamp(now, UTC)
    end = time.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
    return max(1, round((end - time).total_seconds()))
