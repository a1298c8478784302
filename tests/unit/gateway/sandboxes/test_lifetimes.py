"""How long a sandbox is to live when its caller changes that, and whether it can be suspended."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Final

import pytest

from sandpod_api.fields import MAX_LIFETIME
from sandpod_gateway.backends.base import SandboxRecord
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.sandboxes.lifetimes import check_suspension, lifetime_until

CREATED: Final = datetime(2026, 1, 1, tzinfo=UTC)
NOW: Final = CREATED + timedelta(seconds=99.5)
RECORD: Final = SandboxRecord(
    name="sbx-1",
    owner="alice",
    session="",
    template="default",
    network="none",
    status="Ready",
    created=CREATED,
    ttl=300,
    idle_timeout=60,
)
PERSISTENT: Final = replace(RECORD, persistent=True)


@pytest.mark.parametrize(
    ("record", "seconds", "shorten", "lifetime"),
    [
        *((RECORD, 50, True, (150, 150)), (RECORD, 900, True, (1000, 1000))),
        *((RECORD, 50, False, None), (RECORD, 100, False, (300, 100)), (RECORD, 900, False, (1000, 900))),
        *((PERSISTENT, 50, True, (300, 50)), (PERSISTENT, 900, True, (300, 300)), (PERSISTENT, 60, True, None)),
        *((PERSISTENT, 50, False, None), (PERSISTENT, 100, False, (300, 100)), (PERSISTENT, 900, False, (1000, 900))),
    ],
)
def test_a_lifetime_is_counted_from_now_on(
    record: SandboxRecord, seconds: int, *, shorten: bool, lifetime: tuple[int, int] | None
) -> None:
    assert lifetime_until(record, seconds, NOW, shorten=shorten) == lifetime


def test_what_cannot_be_is_refused() -> None:
    for record, shorten in ((RECORD, True), (RECORD, False), (PERSISTENT, False)):
        with pytest.raises(SandpodError) as refused:
            lifetime_until(record, MAX_LIFETIME, NOW, shorten=shorten)
        assert refused.value.code == "invalid_argument"
    check_suspension(PERSISTENT)
    for record, code in ((RECORD, "invalid_argument"), (replace(PERSISTENT, status="Suspended"), "session_busy")):
        with pytest.raises(SandpodError) as refused:
            check_suspension(record)
        assert refused.value.code == code
