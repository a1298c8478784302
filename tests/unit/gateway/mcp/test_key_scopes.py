"""What a key may be used for: templates, and tools that change nothing. Toolsets are in test_toolsets."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from fastmcp import Client
from fastmcp.client.transports import StreamableHttpTransport

from fakes.backend import FakeBackend
from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.app import Gateway
from sandpod_gateway.auth.api_keys import KeyFile, make_key
from sandpod_gateway.mcp.compat.settings import CompatSettings
from sandpod_gateway.settings import AuthSettings, Settings
from support.gateway.peers import call
from support.gateway.server import listening


@dataclass
class Keys:
    """Two clients of one user: one whose key may all, and one whose key has scopes."""

    wide: Client[Any]
    narrow: Client[Any]


@asynccontextmanager
async def two_keys(folder: Path, settings: Settings, **scopes: object) -> AsyncIterator[Keys]:
    made = [make_key(user="alice", name="k", days=None, now=datetime.now(UTC), **each) for each in ({}, scopes)]
    path = folder / "keys.yaml"
    path.write_bytes(KeyFile(keys=[entry for _, entry in made]).dump())
    settings = settings.model_copy(update={"auth": AuthSettings(keys_file=path)})
    async with listening(Gateway(settings, FakeBackend()), settings) as address:
        wide, narrow = (Client(StreamableHttpTransport(f"{address}/mcp", auth=key)) for key, _ in made)
        async with wide, narrow:
            yield Keys(wide, narrow)


@pytest.mark.promise("key-scopes")
@pytest.mark.parametrize("systems", [[], ["philschmid", "johanli233", "chrishayuk", "gaiar"]])
async def test_read_only_key_has_the_tools_that_change_nothing_and_no_others(
    tmp_path: Path, systems: list[Any]
) -> None:
    settings = Settings(compat=CompatSettings(systems=systems), tools=["all"])
    async with two_keys(tmp_path, settings, read_only=True) as keys:
        tools = await keys.wide.list_tools()
        reading = {tool.name for tool in tools if tool.annotations and tool.annotations.read_only_hint}
        assert {tool.name for tool in await keys.narrow.list_tools()} == reading
        assert {"list_files", "read_file", "list_sandboxes", "read_run"} <= reading
        for tool in tools:
            answer = await call(keys.narrow, tool.name)
            assert (answer.get("error") == ErrorCode.FORBIDDEN) == (tool.name not in reading), (tool.name, answer)


@pytest.mark.promise("key-scopes")
async def test_read_only_key_reads_what_another_key_of_its_user_made(tmp_path: Path) -> None:
    async with two_keys(tmp_path, Settings(), read_only=True) as keys:
        await call(keys.wide, "write_file", path="a.txt", text="mine")
        assert (await call(keys.narrow, "read_file", path="a.txt"))["content"] == "mine"
        refused = await call(keys.narrow, "write_file", path="a.txt", text="theirs")
        assert refused["message"] == "Your key is read-only, and write_file changes something."
        assert (await call(keys.wide, "read_file", path="a.txt"))["content"] == "mine"


@pytest.mark.promise("key-scopes")
async def test_key_with_templates_makes_uses_and_sees_sandboxes_of_these_alone(tmp_path: Path) -> None:
    async with two_keys(tmp_path, Settings(), templates=["other"]) as keys:
        made = await call(keys.wide, "create_sandbox", name="mine")
        await call(keys.wide, "run_python_code", code="print(1)")
        refused = await call(keys.narrow, "create_sandbox", template="default")
        assert (refused["error"], refused["next"]) == (ErrorCode.FORBIDDEN, "Use other.")
        assert (await call(keys.narrow, "list_sandboxes"))["sandboxes"] == []
        for handle in (made["sandbox"], "mine"):
            for tool, more in (("get_sandbox", {}), ("close_sandbox", {}), ("run_python_code", {"code": "1"})):
                answer = await call(keys.narrow, tool, sandbox=handle, **more)
                assert answer["error"] == ErrorCode.SESSION_NOT_FOUND, (tool, handle)
        [content] = await keys.narrow.read_resource("sandpod://capabilities")
        templates = json.loads(getattr(content, "text", ""))["templates"]
        assert templates == {"default": "other", "available": []}
        # The one that it may use is its default, and this server has none of that name.
        answer = await call(keys.narrow, "run_python_code", code="1")
        assert answer["error"] == ErrorCode.INVALID_ARGUMENT
        assert "'other'" in answer["message"]
        assert len((await call(keys.wide, "list_sandboxes"))["sandboxes"]) == 2


async def test_key_shares_the_default_sandbox_of_a_template_that_it_may_use(tmp_path: Path) -> None:
    async with two_keys(tmp_path, Settings(), templates=["default", "other"]) as keys:
        first = await call(keys.wide, "run_python_code", code="print(1)")
        assert (await call(keys.narrow, "run_python_code", code="print(1)"))["sandbox"] == first["sandbox"]
