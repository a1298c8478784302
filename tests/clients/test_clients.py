"""The programs in examples/clients/ against a server with local sandboxes, with a stand-in for the model's API.

They run in .build/clients, whose libraries bring an MCP client of their own: `make test-clients`.
"""

import asyncio
import os
from pathlib import Path

import pytest

from clients import model_server
from support.gateway.served import gateway

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".build/clients/bin/python"
PROGRAMS = sorted((ROOT / "examples/clients").glob("*.py"))


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
async def test_agent_runs_code_and_answers_with_its_output(program: Path) -> None:
    pipe = asyncio.subprocess.PIPE
    async with gateway() as address, model_server.listening() as model:
        environment = os.environ | {
            "SANDPOD_URL": f"{address}/mcp",
            "OPENAI_BASE_URL": f"{model}/v1",
            "OPENAI_API_KEY": "unused",
            "OPENAI_AGENTS_DISABLE_TRACING": "1",
            "GOOGLE_GEMINI_BASE_URL": model,
            "GEMINI_API_KEY": "unused",
        }
        process = await asyncio.create_subprocess_exec(PYTHON, program, env=environment, stdout=pipe, stderr=pipe)
        printed, complaints = await process.communicate()
    assert (process.returncode, printed.decode()) == (0, "The answer is 42.\n"), complaints.decode()[-2000:]
