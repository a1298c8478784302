"""How often the guard counts what a folder on a disk holds."""

import asyncio
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sandpod_runner.files.disk import DiskWatch
from sandpod_runner.runs.guard import Guard


class Counted(DiskWatch):
    """Keeps how often it was counted."""

    counts = 0

    def used(self, pids: Iterable[int] = ()) -> int:
        self.counts += 1
        return super().used(pids)


def guard_of(disk: DiskWatch) -> Guard:
    toolbox: Any = SimpleNamespace(
        memory=None, contexts=SimpleNamespace(pids=dict), storage=SimpleNamespace(disk=None), packages=disk
    )
    return Guard(toolbox, [])


async def test_folder_is_not_counted_for_each_of_many_short_runs_but_after_an_upload(tmp_path: Path) -> None:
    disk = Counted(str(tmp_path), 2**32)
    guard = guard_of(disk)
    for _ in range(3):
        assert 0 < await guard._look_at_disk(disk) <= 2
    assert disk.counts == 1
    disk.look()
    await guard._look_at_disk(disk)
    assert disk.counts == 3


async def test_folder_that_is_steady_is_looked_at_and_not_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Counted(str(tmp_path), 2**32, packages=True)
    monkeypatch.setattr(disk, "_free_bytes", lambda: 2**40)
    guard = guard_of(disk)
    for _ in range(3):
        await guard._look_at_disk(disk)
        disk.due = 0.0
    assert disk.counts == 1
    monkeypatch.setattr(disk, "_free_bytes", lambda: 2**40 - 2**33)
    await guard._look_at_disk(disk)
    assert disk.counts == 2


async def test_look_that_fails_is_followed_by_the_next_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandpod_runner.runs.guard._AFTER_FAILURE", 0.0)
    disk = Counted(str(tmp_path), 2**32)
    guard, looked = guard_of(disk), 0

    async def look() -> float:
        nonlocal looked
        looked += 1
        if looked < 3:
            raise FileNotFoundError
        guard._runs = []
        return 0.0

    guard._runs = [object()]  # type: ignore[list-item]
    guard._tasks[look] = asyncio.create_task(guard._keep_looking(look))
    await asyncio.wait_for(guard._tasks[look], 60)
    assert looked == 3
