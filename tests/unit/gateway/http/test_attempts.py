"""Refused credentials are answered more and more slowly; valid ones never are."""

import asyncio
from typing import Any

import pytest

from sandpod_gateway.http.attempts import FIRST, FREE, LONGEST, MAX_WAITING, Attempts
from sandpod_gateway.metrics import Metrics


class Door:
    """Sends answers through `Attempts`, and records for how long each was held instead of waiting."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.metrics = Metrics()
        self.attempts = Attempts(self.metrics)
        self.pauses: list[float] = []
        monkeypatch.setattr("sandpod_gateway.http.attempts.asyncio.sleep", self._sleep)

    async def _sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)

    async def answer(self, status: int, address: str = "192.0.2.1", key: str | None = None) -> float:
        """Send an answer; return for how long it was held."""
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        headers = [] if key is None else [(b"authorization", f"Bearer {key}".encode())]
        scope = {"type": "http", "client": (address, 1), "headers": headers}
        self.pauses.clear()
        await self.attempts.slowed(scope, send)({"type": "http.response.start", "status": status, "headers": []})
        assert len(sent) == 1
        return sum(self.pauses)


@pytest.fixture
def door(monkeypatch: pytest.MonkeyPatch) -> Door:
    return Door(monkeypatch)


@pytest.mark.promise("attempts")
async def test_refusals_of_an_address_wait_longer_and_longer_up_to_a_bound(door: Door) -> None:
    pauses = [await door.answer(401, key=str(number)) for number in range(FREE + 12)]
    assert pauses[:FREE] == [0.0] * FREE
    assert pauses[FREE : FREE + 3] == [FIRST, 2 * FIRST, 4 * FIRST]
    assert pauses[-1] == LONGEST
    assert door.metrics.registry.get_sample_value("sandpod_refused_credentials_total") == FREE + 12


@pytest.mark.promise("attempts")
async def test_valid_credentials_of_the_same_address_are_not_held_up(door: Door) -> None:
    for _ in range(FREE + 5):
        await door.answer(401)
    assert await door.answer(200) == 0.0
    assert await door.answer(202, key="right") == 0.0


@pytest.mark.promise("attempts")
async def test_credential_is_known_again_from_other_addresses(door: Door) -> None:
    for number in range(FREE):
        assert await door.answer(401, f"192.0.2.{number}", "revoked") == 0.0
    assert await door.answer(401, "198.51.100.7", "revoked") == FIRST
    assert await door.answer(401, "198.51.100.8", "another") == 0.0


async def test_addresses_of_one_ipv6_network_count_as_one(door: Door) -> None:
    for number in range(FREE):
        await door.answer(401, f"2001:db8::{number:x}")
    assert await door.answer(401, "2001:db8::ffff") == FIRST
    assert await door.answer(401, "2001:db8:0:1::1") == 0.0


async def test_caller_without_an_address_is_counted_too(door: Door) -> None:
    for _ in range(FREE):
        await door.answer(401, "")
    assert await door.answer(401, "") == FIRST


async def test_no_more_than_a_bound_of_refusals_wait_at_a_time() -> None:
    slow = Attempts(Metrics())
    scope = {"type": "http", "client": ("192.0.2.1", 1), "headers": []}
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def refuse() -> None:
        await slow.slowed(scope, send)({"type": "http.response.start", "status": 401, "headers": []})

    slow._refused["192.0.2.1"] = FREE + 10
    waiting = [asyncio.create_task(refuse()) for _ in range(MAX_WAITING)]
    await asyncio.sleep(0)
    assert not sent
    await refuse()
    assert len(sent) == 1
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert slow._waiting[None] == 0
