"""The command `sandpod`, run in this process: a process of its own would import everything anew."""

import asyncio
import io
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from unittest.mock import patch

import pytest

from sandpod.cli import main as program
from sandpod_gateway.cli import main


async def sandpod(*command: str) -> str:
    """Run `sandpod` and return what it prints."""
    out = io.StringIO()

    def run() -> int | str | None:
        with patch("sys.argv", ["sandpod", *command]), redirect_stdout(out), pytest.raises(SystemExit) as ended:
            main.main()
        return ended.value.code

    assert await asyncio.to_thread(run) == 0
    return out.getvalue()


@dataclass(frozen=True, slots=True)
class Done:
    """What a command of the client did."""

    code: int
    out: str
    err: str


async def client(*command: str, given: str | None = None) -> Done:
    """Run `sandpod` with one of the client's commands, and with that input."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline="") for _ in range(2))

    def run() -> int | str | None:
        with (
            tempfile.TemporaryFile("w+", encoding="utf-8") as file,
            patch("sys.argv", ["sandpod", *command]),
            patch("sys.stdin", file),
            redirect_stdout(out),
            redirect_stderr(err),
        ):
            file.write(given or "")
            file.seek(0)
            with pytest.raises(SystemExit) as ended:
                program.main()
        return ended.value.code

    code = await asyncio.to_thread(run)
    for stream in (out, err):
        stream.flush()
    texts = [stream.buffer.getvalue().decode() for stream in (out, err)]
    return Done(int(code or 0), *texts)
