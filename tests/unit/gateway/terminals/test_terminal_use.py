"""What counts as use of a terminal's sandbox, and what is charged for it."""

from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from fakes.backend import FakeBackend
from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.backends.base import ClaimRequest
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.metrics import Metrics
from sandpod_gateway.sandboxes.service import Sandboxes
from sandpod_gateway.terminals.output import Output, Place
from sandpod_gateway.terminals.terminal import CHARGE_EVERY, Terminal
from sandpod_gateway.usage.amounts import Account
from sandpod_gateway.usage.meter import Meter
from sandpod_gateway.usage.settings import QuotaSettings


class Echo:
    """A channel to something that writes whenever it is asked."""

    name = "term-1"

    async def read(self) -> bytes:
        return b"x" * CHARGE_EVERY

    def acknowledge(self, upto: int, mark: int) -> None:
        pass

    async def write(self, data: bytes) -> None:
        pass

    async def close(self, *, stay: bool) -> None:
        pass


@pytest.mark.promise("terminal-idle")
async def test_what_is_typed_is_use_and_what_is_shown_is_not_and_both_are_charged() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    backend = FakeBackend(clock=lambda: now)
    quotas = QuotaSettings.model_validate({"per_user": {"bytes_per_day": 10 * CHARGE_EVERY}})
    sandboxes = Sandboxes(backend, Metrics(), Meter(quotas, Metrics()))
    await backend.start()
    record = await backend.claim(ClaimRequest(owner="me"))

    async def used() -> datetime | None:
        found = await backend.get(record.name)
        return found.last_activity if found is not None else None

    begin = await used()
    now += timedelta(minutes=5)
    account = Account("", "me", "")
    terminal = Terminal(
        sandboxes=sandboxes,
        record=record,
        account=account,
        channel=cast("Any", Echo()),
        output=Output(Place(0, 0), None),
    )
    # A gateway that looks whether it has ended, or has it open again over another stream, does not use it either.
    async with sandboxes.connection(record, use=False):
        for _ in range(5):
            await terminal.read()
    assert await used() == begin
    await terminal.write(b"ls\n")
    assert await used() == now
    sandboxes.meter.ongoing.keep()  # as before each write of what is kept, in case this gateway is killed
    assert sandboxes.meter.document.sandboxes[record.name].amounts.bytes_in == 3
    await terminal.close(stay=True)
    charged = sandboxes.meter.document.sandboxes[record.name].amounts
    assert (charged.bytes_out, charged.bytes_in, charged.uploads) == (5 * CHARGE_EVERY, 3, 0)

    for _ in range(4):
        await terminal.read()
    with pytest.raises(SandpodError) as refused:
        await terminal.read()
    assert refused.value.code == ErrorCode.QUOTA_EXCEEDED
    await sandboxes.close()
    await backend.close()
