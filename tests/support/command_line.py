"""The command `sandpod`, run in this process: a process of its own would import everything anew."""

import asyncio
import io
from contextlib import redirect_stdout
from unittest.mock import patch

import pytest

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
