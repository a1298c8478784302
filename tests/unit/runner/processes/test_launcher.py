"""The launcher against a real zygote that is stopped or killed at the worst moment."""

import asyncio
import os
import resource
import select
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from sandpod_runner.ipc import process_tree
from sandpod_runner.ipc.jobs import Job
from sandpod_runner.output.stdio_pipes import open_pipes
from sandpod_runner.processes.launcher import Launcher
from sandpod_runner.processes.node_pool import NodePool
from sandpod_runner.processes.program import LostError, Program

PATIENCE = 30.0


@pytest.fixture
async def launcher() -> AsyncIterator[Launcher]:
    launcher = Launcher({"PATH": os.environ["PATH"], "HOME": "/nonexistent"}, (), sys.executable)
    await asyncio.wait_for(launcher.ready.wait(), PATIENCE)
    yield launcher
    await launcher.close()


def start(launcher: Launcher, *command: str) -> Program:
    return launcher.start(Job({}, [], command=list(command)), [os.open(os.devnull, os.O_RDWR)] * 3)


def until(right: Callable[[], bool]) -> None:
    """Wait without letting the launcher read anything."""
    deadline = time.monotonic() + PATIENCE
    while not right():
        assert time.monotonic() < deadline


def command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


async def test_stopped_zygote_goes_on(launcher: Launcher) -> None:
    os.kill(launcher._zygote.pid, signal.SIGSTOP)
    program = start(launcher, "/bin/sh", "-c", "exit 3")
    assert (await asyncio.wait_for(program.ended, PATIENCE)).status == 3 << 8


async def test_program_whose_start_was_not_read_yet_is_not_called_failed_when_the_zygote_is_killed(
    launcher: Launcher,
) -> None:
    zygote = launcher._zygote.pid
    first = start(launcher, "/bin/sleep", "3041")
    until(lambda: any(b"3041" in command_line(pid) for pid in process_tree.trees([zygote], process_tree.parents())))
    until(lambda: bool(select.select([launcher._zygote.sock], [], [], 0)[0]))  # it has been told, and not read
    os.kill(zygote, signal.SIGSTOP)
    until(lambda: Path(f"/proc/{zygote}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "T")
    second = start(launcher, "/bin/sh", "-c", "exit 4")  # which the first zygote never reads
    os.kill(zygote, signal.SIGKILL)
    pid = await asyncio.wait_for(first.pid, PATIENCE)
    assert (await asyncio.wait_for(second.ended, PATIENCE)).status == 4 << 8
    assert not first.ended.done()
    os.kill(pid, signal.SIGKILL)


async def test_program_is_not_ended_with_a_killed_zygote_that_is_slow_to_end(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    zygote = launcher._zygote.pid
    pid = await asyncio.wait_for(start(launcher, "/bin/sleep", "3042").pid, PATIENCE)
    kill = process_tree.send
    monkeypatch.setattr(os, "WUNTRACED", 0)
    kill([zygote], signal.SIGSTOP)  # that stands for one that is killed and gets no processor time to end
    monkeypatch.setattr(process_tree, "send", lambda pids, number: kill({*pids} - {zygote}, number))
    launcher._lose(launcher._zygote)
    table = process_tree.parents()
    assert table[pid] == zygote
    ended = process_tree.trees(launcher._strays(), table)
    monkeypatch.undo()
    kill([pid, zygote], signal.SIGKILL)
    assert not ended & {pid, zygote}


@pytest.mark.promise("local-processes")
async def test_what_the_runner_has_open_is_no_programs(tmp_path: Path) -> None:
    kept, listed = os.open(os.devnull, os.O_RDONLY), tmp_path / "listed"
    os.set_inheritable(kept, True)
    launcher = Launcher({"PATH": os.environ["PATH"], "HOME": "/nonexistent"}, (), sys.executable)
    try:
        command = ["/bin/sh", "-c", f"ls /proc/self/fd > {listed}"]
        for _ in range(2):  # by the one that waits, and by one that is forked
            program = start(launcher, *command)
            assert (await asyncio.wait_for(program.ended, PATIENCE)).status == 0
            assert listed.read_text().split() == ["0", "1", "2", "3"]  # the last is the listing's own
    finally:
        os.close(kept)
        await launcher.close()


async def test_zygote_that_does_not_answer_is_replaced(launcher: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "WUNTRACED", 0)  # that it was stopped is not noticed
    zygote = launcher._zygote.pid
    os.kill(zygote, signal.SIGSTOP)
    program = start(launcher, "/bin/sh", "-c", "exit 5")
    launcher.renew()
    assert (await asyncio.wait_for(program.ended, PATIENCE)).status == 5 << 8
    assert launcher._zygote.pid not in {0, zygote}


async def test_number_of_a_process_that_has_ended_is_never_killed(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = start(launcher, "/bin/sh", "-c", "exit 6")
    pid = await asyncio.wait_for(program.pid, PATIENCE)
    until(lambda: not program.alive)  # which is not reported yet
    killed: list[int] = []
    monkeypatch.setattr(process_tree, "end_trees", lambda pids, **_: killed.extend(pids))
    program.abandon()
    program.signal(signal.SIGTERM)
    await asyncio.wait_for(program.ended, PATIENCE)
    await program.kill()
    assert pid not in killed


async def test_no_descriptor_is_lost_where_no_more_can_be_had(launcher: Launcher) -> None:
    pool = NodePool(launcher, "/bin/true", Job({}, []))
    before = descriptors()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        for room in range(11):
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            resource.setrlimit(resource.RLIMIT_NOFILE, (first_free(room), limits[1]))
            with pytest.raises((OSError, LostError)):
                open_pipes(stdin=True, shows=True) if room < 8 else pool._take()
            with pytest.raises((OSError, LostError)):
                start(launcher, "/bin/true") if room < 2 else pool._take()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert descriptors() == before


def first_free(room: int) -> int:
    """Return a limit with which so many more descriptors can be opened."""
    used = descriptors()
    limit = 0
    while room >= 0:
        room -= limit not in used
        limit += 1
    return limit - 1


def descriptors() -> set[int]:
    return {int(entry.name) for entry in list(Path("/proc/self/fd").iterdir()) if entry.exists()}
