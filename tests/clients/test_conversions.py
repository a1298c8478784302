"""Other libraries convert every tool for their models, with each argument and its description."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pytest
from fastmcp import Client

from fakes.backend import FakeBackend
from sandpod_gateway.app import Gateway
from sandpod_gateway.settings import Settings

HERE: Final = Path(__file__).parent
PYTHON: Final = HERE.parents[1] / ".build/clients/bin/python"
LIBRARIES: Final = ("google_genai", "openai_agents", "langchain", "pydantic_ai_openai", "pydantic_ai_google")


async def converted(tools: Sequence[dict[str, Any]], folder: Path) -> dict[str, dict[str, Any]]:
    """Return what each library makes of the tools."""
    file = folder / "tools.json"
    file.write_text(json.dumps(tools), encoding="utf-8")
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(PYTHON, HERE / "conversions.py", file, stdout=pipe, stderr=pipe)
    printed, complaints = await process.communicate()
    assert process.returncode == 0, complaints.decode()[-2000:]
    found: dict[str, dict[str, Any]] = json.loads(printed)
    assert found.keys() == set(LIBRARIES)
    return found


@pytest.fixture
async def tools() -> list[dict[str, Any]]:
    gateway = Gateway(Settings(), FakeBackend())
    async with gateway.running(), Client(gateway.mcp) as client:
        listed = await client.list_tools()
    return [tool.model_dump(mode="json", by_alias=True, exclude_none=True) for tool in listed]


async def test_libraries_convert_all_tools_and_lose_nothing(tools: list[dict[str, Any]], tmp_path: Path) -> None:
    expected = {
        tool["name"]: {
            name: field.get("description", "") for name, field in tool["inputSchema"].get("properties", {}).items()
        }
        for tool in tools
    }
    assert len(expected) == 28
    for library, found in (await converted(tools, tmp_path)).items():
        assert found == expected, library
