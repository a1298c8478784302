"""Files as resources, and the prompt: what a client sees without calling a tool."""

import base64
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest
from fastmcp import Client
from mcp_types import BlobResourceContents, TextResourceContents

from fakes.backend import FakeBackend
from sandpod_gateway.app import Gateway
from sandpod_gateway.mcp.server import MAX_BYTES
from sandpod_gateway.settings import Settings


@pytest.fixture(params=["auto", "legacy"])
async def client(request: pytest.FixtureRequest) -> AsyncIterator[Client[Any]]:
    gateway = Gateway(Settings(), FakeBackend())
    async with gateway.running(), Client(gateway.mcp, mode=request.param) as connected:
        yield connected


async def put(client: Client[Any], path: str, data: bytes) -> str:
    arguments = {"path": path, "content_base64": base64.b64encode(data).decode()}
    answer = await client.call_tool("write_file", arguments)
    assert answer.structured_content is not None
    sandbox = answer.structured_content["sandbox"]
    assert isinstance(sandbox, str)
    return sandbox


@pytest.mark.claim("sandpod://sandboxes/{sandbox}/files/{path*}")
@pytest.mark.parametrize(
    ("path", "asked", "mime"),
    [
        ("d/res.txt", "d/res.txt", "text/plain"),
        ("a b.csv", "a%20b.csv", "text/csv"),
        ("no-kind", "no-kind", "text/plain"),
    ],
)
async def test_text_file_is_a_resource(client: Client[Any], path: str, asked: str, mime: str) -> None:
    sandbox = await put(client, path, "h\u00e9".encode())
    (content,) = await client.read_resource(f"sandpod://sandboxes/{sandbox}/files/{asked}")
    assert isinstance(content, TextResourceContents)
    assert (content.text, content.mime_type) == ("h\u00e9", mime)


async def test_picture_is_a_resource(client: Client[Any]) -> None:
    sandbox = await put(client, "a.png", b"\x89PNG\xff")
    (content,) = await client.read_resource(f"sandpod://sandboxes/{sandbox}/files/a.png")
    assert isinstance(content, BlobResourceContents)
    assert (base64.b64decode(content.blob), content.mime_type) == (b"\x89PNG\xff", "image/png")


@pytest.mark.parametrize(
    ("sandbox", "path", "code"),
    [
        ("", "missing", "not_found"),
        ("sbx-none", "a.txt", "session_not_found"),
        ("", "../../etc/passwd", "invalid_path"),
        ("", "%2e%2e/%2e%2e/etc/passwd", "invalid_path"),
        ("", "large", "artifact_too_large"),
    ],
)
async def test_what_can_not_be_read_is_refused_with_its_code(
    client: Client[Any], sandbox: str, path: str, code: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    own = await put(client, "large", bytes(MAX_BYTES + 1))
    with pytest.raises(Exception, match=f"{code}|not found"):
        await client.read_resource(f"sandpod://sandboxes/{sandbox or own}/files/{path}")
    assert not [record for record in caplog.records if record.exc_info], "a caller's mistake is no fault of the server"


@pytest.mark.claim("work_with_sandpod")
async def test_template_and_prompt_are_listed_with_words(client: Client[Any]) -> None:
    (template,) = await client.list_resource_templates()
    assert template.uri_template == "sandpod://sandboxes/{sandbox}/files/{path*}"
    assert template.description
    (prompt,) = await client.list_prompts()
    assert prompt.description
    told = await client.get_prompt(prompt.name, {"task": "plot it"})
    text = getattr(told.messages[0].content, "text", "")
    assert text.endswith("The task: plot it\n")
    tools = {tool.name for tool in await client.list_tools()}
    named = {word.strip(".,:;") for word in text.split() if "_" in word and "://" not in word}
    assert named - {"exit_code"} <= tools
