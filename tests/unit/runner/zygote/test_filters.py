"""What a program can change of the runner's process, and of its own, behind the filter that it inherits."""

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sandpod_runner.ipc import bpf
from sandpod_runner.zygote import filters

# Runs behind a filter that protects its parent, a pytest process; prints each attempt's error, or what it returned.
PROBE = """
import ctypes, errno, json, os, resource, sys
sys.path.insert(0, sys.argv[1])
from sandpod_runner.ipc import syscalls
from sandpod_runner.zygote import filters
parent = os.getppid()
syscalls.forbid_new_rights()
filters.protect([parent])
libc = ctypes.CDLL(None, use_errno=True)

def trial(act, *arguments):
    try:
        act(*arguments)
    except OSError as error:
        return error.errno
    return 0

def tried(pid):
    return {
        "limits": trial(resource.prlimit, pid, resource.RLIMIT_NOFILE, (512, 512)),
        "processors": trial(os.sched_setaffinity, pid, os.sched_getaffinity(0)),
        "scheduler": trial(os.sched_setscheduler, pid, os.SCHED_OTHER, os.sched_param(0)),
        "parameters": trial(os.sched_setparam, pid, os.sched_param(0)),
        "priority": trial(os.setpriority, os.PRIO_PROCESS, pid, 1),
        "disk": 0 if libc.syscall(IOPRIO_SET, 1, pid, 3 << 13) == 0 else ctypes.get_errno(),
    }

IOPRIO_SET = {"x86_64": 251, "aarch64": 30}[os.uname().machine]
said = {"parent": tried(parent), "self": tried(os.getpid()), "zero": tried(0)}
said["user"] = trial(os.setpriority, os.PRIO_USER, os.getuid(), 5)
said["read"] = list(resource.prlimit(0, resource.RLIMIT_NOFILE))
print(json.dumps(said))
"""


def test_runner_can_not_be_changed_and_a_program_can_change_itself() -> None:
    package = Path(filters.__file__).parents[2]
    before = filters._state(0)
    done = subprocess.run([sys.executable, "-c", PROBE, str(package)], capture_output=True, text=True, check=True)
    said = json.loads(done.stdout)
    assert set(said["parent"].values()) == {errno.EPERM}
    assert said["user"] == errno.EPERM
    assert set(said["self"].values()) == set(said["zero"].values()) == {0}
    assert said["read"] == [512, 512]
    assert filters._state(0) == before


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@pytest.mark.parametrize("assemble", [lambda machine: filters.protection(machine, (1, 7)), filters.connection_watch])
def test_filter_is_whole_and_its_jumps_stay_inside(assemble: Callable[[str], bytes], machine: str) -> None:
    program = assemble(machine)
    assert len(program) % 8 == 0
    size = len(program) // 8
    for index in range(size):
        _, yes, no, _ = bpf.INSTRUCTION.unpack_from(program, index * 8)
        assert index + 1 + max(yes, no) < size or index == size - 1


def test_change_of_a_waiting_process_is_noticed() -> None:
    child = subprocess.Popen(["/bin/sleep", "60"])
    try:
        assert not filters.is_changed(child.pid)
        os.setpriority(os.PRIO_PROCESS, child.pid, 3)
        assert filters.is_changed(child.pid)
    finally:
        child.kill()
        child.wait()
    assert filters.is_changed(child.pid)
