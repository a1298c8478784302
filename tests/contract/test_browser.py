"""Links in a real browser: what a sandbox made must not run as a page, wherever it is opened.

Needs Chromium; without one these tests are left out, and say so, but fail where CI is set.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import unquote

import pytest

from fakes.backend import FakeBackend
from sandpod_gateway.app import Gateway
from sandpod_gateway.settings import AuthSettings, Settings
from support.gateway.browser import find_chromium
from support.gateway.fake_gateway import keys_file
from support.gateway.peer import BOUND, until
from support.gateway.peers import ENVELOPE, HEADERS
from support.gateway.served import Served
from support.gateway.server import listening
from support.servers.http_server import web_server

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.needs_userns]

SCRIPT: Final = "new Image().src = '{}'"
HTML: Final = f"<html xmlns='http://www.w3.org/1999/xhtml'><body><script>{SCRIPT}</script></body></html>"
SVG: Final = f"<svg xmlns='http://www.w3.org/2000/svg'><script>{SCRIPT}</script></svg>"
PAGES: Final = {"page.html": ("text/html", HTML), "picture.svg": ("image/svg+xml", SVG), "page.xml": ("text/xml", HTML)}
"""Files that run script in every browser that shows them, and what they are sent as elsewhere."""
WAYS: Final = {
    "window": "<script>window.open('{}')</script>",
    "frame": "<iframe src='{}'></iframe>",
    "object": "<object data='{}'></object>",
    "embed": "<embed src='{}'>",
}
"""How a page opens another one, by itself or in its own."""
PNG: Final = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
DISGUISED: Final = ("page.txt", "page.png", "page", "page.css", "page.pdf")


@dataclass
class Elsewhere:
    """Somebody else's web server: it shows `pages`, a type and a text by path, and notes the paths asked for."""

    url: str = ""
    pages: dict[str, tuple[str, str]] = field(default_factory=dict)
    asked: set[str] = field(default_factory=set)


@pytest.fixture
def elsewhere() -> Iterator[Elsewhere]:
    there = Elsewhere()

    def answer(path: str) -> tuple[str, bytes] | None:
        there.asked.add(path)
        kind, text = there.pages.get(path, ("text/plain", ""))
        return kind, text.encode()

    with web_server(answer) as there.url:
        yield there


@asynccontextmanager
async def opened(folder: Path, *arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Open an address as a user does, in a browser that knows nothing yet."""
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder}", "--no-first-run"]
    options += ["--disable-background-networking", "--disable-popup-blocking"]
    process = await asyncio.create_subprocess_exec(
        find_chromium(), *options, *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
        await process.communicate()


async def link(served: Served, name: str) -> str:
    url = (await served.call("create_link", path=name))["url"]
    assert isinstance(url, str)
    return url


@pytest.mark.promise("links", "no-script")
async def test_file_that_a_sandbox_made_runs_no_script_in_a_browser(
    tmp_path: Path, elsewhere: Elsewhere, served: Served
) -> None:
    """By itself and in somebody else's page, where the same file from there does, a second later."""
    linked, same, controls = "", "", set()
    for number, name in enumerate([*PAGES, *DISGUISED]):
        kind, text = PAGES.get(name, PAGES["page.html"])
        await served.call("write_file", path=name, text=text.format(f"{elsewhere.url}/linked/{name}"))
        url = await link(served, name)
        linked += "".join(tag.format(url) for tag in WAYS.values())
        same += "".join(tag.format(f"/{way}/{number}") for way, tag in WAYS.items())
        for way in WAYS:
            controls.add(ran := f"/ran/{way}/{name}")
            elsewhere.pages[f"/{way}/{number}"] = (kind, text.format(ran))
    elsewhere.pages["/"] = ("text/html", f"<meta http-equiv='refresh' content='1;url=/same'>{linked}")
    elsewhere.pages["/same"] = ("text/html", same)

    async def all_have_run() -> bool:
        return elsewhere.asked >= controls

    async with opened(tmp_path, elsewhere.url):
        await until("the same files run where nothing forbids it", all_have_run)
    assert [path for path in elsewhere.asked if path.startswith("/linked")] == []


async def test_picture_and_text_are_shown(tmp_path: Path, served: Served) -> None:
    await served.call("write_file", path="shown.txt", text="plain <b>text</b>")
    await served.call("write_file", path="shown.png", content_base64=PNG)
    for name, shown in (("shown.txt", "plain &lt;b&gt;text&lt;/b&gt;"), ("shown.png", "(1\u00d71)")):
        async with opened(tmp_path, "--dump-dom", await link(served, name)) as process:
            page, _ = await asyncio.wait_for(process.communicate(), BOUND)
        assert shown in page.decode()


WEB_CLIENT: Final = """<script type="module">
const {addresses, key, headers, envelope} = %s
const use = async address => {
  const call = async (name, fields) => {
    const params = {name, arguments: fields, _meta: envelope}
    const body = JSON.stringify({jsonrpc: '2.0', id: 1, method: 'tools/call', params})
    const own = {...headers, 'mcp-name': name, authorization: `Bearer ${key}`, 'content-type': 'application/json'}
    const answer = await fetch(`${address}/mcp`, {method: 'POST', body, headers: own})
    return (await answer.json()).result.structuredContent
  }
  const up = await call('create_link', {path: 'sent.txt', method: 'put'})
  await fetch(up.url, {method: 'PUT', body: 'sent by a page'})
  const down = await call('create_link', {path: 'sent.txt'})
  const answer = await fetch(down.url, {headers: {range: 'bytes=0-3'}})
  return `${await answer.text()}:${answer.headers.get('content-range')}`
}
const said = []
for (const address of addresses) said.push(await use(address).catch(error => error.name))
await fetch(`/said/${said}`)
</script>"""


async def test_page_of_an_allowed_origin_calls_tools_and_sends_and_reads_files_and_no_other(
    tmp_path: Path, elsewhere: Elsewhere
) -> None:
    path, [key] = keys_file(tmp_path, "alice")
    auth = AuthSettings(keys_file=path)
    allows, refuses = (Settings(auth=auth, allowed_origins=[each]) for each in (elsewhere.url, "https://other.example"))
    async with (
        listening(Gateway(allows, FakeBackend()), allows) as first,
        listening(Gateway(refuses, FakeBackend()), refuses) as second,
    ):
        known = {"addresses": [first, second], "key": key, "headers": HEADERS, "envelope": ENVELOPE}
        elsewhere.pages["/"] = ("text/html", WEB_CLIENT % json.dumps(known))

        async def has_said() -> bool:
            return any(path.startswith("/said/") for path in elsewhere.asked)

        async with opened(tmp_path / "browser", elsewhere.url):
            await until("the page is done", has_said)
    said = [unquote(path) for path in elsewhere.asked if path.startswith("/said/")]
    assert said == ["/said/sent:bytes 0-3/14,TypeError"]
