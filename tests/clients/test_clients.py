"""The programs in examples/clients/ against a server with local sandboxes, with a stand-in for the model's API.

They and their libraries' conversions of the tools run in .build/clients, whose libraries bring an MCP client of their
own: `make test-clients`.
"""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
import pytest_asyncio
from fastmcp import Client

from clients import conversions, model_server
from support.gateway.served import gateway

ROOT: Final = Path(__file__).resolve().parents[2]
PYTHON: Final = ROOT / ".build/clients/bin/python"
PROGRAMS: Final = sorted((ROOT / "examples/clients").glob("*.py"))


@dataclass(frozen=True)
class Ran:
    """What became of the programs: their exit codes by name, and a folder with what each has left."""

    codes: dict[str, int]
    folder: Path

    def text(self, file: str) -> str:
        return (self.folder / file).read_text(encoding="utf-8")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def ran(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Ran]:
    """Run all programs, one after another, each with its library's own imports in a process of its own."""
    folder = tmp_path_factory.mktemp("clients")
    pipe = asyncio.subprocess.PIPE
    async with gateway() as address, model_server.listening() as model:
        async with Client(f"{address}/mcp") as client:
            listed = await client.list_tools()
        tools = [tool.model_dump(mode="json", by_alias=True, exclude_none=True) for tool in listed]
        (folder / "tools.json").write_text(json.dumps(tools), encoding="utf-8")
        environment = os.environ | {
            "SANDPOD_URL": f"{address}/mcp",
            "OPENAI_BASE_URL": f"{model}/v1",
            "OPENAI_API_KEY": "unused",
            "OPENAI_AGENTS_DISABLE_TRACING": "1",
            "GOOGLE_GEMINI_BASE_URL": model,
            "GEMINI_API_KEY": "unused",
        }
        process = await asyncio.create_subprocess_exec(
            PYTHON, conversions.__file__, folder, *PROGRAMS, env=environment, stdout=pipe, stderr=pipe
        )
        printed, complaints = await process.communicate()
    assert process.returncode == 0, complaints.decode()[-2000:]
    yield Ran(json.loads(printed), folder)


@pytest.mark.parametrize("program", [path.stem for path in PROGRAMS])
def test_agent_runs_code_and_answers_with_its_output(ran: Ran, program: str) -> None:
    said = (ran.codes[program], ran.text(f"{program}.out"))
    assert said == (0, "The answer is 42.\n"), ran.text(f"{program}.err")[-2000:]


def test_libraries_convert_all_tools_and_lose_nothing(ran: Ran) -> None:
    tools: list[dict[str, Any]] = json.loads(ran.text("tools.json"))
    expected = {
        tool["name"]: {
            name: field.get("description", "") for name, field in tool["inputSchema"].get("properties", {}).items()
        }
        for tool in tools
    }
    assert len(expected) == 28
    found: dict[str, Any] = {}
    for path in PROGRAMS:
        found |= json.loads(ran.text(f"{path.stem}.json"))
    assert found.keys() == {"google_genai", "openai_agents", "langchain", "pydantic_ai_openai", "pydantic_ai_google"}
    for library, converted in found.items():
        assert converted == expected, library
