"""The lines that a server prints when it has started: what they tell people to type can be typed."""

import shlex
import shutil
import sys
from pathlib import Path

import pytest

from sandpod_gateway.cli import serve
from sandpod_gateway.settings import Settings


@pytest.mark.parametrize("path", ["/usr/bin:/bin", str(Path(sys.executable).parent)])
def test_program_to_try_is_found_as_it_is_printed(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", path)
    line = next(line for line in serve._banner(Settings()).splitlines() if "Try it:" in line)
    program, *arguments = shlex.split(line.partition(":")[2])
    assert shutil.which(program) == str(Path(sys.executable).with_name("fastmcp"))
    assert arguments[:3] == ["call", "http://127.0.0.1:8000/mcp", "run_python_code"]
