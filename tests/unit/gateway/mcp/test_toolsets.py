"""Toolsets: chosen by server, key and address, over each transport and in both protocol eras."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import httpx2
import pytest
import yaml
from fastmcp import Client
from fastmcp.client.transports import SSETransport, StreamableHttpTransport
from mcp.shared.exceptions import MCPError

from fakes.backend import FakeBackend
from sandpod_gateway.api.toolsets import ALL
from sandpod_gateway.app import Gateway
from sandpod_gateway.auth.api_keys import make_key
from sandpod_gateway.settings import AuthSettings, Settings
from support.gateway.peers import ACCEPT, INITIALIZE
from support.gateway.server import listening

CORE: Final = {
    "run_python_code",
    "run_js_code",
    "run_shell_command",
    "install_packages",
    "list_files",
    "read_file",
    "write_file",
    "read_artifact",
}
FILES: Final = {"stat_file", "upload_file", "make_directory", "move_file", "delete_file", "list_artifacts"}
WAYS: Final = ("http auto", "http legacy", "sse")
# Bytes of tools/list as a model gets it: 4 bytes are about one token.
MOST_BYTES: Final = {"all": 45_000, "core": 12_000}
IMAGE: Final = Path(__file__).parents[4] / "containers/sandbox/requirements.in"


def image_libraries() -> list[str]:
    lines = IMAGE.read_text(encoding="utf-8").splitlines()
    return [line.partition("~")[0] for line in lines if line and not line.startswith("#")]


def write_key(folder: Path, tools: list[str] | None) -> tuple[AuthSettings, str]:
    key, entry = make_key(user="alice", name="test", days=None, now=datetime.now(UTC), tools=tools)
    path = folder / "keys.yaml"
    path.write_text(yaml.safe_dump({"keys": [entry.model_dump(mode="json", exclude_none=True)]}))
    return AuthSettings(keys_file=path), key


@asynccontextmanager
async def connected(
    settings: Settings, way: str, query: str = "", key: str | None = None
) -> AsyncIterator[Client[Any]]:
    kind, _, mode = way.partition(" ")
    async with listening(Gateway(settings, FakeBackend()), settings) as address:
        headers = {"authorization": f"Bearer {key}"} if key else None
        if kind == "sse":
            client: Client[Any] = Client(SSETransport(f"{address}/sse{query}", headers=headers))
        else:
            client = Client(StreamableHttpTransport(f"{address}/mcp{query}", headers=headers), mode=mode)
        async with client:
            yield client


async def names(client: Client[Any]) -> set[str]:
    return {tool.name for tool in await client.list_tools()}


async def refusal(client: Client[Any], tool: str, **arguments: Any) -> Any:
    answer = await client.call_tool(tool, arguments, raise_on_error=False)
    return (answer.structured_content or {}).get("error")


async def on(client: Client[Any]) -> set[str]:
    (content,) = await client.read_resource("sandpod://capabilities")
    told = json.loads(getattr(content, "text", ""))["toolsets"]
    assert set(told["on"]) | set(told["off"]) == ALL
    return set(told["on"])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("query", ["?tools=core", "/core"])
async def test_address_chooses_what_is_listed_called_and_told(way: str, query: str) -> None:
    async with connected(Settings(), way, query) as client:
        assert await names(client) == CORE
        assert await on(client) == {"core"}
        assert await refusal(client, "list_sandboxes") == "forbidden"
        assert await refusal(client, "write_file", path="a", text="") is None


@pytest.mark.parametrize("way", WAYS)
async def test_key_chooses_and_an_address_adds_nothing_to_it(way: str, tmp_path: Path) -> None:
    auth, key = write_key(tmp_path, ["core", "files"])
    async with connected(Settings(auth=auth), way, "?tools=files,links", key) as client:
        assert await names(client) == FILES
        assert await on(client) == {"files"}
        assert await refusal(client, "create_link", path="a") == "forbidden", "the key has no links"
        assert await refusal(client, "write_file", path="a", text="") == "forbidden", "the address has no core"


async def test_settings_choose_for_everybody(tmp_path: Path) -> None:
    auth, key = write_key(tmp_path, ["all"])
    async with connected(Settings(auth=auth, tools=["core"]), "http auto", "?tools=all", key) as client:
        assert await names(client) == CORE
        answer = await client.call_tool("list_runs", {}, raise_on_error=False)
        assert answer.structured_content is not None
        assert "administrator" in answer.structured_content["next"], "no address has it"


async def test_without_any_choice_all_are_there() -> None:
    async with connected(Settings(), "http auto") as client:
        assert len(await names(client)) == 28
        assert await on(client) == ALL


async def test_settings_choose_without_a_request() -> None:
    gateway = Gateway(Settings(tools=["core", "links"]), FakeBackend())
    async with gateway.running(), Client(gateway.mcp) as client:
        assert await names(client) == CORE | {"create_link", "fetch_workspace"}
        assert await on(client) == {"core", "links"}
        assert await refusal(client, "list_sandboxes") == "forbidden"


async def test_files_are_no_resource_where_their_tools_are_off() -> None:
    async with connected(Settings(), "http auto", "?tools=sandboxes") as client:
        assert await client.list_resource_templates() == []
        with pytest.raises(MCPError, match="forbidden"):
            await client.read_resource("sandpod://sandboxes/sbx-1/files/a.txt")
    async with connected(Settings(), "http auto", "?tools=core") as client:
        assert len(await client.list_resource_templates()) == 1


@pytest.mark.parametrize("path", ["/mcp?tools=core,cor", "/mcp/cor", "/sse?tools=cor", "/mcp?tools=core&tools=x"])
async def test_unknown_toolset_in_an_address_is_a_bad_request(path: str) -> None:
    settings = Settings()
    async with listening(Gateway(settings, FakeBackend()), settings) as address, httpx2.AsyncClient() as http:
        answer = await http.request(
            "GET" if "/sse" in path else "POST", address + path, json=INITIALIZE, headers=ACCEPT
        )
        assert answer.status_code == 400
        assert answer.json()["error"]["message"].startswith("Unknown toolset: ")


@pytest.mark.parametrize("chosen", MOST_BYTES)
async def test_tools_cost_a_model_no_more_than_this(chosen: Any) -> None:
    gateway = Gateway(Settings(tools=[chosen], libraries=image_libraries()), FakeBackend())
    async with gateway.running(), Client(gateway.mcp) as client:
        tools = [tool.model_dump(mode="json", by_alias=True, exclude_none=True) for tool in await client.list_tools()]
    assert len(json.dumps(tools, separators=(",", ":"), ensure_ascii=False).encode()) <= MOST_BYTES[chosen]
