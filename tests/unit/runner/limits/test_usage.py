"""What a sandbox uses now, by a pod's cgroup, and by its processes where there is none."""

import subprocess
import sys
from pathlib import Path

import pytest

from sandpod_runner.ipc import process_tree
from sandpod_runner.limits.memory import Watch
from sandpod_runner.limits.usage import processor_seconds, usage


@pytest.mark.parametrize(
    ("files", "seconds"),
    [
        ({"memory.max": "max", "cpu.stat": "usage_usec 2500000\nuser_usec 1\n"}, 2.5),
        ({"cpuacct/cpuacct.usage": "1500000000\n"}, 1.5),
    ],
)
def test_processor_time_is_that_of_the_cgroup(tmp_path: Path, files: dict[str, str], seconds: float) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert processor_seconds(str(tmp_path)) == seconds


@pytest.mark.parametrize("files", [{}, {"cpu.stat": "usage_usec 9\n"}, {"memory.max": "1", "cpu.stat": "?"}])
def test_processor_time_is_that_of_the_processes_where_no_cgroup_is_the_sandboxs(
    tmp_path: Path, files: dict[str, str]
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    before = processor_seconds(str(tmp_path))
    program = "import time\nwhile time.process_time() < 0.05: pass"
    subprocess.run([sys.executable, "-S", "-c", program], check=True)
    assert processor_seconds(str(tmp_path)) - before >= 0.03  # of a child that has ended, in ticks of the kernel
    assert process_tree.tree_seconds(2**22) == 0


def test_usage_is_seconds_and_bytes(tmp_path: Path) -> None:
    found = usage(Watch(100, lambda _: 40), str(tmp_path))
    assert (found["memory"], found["memory_limit"]) == (40, 100)
    assert 0 <= found["disk"] <= found["disk_limit"]
    assert usage(None, str(tmp_path))["memory"] is None
