"""What a sweep kills, and what it never does for the sake of one process that is slow to end."""

import asyncio
import itertools
import os
import signal
from collections.abc import Callable

import pytest

from sandpod_runner.ipc import process_tree
from sandpod_runner.processes import program
from sandpod_runner.processes.program import sweep


@pytest.fixture
def killed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What signals were sent to, of a runner that is PID 1."""
    sent: list[int] = []
    monkeypatch.setattr(os, "getpid", lambda: 1)
    monkeypatch.setattr(process_tree, "parents", dict)
    monkeypatch.setattr(os, "kill", lambda pid, number: sent.append(pid) if number == signal.SIGKILL else None)
    return sent


async def swept(strays: Callable[[], set[int]], ends: Callable[[], int] = lambda: 0) -> None:
    """Sweep on a clock that goes on by a hundredth of a second whenever it is read; something always has just died."""
    died = asyncio.Event()
    await sweep(died.set, strays, ends, died, itertools.count(0, 0.01).__next__)


async def test_process_that_is_slow_to_end_takes_nothing_else_along(killed: list[int]) -> None:
    await swept(lambda: {7})
    assert set(killed) == {7}
    assert len(killed) > program._GROWING


async def test_many_that_end_one_by_one_take_nothing_else_along(killed: list[int]) -> None:
    left = set(range(100, 400))

    def fewer() -> set[int]:
        left.discard(max(left, default=0))
        return set(left)

    await swept(fewer)
    assert -1 not in killed
    assert left == set()


async def test_what_forks_away_from_every_scan_is_met_by_a_signal_to_all(killed: list[int]) -> None:
    numbers = itertools.count(100)

    def forking() -> set[int]:
        return {next(numbers)} if -1 not in killed else set()

    await swept(forking)
    assert killed.count(-1) == 1
    assert killed.index(-1) > 2 * program._GROWING  # near the deadline, not at once


async def test_what_runs_leave_that_end_meanwhile_is_no_reason_for_it(killed: list[int]) -> None:
    numbers = itertools.count(100)
    ends = itertools.count()
    await swept(lambda: {7, next(numbers)}, lambda: next(ends))
    assert -1 not in killed
