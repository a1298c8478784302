"""Links in a real browser: what a sandbox made must not run as a page, wherever it is opened.

Needs Chromium; without one these tests are left out, and say so, but fail where CI is set.
"""

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest
import pytest_asyncio
from fastmcp import Client

from support.gateway.peer import BOUND, until
from support.gateway.served import Served, local_gateway
from support.servers.http_server import web_server

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.needs_userns]

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
DISGUISED: Final = ("page.txt", "page.png", "page", "page.css", "page.pdf")


@dataclass
class Elsewhere:
    """Somebody else's web server: it shows `pages`, a type and a text by path, and notes the paths asked for."""

    url: str = ""
    pages: dict[str, tuple[str, str]] = field(default_factory=dict)
    asked: set[str] = field(default_factory=set)


@pytest.fixture(scope="module")
def chromium() -> str:
    found = shutil.which("chromium") or shutil.which("google-chrome")
    if found is None:
        assert "CI" not in os.environ, "no Chromium on PATH"
        pytest.skip("no Chromium on PATH: links were not tried in a browser")
    return found


@pytest.fixture
def elsewhere() -> Iterator[Elsewhere]:
    there = Elsewhere()

    def answer(path: str) -> tuple[str, bytes] | None:
        there.asked.add(path)
        kind, text = there.pages.get(path, ("text/plain", ""))
        return kind, text.encode()

    with web_server(answer) as there.url:
        yield there


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served() -> AsyncIterator[Served]:
    async with local_gateway("64Mi") as address, Client(f"{address}/mcp") as mcp:
        yield Served(mcp)


@asynccontextmanager
async def opened(chromium: str, folder: Path, *arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Open an address as a user does, in a browser that knows nothing yet."""
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder}", "--no-first-run"]
    options += ["--disable-background-networking", "--disable-popup-blocking"]
    process = await asyncio.create_subprocess_exec(
        chromium, *options, *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
        await process.communicate()


async def text_of(chromium: str, folder: Path, url: str) -> str:
    """Return the page that an address becomes."""
    async with opened(chromium, folder, "--dump-dom", url) as process:
        out, _ = await asyncio.wait_for(process.communicate(), BOUND)
    return out.decode()


async def link(served: Served, name: str) -> str:
    url = (await served.call("create_link", path=name))["url"]
    assert isinstance(url, str)
    return url


@pytest.mark.promise("links", "no-script")
@pytest.mark.parametrize("name", [*PAGES, *DISGUISED])
async def test_file_that_a_sandbox_made_runs_no_script_in_a_browser(
    chromium: str, tmp_path: Path, elsewhere: Elsewhere, served: Served, name: str
) -> None:
    """By itself and in somebody else's page, where the same file from there does, a second later."""
    kind, text = PAGES.get(name, PAGES["page.html"])
    await served.call("write_file", path=name, text=text.format(f"{elsewhere.url}/ran"))
    url = await link(served, name)
    next_page = "<meta http-equiv='refresh' content='1;url=/same'>"
    elsewhere.pages["/"] = ("text/html", next_page + "".join(tag.format(url) for tag in WAYS.values()))
    elsewhere.pages["/same"] = ("text/html", "".join(tag.format(f"/{way}") for way, tag in WAYS.items()))
    for way in WAYS:
        elsewhere.pages[f"/{way}"] = (kind, text.format(f"/ran/{way}"))

    async def all_have_run() -> bool:
        return elsewhere.asked >= {f"/ran/{way}" for way in WAYS}

    async with opened(chromium, tmp_path, elsewhere.url):
        await until("the same file runs where nothing forbids it", all_have_run)
    assert "/ran" not in elsewhere.asked


async def test_picture_and_text_are_shown(chromium: str, tmp_path: Path, served: Served) -> None:
    await served.call("write_file", path="shown.txt", text="plain <b>text</b>")
    assert "plain &lt;b&gt;text&lt;/b&gt;" in await text_of(chromium, tmp_path, await link(served, "shown.txt"))
    drawn = await served.call(
        "run_python_code", code="import matplotlib.pyplot as p; p.figure(figsize=(1, 1)); p.savefig('shown.png')"
    )
    assert drawn["outcome"] == "ok"
    assert "(100\u00d7100)" in await text_of(chromium, tmp_path, await link(served, "shown.png"))
