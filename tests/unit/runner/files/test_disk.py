"""What counts as used of a workspace on a disk, and how soon the next look is."""

import contextlib
import os
from pathlib import Path

import pytest

from sandpod_runner.files.disk import DiskWatch, find_disk_watch
from sandpod_runner.files.operations import Uploads
from sandpod_runner.files.workspace import Workspace
from sandpod_runner.limits.memory import in_memory

MIB = 1024 * 1024


@pytest.fixture
def watch(tmp_path: Path) -> DiskWatch:
    return DiskWatch(str(tmp_path), 10 * MIB)


def test_files_in_all_folders_count(watch: DiskWatch, tmp_path: Path) -> None:
    empty = watch.used()
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "one").write_bytes(bytes(MIB))
    (tmp_path / "a" / "b" / "two").write_bytes(bytes(2 * MIB))
    assert 3 * MIB <= watch.used() - empty < 3 * MIB + 64 * 1024


def test_file_with_two_names_counts_once(watch: DiskWatch, tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(bytes(MIB))
    before = watch.used()
    os.link(tmp_path / "one", tmp_path / "two")
    assert watch.used() - before < MIB


def test_holes_take_no_room_and_empty_files_take_some(watch: DiskWatch, tmp_path: Path) -> None:
    before = watch.used()
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(100 * MIB)
    for number in range(10):
        (tmp_path / f"empty-{number}").touch()
    assert 11 * 1024 <= watch.used() - before < MIB


def test_links_lead_nowhere(watch: DiskWatch, tmp_path: Path) -> None:
    (tmp_path / "up").symlink_to("/usr")
    (tmp_path / "round").symlink_to(tmp_path)
    assert watch.used() < MIB


def test_open_file_without_a_name_counts(watch: DiskWatch, tmp_path: Path) -> None:
    with (tmp_path / "gone").open("wb") as file:
        file.write(bytes(2 * MIB))
        file.flush()
        (tmp_path / "gone").unlink()
        assert watch.used() < MIB
        assert watch.used([os.getpid(), 2**22 + 1]) >= 2 * MIB


def test_open_file_without_a_name_counts_in_its_own_folder_alone(tmp_path: Path) -> None:
    for name in ("workspace", "packages"):
        (tmp_path / name).mkdir()
    workspace, packages = (
        DiskWatch(str(tmp_path / own), 10 * MIB, beside=str(tmp_path / other))
        for own, other in (("workspace", "packages"), ("packages", "workspace"))
    )
    with (tmp_path / "packages" / "gone").open("wb") as file:
        file.write(bytes(2 * MIB))
        file.flush()
        (tmp_path / "packages" / "gone").unlink()
        assert packages.used([os.getpid()]) >= 2 * MIB
        assert workspace.used([os.getpid()]) < MIB


def test_folder_that_is_written_to_seldom_is_counted_once_its_file_system_has_lost_what_was_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free, now = 100 * MIB, 1000.0
    monkeypatch.setattr(DiskWatch, "_free_bytes", lambda _: free)
    monkeypatch.setattr("sandpod_runner.files.disk.time.monotonic", lambda: now)
    watch = DiskWatch(str(tmp_path), 10 * MIB, packages=True)
    assert not watch.is_steady()
    watch.used()
    free -= 9 * MIB
    assert watch.is_steady()
    free -= 2 * MIB
    assert not watch.is_steady()
    free = 200 * MIB
    assert watch.is_steady()
    now += 11
    assert not watch.is_steady()
    (tmp_path / "large").write_bytes(bytes(11 * MIB))
    watch.used()
    free += 50 * MIB  # of other folders: this one may hold too much all the same
    assert not watch.is_steady()
    often = DiskWatch(str(tmp_path), 100 * MIB)
    often.used()
    assert not often.is_steady()


def test_looks_come_sooner_the_less_is_left_and_never_fill_the_time(watch: DiskWatch) -> None:
    large = DiskWatch(watch._folder, 4096 * MIB)
    pauses = [large.pause(used * MIB, 0.0) for used in (0, 3000, 4000, 4095, 5000)]
    assert pauses == sorted(pauses, reverse=True)
    assert (pauses[0], pauses[-1]) == (2.0, 0.1)
    assert large.pause(0, 1.0) == 10.0


def test_nothing_is_watched_where_nothing_limits_it_or_the_file_system_does(tmp_path: Path) -> None:
    assert find_disk_watch(str(tmp_path), None) is None
    assert find_disk_watch("/dev/shm", MIB) is None
    assert find_disk_watch(str(tmp_path), MIB) is not None
    assert find_disk_watch(str(tmp_path), MIB, [str(tmp_path)]) is None
    assert in_memory(str(tmp_path / "missing")) is False


def test_uploads_side_by_side_share_what_is_left(tmp_path: Path) -> None:
    disk = DiskWatch(str(tmp_path), 4 * MIB)
    streams = [Uploads(Workspace(str(tmp_path)), disk) for _ in range(4)]
    for part in range(4):
        for number, uploads in enumerate(streams):
            with contextlib.suppress(OSError):
                uploads.part(number, {"path": f"{number}.bin", "last": part == 3}, bytes(MIB // 2))
            assert disk.used() <= disk.limit
    for uploads in streams:
        uploads.close()
