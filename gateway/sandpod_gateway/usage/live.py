"""What one gateway's callers are doing now, for the limits that all gateways share. Pure.

It is small and written often; nothing of it is worth keeping when its gateway has gone, but for its sandboxes.
"""

import json
import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

from sandpod_gateway.usage.amounts import Account

BUCKET: Final = 5
"""Seconds in which calls are counted together."""
WINDOW: Final = 60
MAX_ACCOUNTS: Final = 1000
_VERSION: Final = 1


class Window:
    """Calls of the last minute, by the time in units of `BUCKET`."""

    def __init__(self, buckets: dict[int, int] | None = None) -> None:
        self.buckets = Counter(buckets or {})

    def add(self, now: float) -> None:
        """Count a call at a time in seconds since 1970."""
        self.buckets[int(now // BUCKET)] += 1

    def recent(self, now: float) -> Counter[int]:
        """Return the calls of the last minute, and forget earlier ones."""
        first = int((now - WINDOW) // BUCKET) + 1
        while self.buckets and (old := next(iter(self.buckets))) < first:  # they were added in their order
            del self.buckets[old]
        return self.buckets


def seconds_until_room(buckets: Counter[int], limit: int, now: float) -> int | None:
    """Return after how many seconds a minute with these calls has room for one more; None where it has now."""
    calls, wait = sum(buckets.values()), None
    if calls < limit:
        return None
    for bucket in sorted(buckets):
        if calls < limit:
            break
        calls -= buckets[bucket]
        wait = max(1, math.ceil(bucket * BUCKET + WINDOW - now))
    return wait


def parsed(content: bytes, version: int) -> dict[str, Any]:
    """Return a document's fields. Raises ValueError: it is none of that version."""
    plain = json.loads(content)
    if not isinstance(plain, dict) or plain.get("version") != version:
        raise ValueError("it is of another version")
    return plain


@dataclass(slots=True)
class Live:
    """What one account is doing."""

    runs: int = 0
    sandboxes: set[str] = field(default_factory=set)
    calls: Window = field(default_factory=Window)


def encode(accounts: dict[Account, Live], beat: int, now: float) -> bytes:
    """Return what a gateway publishes; `beat` differs from time to time, by which others see that it is there."""
    rows: list[list[Any]] = []
    for account, live in accounts.items():
        calls = live.calls.recent(now)
        if live.runs or live.sandboxes or calls:
            rows.append([*account, live.runs, sorted(live.sandboxes), list(calls.items())])
    if len(rows) > MAX_ACCOUNTS:  # the busiest ones
        rows = sorted(rows, key=lambda row: row[3] + len(row[4]) + len(row[5]))[-MAX_ACCOUNTS:]
    return json.dumps({"version": _VERSION, "beat": beat, "rows": rows}, separators=(",", ":")).encode()


def decode(content: bytes) -> dict[Account, Live]:
    """Return what another gateway has published. Raises ValueError: this version does not understand it."""
    try:
        return {
            Account(tenant, user, key): Live(int(runs), set(sandboxes), Window({int(b): int(n) for b, n in calls}))
            for tenant, user, key, runs, sandboxes, calls in parsed(content, _VERSION)["rows"]
        }
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"this is no document of a gateway's callers: {error}") from error
