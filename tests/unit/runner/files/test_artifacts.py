"""Which files count as a run's: all that it created or changed, none that was there, none of a tool's."""

import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from sandpod_runner.files.artifacts import COARSE, MAX_KNOWN, MOST, Artifacts
from sandpod_runner.files.workspace import PARTIAL
from sandpod_runner.protocol.errors import Refusal
from sandpod_runner.protocol.messages import HIDDEN


@pytest.fixture
def artifacts(tmp_path: Path) -> Artifacts:
    return Artifacts(str(tmp_path))


def paths(found: list[dict[str, object]]) -> list[object]:
    return [entry["path"] for entry in found]


def next_step(path: Path) -> None:
    """Wait until the clock of file systems has gone on since a file was changed."""
    while time.clock_gettime_ns(COARSE) <= path.stat().st_ctime_ns:
        pass


async def test_folder_that_is_swapped_for_a_link_leads_nowhere(
    artifacts: Artifacts, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside = tmp_path_factory.mktemp("outside")
    mark = artifacts.begin("run")
    (tmp_path / "a" / "b").mkdir(parents=True)
    (outside / "b").mkdir()
    (outside / "b" / "secret").write_text("1")
    scandir = os.scandir

    def swapping(path: Any) -> Any:
        found = scandir(path)
        if not (tmp_path / "a").is_symlink() and Path(f"/proc/self/fd/{path}").readlink().name == "a":
            (tmp_path / "a").rename(tmp_path / "moved")
            (tmp_path / "a").symlink_to(outside)
        return found

    monkeypatch.setattr(os, "scandir", swapping)
    assert "a/b/secret" not in paths((await artifacts.end("run", mark)).entries)
    assert (tmp_path / "a").is_symlink()


async def test_new_and_changed_files_are_found_and_old_ones_are_not(artifacts: Artifacts, tmp_path: Path) -> None:
    (tmp_path / "old").write_text("1")
    (tmp_path / "appended").write_text("1")
    (tmp_path / "renamed").write_text("1")
    next_step(tmp_path / "renamed")
    mark = artifacts.begin("run")
    (tmp_path / "d" / "e").mkdir(parents=True)
    (tmp_path / "d" / "e" / "new").write_text("123")
    with (tmp_path / "appended").open("a") as file:
        file.write("2")
    (tmp_path / "renamed").rename(tmp_path / "name")
    found = await artifacts.end("run", mark)
    assert paths(found.entries) == ["appended", "d/e/new", "name"]
    assert found.entries[1]["size"] == 3
    assert found.more == 0


async def test_files_of_the_same_step_of_the_clock_are_told_apart(artifacts: Artifacts, tmp_path: Path) -> None:
    """However fast runs follow each other."""
    for index in range(50):
        mark = artifacts.begin(f"run-{index}")
        (tmp_path / f"after-{index}").write_text("1")
        assert paths((await artifacts.end(f"run-{index}", mark)).entries) == [f"after-{index}"]


async def test_times_that_a_program_sets_deceive_nobody(artifacts: Artifacts, tmp_path: Path) -> None:
    (tmp_path / "old").write_text("1")
    os.utime(tmp_path / "old", (2**31, 2**31))
    next_step(tmp_path / "old")
    mark = artifacts.begin("run")
    (tmp_path / "new").write_text("1")
    os.utime(tmp_path / "new", (0, 0))
    assert paths((await artifacts.end("run", mark)).entries) == ["new"]


async def test_what_a_tool_puts_there_is_no_runs(artifacts: Artifacts, tmp_path: Path) -> None:
    mark = artifacts.begin("run")
    for name in ("uploaded", "changed later"):
        (tmp_path / name).write_text("1")
        artifacts.uploaded(name)
    next_step(tmp_path / "changed later")
    (tmp_path / "changed later").write_text("2")
    assert paths((await artifacts.end("run", mark)).entries) == ["changed later"]


async def test_links_folders_and_what_is_no_programs_are_left_out(artifacts: Artifacts, tmp_path: Path) -> None:
    mark = artifacts.begin("run")
    for name in (HIDDEN, "__pycache__", "empty"):
        (tmp_path / name).mkdir()
    (tmp_path / HIDDEN / "log").write_text("1")
    (tmp_path / "__pycache__" / "a.pyc").write_text("1")
    (tmp_path / f"{PARTIAL}1").write_text("1")
    (tmp_path / "leak.txt").symlink_to("/etc/passwd")
    (tmp_path / "up").symlink_to("/")
    os.mkfifo(tmp_path / "pipe")
    assert (await artifacts.end("run", mark)).entries == []


async def test_many_are_counted_and_the_first_are_named(artifacts: Artifacts, tmp_path: Path) -> None:
    mark = artifacts.begin("run")
    for index in range(MOST + 7):
        (tmp_path / f"{index:04}").touch()
    found = await artifacts.end("run", mark)
    assert (len(found.entries), found.more) == (MOST, 7)
    assert paths(found.entries)[0] == "0000"
    assert len(artifacts.list()) == MOST + 7


async def test_list_has_what_is_still_there_since_a_run(artifacts: Artifacts, tmp_path: Path) -> None:
    for name in ("one", "two", "three"):
        mark = artifacts.begin(name)
        (tmp_path / name).write_text(name)
        await artifacts.end(name, mark)
    (tmp_path / "two").unlink()
    assert paths(artifacts.list()) == ["one", "three"]
    assert paths(artifacts.list("two")) == ["three"]
    assert paths(artifacts.list("one")) == ["one", "three"]
    for run in ("four", "", 5, ["one"]):
        with pytest.raises(Refusal) as refused:
            artifacts.list(run)
        assert refused.value.code == "not_found"


def test_what_is_known_is_bounded(artifacts: Artifacts, tmp_path: Path) -> None:
    for index in range(MAX_KNOWN + 5):
        artifacts.begin(f"run-{index}")
    with pytest.raises(Refusal):
        artifacts.list("run-4")
    assert artifacts.list("run-5") == []
    assert tmp_path.exists()


async def test_large_workspace_is_looked_through_in_a_thread(
    artifacts: Artifacts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = artifacts.begin("run")
    for index in range(50):
        (tmp_path / f"{index:02}").touch()
    looked: list[threading.Thread] = []
    monkeypatch.setattr("sandpod_runner.files.artifacts._QUICK", -1.0)
    monkeypatch.setattr(artifacts, "_uploads", Noting(looked))
    assert len((await artifacts.end("run", mark)).entries) == 50
    assert looked.count(threading.main_thread()) == 1


class Noting(dict[str, int]):
    """Notes in which thread each file is looked up."""

    def __init__(self, looked: list[threading.Thread]) -> None:
        super().__init__()
        self._looked = looked

    def get(self, key: str, default: Any = None) -> Any:
        self._looked.append(threading.current_thread())
        return super().get(key, default)


async def test_file_of_a_later_run_stays_one_since_it_when_an_earlier_run_ends(
    artifacts: Artifacts, tmp_path: Path
) -> None:
    long = artifacts.begin("long")
    short = artifacts.begin("short")
    (tmp_path / "made").write_text("1")
    assert paths((await artifacts.end("short", short)).entries) == ["made"]
    await artifacts.end("long", long)
    assert paths(artifacts.list("short")) == ["made"]
