"""What a server prints when it has started can be used as it is."""

import os
import shlex
from pathlib import Path

import pytest

from sandpod_gateway import banner
from sandpod_gateway.settings import Settings


def test_command_to_try_is_found_whatever_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", os.defpath)
    (line,) = (line for line in banner.text(Settings()).splitlines() if "Try it:" in line)
    program, *arguments = shlex.split(line.partition("Try it:")[2])
    assert arguments[:3] == ["call", "http://127.0.0.1:8000/mcp", "run_python_code"]
    assert Path(program).is_file()
    assert os.access(program, os.X_OK)
