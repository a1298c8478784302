"""How often the guard counts what a folder on a disk holds."""

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
