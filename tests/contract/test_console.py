"""The console in a real browser: one server, one browser, and two users who know nothing of each other."""

import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest
import pytest_asyncio
import yaml
from playwright.async_api import FrameLocator, Page, WebSocketRoute, expect

from sandpod_gateway.auth.api_keys import make_key
from support.gateway.browser import chromium
from support.gateway.console import Place, run, write
from support.gateway.served import LIBRARIES, LOCAL, gateway

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.needs_userns]

ROOT: Final = Path(__file__).resolve().parents[2]
SHOTS: Final = ROOT / ".build/screenshots"
AXE: Final = Path(sys.prefix) / "console/node_modules/axe-core/axe.min.js"
NAME: Final = "<img src=x onerror=alert(1)>"
FILE: Final = "<b>&\"' #%.txt"
PAPER: Final = b"""%PDF-1.7
1 0 obj <</Type/Catalog/Pages 2 0 R/OpenAction 6 0 R/AcroForm <</Fields[7 0 R]>> >> endobj
2 0 obj <</Type/Pages/Kids[3 0 R 8 0 R]/Count 2>> endobj
3 0 obj <</Type/Page/Parent 2 0 R/MediaBox[0 0 200 100]/Contents 4 0 R/Annots[5 0 R 7 0 R]
  /Resources<</Font<</F <</Type/Font/Subtype/Type1/BaseFont/Helvetica>> >> >> >> endobj
4 0 obj <</Length 37>> stream
BT /F 24 Tf 20 40 Td (A paper) Tj ET
endstream endobj
5 0 obj <</Type/Annot/Subtype/Link/Rect[0 0 200 100]/A <</S/URI/URI(http://elsewhere.example/)>> >> endobj
6 0 obj <</S/JavaScript/JS(app.alert\\('hello'\\); app.launchURL\\('http://elsewhere.example/'\\))>> endobj
7 0 obj <</Type/Annot/Subtype/Widget/FT/Tx/T(name)/Rect[10 10 90 30]/AA <</O 6 0 R>> >> endobj
8 0 obj <</Type/Page/Parent 2 0 R/MediaBox[0 0 99999 99999]>> endobj
trailer <</Root 1 0 R>>
%%EOF
"""
"""With a link, a form, and a script that runs when it is opened; one of its pages is as large as a house."""
IS_DRAWN: Final = """canvas => {
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height)
  return data.some((value, index) => index % 4 < 3 && value < 128)
}"""
MAX_ELEMENTS: Final = 6000  # of a page, whatever a program writes
WAITS: Final = """\
import pathlib, time
print("\\x1b[32mbegun\\x1b[0m", flush=True)
while not pathlib.Path("/workspace/go").exists(): time.sleep(0.05)
print("gone on")
"""
HOSTILE: Final = r"print('<script>alert(1)</script>\x00\x1b]0;t\x07\u202Ecod.exe\x1b[2J'); print('1 %\r2 %\r3 %')"
PLOT: Final = "import matplotlib.pyplot as plt\nplt.plot([1, 3, 2])\nplt.show()"
TABLE: Final = "import pandas as pd\npd.DataFrame({'a': [1, 2], 'b': ['<i>x</i>', 'y']})"
LINES: Final = "import sys\nfor i in range(40): sys.stdout.write(('x' * 100 + '\\n') * 5000)\nprint('the end')"
LONG: Final = "print('y' * 5_000_000)"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def place(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Place]:
    folder = tmp_path_factory.mktemp("console")
    roles = {"alice": "admin", "bob": "user"}
    made = {user: make_key(user=user, name="test", days=None, now=datetime.now(UTC)) for user in roles}
    entries = [{**entry.model_dump(mode="json"), "role": roles[user]} for user, (_, entry) in made.items()]
    (folder / "keys.yaml").write_text(yaml.safe_dump({"keys": entries}))
    flags = ("--auth.keys-file", str(folder / "keys.yaml"), "--auth.change-keys")
    audit = ("--audit.sink", "file", "--audit.path", str(folder / "audit.log"))
    async with gateway(*LOCAL, *LIBRARIES, *flags, *audit) as address, chromium() as browser:
        place = Place(address, {user: key for user, (key, _) in made.items()}, browser)
        yield place
        assert place.complaints == []


async def elements(page: Page) -> int:
    count: int = await page.evaluate("document.querySelectorAll('*').length")
    return count


async def output_is_text(page: Page) -> None:
    """Run what writes markup, control characters, and more than a page holds."""
    output = await run(page, HOSTILE)
    await expect(output).to_contain_text("<script>alert(1)</script>␀\u2039202e\u203acod.exe")
    await expect(output.locator(".line").last).to_have_text("3 %")
    assert await page.title() == f"{NAME} · Sandpod"

    output = await run(page, LINES)
    await expect(output).to_contain_text("the end")
    await expect(output).to_contain_text("earlier lines are not shown")
    assert await elements(page) < MAX_ELEMENTS
    output = await run(page, LONG)
    await expect(output).to_contain_text("more characters")
    assert len(await output.inner_text()) < 10_000


@pytest.mark.promise("console-text")
async def test_a_user_signs_in_creates_a_sandbox_runs_programs_and_stops_one(place: Place) -> None:
    page = await place.page()
    await page.goto(f"{place.address}/console/keys")
    await page.get_by_label("API key").fill("sandpod_wrong")
    await page.get_by_role("button", name="Sign in").click()
    await expect(page.get_by_role("alert").first).to_contain_text("no valid key")
    await page.get_by_label("API key").fill(place.keys["alice"])
    await page.get_by_role("button", name="Sign in").click()
    await expect(page.get_by_role("heading", name="Keys")).to_be_visible()  # where the user wanted to go

    await page.get_by_role("link", name="Sandboxes").click()
    await page.get_by_role("button", name="New sandbox").click()
    await page.get_by_label("Name").fill(NAME)
    await page.get_by_role("button", name="Create").click()
    await expect(page.get_by_role("heading", name=NAME)).to_be_visible()

    # Output comes while the program runs, which waits for a file that the user sends meanwhile.
    await write(page, WAITS)
    await page.locator("#run").click()
    await expect(page.locator("#output .f2")).to_have_text("begun")
    await expect(page.locator("#state")).to_have_text("Running…")
    await page.get_by_role("tab", name="Files").click()
    await page.locator("#upload").set_input_files({"name": "go", "mimeType": "text/plain", "buffer": b""})
    await page.get_by_role("tab", name="Code").click()
    await expect(page.locator("#output")).to_contain_text("gone on")
    await expect(page.locator("#state")).to_contain_text("ok · exit code 0")

    await run(page, PLOT)
    await expect(page.locator("#shown img")).to_be_visible()
    await run(page, TABLE, "notebook")
    await expect(page.frame_locator("#shown iframe").get_by_text("<i>x</i>")).to_be_visible()
    await run(page, "open('<u>.md', 'w').write('made')")
    await page.locator("#shown button", has_text="<u>.md").click()
    await expect(page.locator("#preview-body pre")).to_have_text("made")
    await page.locator("#preview").get_by_role("button", name="Close").click()
    await output_is_text(page)

    await write(page, "import time\nprint('on', flush=True)\ntime.sleep(600)")
    await page.keyboard.press("Tab")
    await page.locator("#run").click()
    await expect(page.locator("#output")).to_contain_text("on")
    await page.get_by_role("button", name="Stop").click()
    await expect(page.locator("#state")).to_contain_text("cancelled")

    # An earlier run is shown again, and its program can be run again.
    await page.locator("#history button").filter(has_text="matplotlib").click()
    await expect(page.locator("#shown img")).to_be_visible()
    await expect(page.locator(".cm-content")).to_contain_text("plt.plot")
    await page.get_by_role("button", name="Close sandbox").click()
    await page.get_by_role("button", name="Confirm").click()
    await expect(page.get_by_text("No sandboxes yet.")).to_be_visible()
    await page.context.close()


async def is_a_picture(frame: FrameLocator, place: Place) -> None:
    """What a PDF would do in a browser's own viewer, it can't: it is drawn where there are no rights."""
    await expect(frame.locator("canvas")).to_have_count(2)
    await expect(frame.locator("canvas").last).to_have_attribute("aria-label", "Page 2 of 2: ")
    await expect(frame.locator("canvas").first).to_have_attribute("aria-label", "Page 1 of 2: A paper")
    assert await frame.locator("canvas").first.evaluate(IS_DRAWN)
    assert await frame.locator("canvas").last.evaluate("canvas => canvas.width * canvas.height < 5e6")
    await expect(frame.locator("a, form, input, iframe, object, embed")).to_have_count(0)
    assert place.complaints == []
    found = await frame.locator("html").evaluate("async () => [origin, await fetch('/').catch(() => 'refused')]")
    assert found == ["null", "refused"]
    place.complaints.clear()  # of that


@pytest.mark.promise("console-text")
async def test_files_are_sent_shown_and_fetched_and_none_is_a_page(place: Place) -> None:
    page = await place.user("alice")
    await page.goto(f"{place.address}/console/sandboxes/default#files")
    await expect(page.get_by_text("No files here.")).to_be_visible()
    script = "<script>parent.postMessage({height: 599}, '*'); document.title = 'ran'</script>shown"
    contents = {
        FILE: b"text <b>bold</b>",
        "table.csv": b'a,b\n"x, ""y""",<i>2</i>\n',
        "data.json": b'{"a":[1,2]}',
        "page.html": script.encode(),
        "paper.pdf": PAPER,
        "torn.pdf": b"%PDF-1.1\n%%EOF\n",
    }
    files: Any = [{"name": name, "mimeType": "text/plain", "buffer": data} for name, data in contents.items()]
    await page.locator("#upload").set_input_files(files)
    await expect(page.locator("#entries tr")).to_have_count(len(contents))
    async with page.expect_download() as downloads:
        await page.get_by_role("link", name=f"Download {FILE}").click()
    assert (await (await downloads.value).path()).read_bytes() == contents[FILE]

    shown, dialog = page.locator("#preview-body"), page.locator("#preview")
    asked: list[str] = []
    page.on(
        "request", lambda request: None if request.url.startswith(("blob:", "data:")) else asked.append(request.url)
    )

    async def look(name: str) -> None:
        await page.locator("#entries").get_by_role("button", name=name, exact=True).click()
        await expect(dialog.get_by_role("heading", name=name)).to_be_visible()

    async def leave() -> None:
        await dialog.get_by_role("button", name="Close").click()
        await expect(dialog).not_to_be_visible()

    await look(FILE)
    await expect(shown.locator("pre")).to_have_text("text <b>bold</b>")
    await leave()
    await look("table.csv")
    await expect(shown.locator("td")).to_have_text(['x, "y"', "<i>2</i>"])
    await leave()
    await look("data.json")
    await expect(shown.locator("pre")).to_contain_text('"a": [')
    await leave()
    await look("page.html")
    frame = page.frame_locator("#preview-body iframe")
    await expect(frame.get_by_text("shown")).to_be_visible()
    assert await frame.locator("html").evaluate("() => [origin, document.title]") == ["null", ""]
    place.complaints.clear()  # the policy kept its script from running, as the browser says
    await shown.get_by_role("button", name="Run its scripts").click()
    await expect(frame.locator("html")).to_have_js_property("ownerDocument.title", "ran")
    assert await frame.locator("html").evaluate("async () => fetch('/api/v1/keys').catch(() => 'refused')") == "refused"
    place.complaints.clear()
    await leave()
    await look("paper.pdf")
    await is_a_picture(frame, place)
    assert all(each.startswith((place.address, "blob:", "data:")) for each in asked)
    await leave()
    await look("torn.pdf")
    await expect(frame.get_by_text("no PDF that can be read")).to_be_visible()
    await leave()

    await page.get_by_role("button", name=f"Delete {FILE}").click()
    await page.get_by_role("button", name="Confirm").click()
    await expect(page.locator("#entries tr")).to_have_count(len(contents) - 1)
    await page.context.close()


async def test_a_terminal_echoes_and_goes_on_when_its_connection_breaks(place: Place) -> None:
    page = await place.user("alice")
    sockets: list[WebSocketRoute] = []

    def on_socket(route: WebSocketRoute) -> None:
        sockets.append(route)
        route.connect_to_server()

    await page.route_web_socket("**/terminal?**", on_socket)
    await page.goto(f"{place.address}/console/sandboxes/default#terminal")
    state, rows = page.locator("#terminal-state"), page.locator(".xterm-rows")
    await expect(state).to_have_text("Connected")
    await expect(rows).to_contain_text("$")
    await page.locator("#screen").click()
    await page.keyboard.type("X=$((6 * 7)); echo is-$X\n")
    await expect(rows).to_contain_text("is-42")
    await sockets[0].close(code=1012)
    await page.keyboard.type("echo still-$X\n")  # perhaps before it is connected again
    await expect(rows).to_contain_text("still-42")
    assert len(sockets) > 1
    await page.keyboard.type("exit 3\n")
    await expect(state).to_contain_text("exit code 3")
    await page.context.close()


@pytest.mark.promise("key-revoked", "owners-apart")
async def test_a_key_is_made_used_and_revoked_and_another_user_sees_nothing(place: Place) -> None:
    alice, bob = await place.user("alice"), await place.user("bob")
    box = await alice.evaluate(
        "async () => (await fetch('/api/v1/sandboxes', {method: 'POST', body: '{\"name\": \"hers\"}'})).json()"
    )
    await expect(alice.locator("#rows")).to_contain_text("hers")  # the table is live
    others = await alice.locator("#rows tr").count()
    post = "async ([path, body]) => { await fetch(path, {method: 'POST', body: JSON.stringify(body)}) }"
    await alice.evaluate(post, ["/api/v1/sandboxes", {"name": "later"}])
    await expect(alice.locator("#rows tr").first).to_contain_text("later")
    await alice.evaluate(post, ["/api/v1/runs", {"code": "1", "sandbox": box["sandbox"]}])
    await expect(alice.get_by_role("row", name="hers").locator(".use")).to_be_visible()
    await alice.get_by_role("button", name="Close later").click()
    await alice.get_by_role("button", name="Confirm").click()
    await expect(alice.get_by_role("row", name="later")).to_have_count(0)
    await expect(alice.locator("#rows tr")).to_have_count(others)
    await expect(alice.locator("#count")).to_have_text(f"{others} in all")
    await expect(bob.get_by_text("No sandboxes yet.")).to_be_visible()
    for address in (box["sandbox"], "no-such"):
        await bob.goto(f"{place.address}/console/sandboxes/{address}")
        await expect(bob.get_by_text("404 · session_not_found")).to_be_visible()
    await bob.goto(f"{place.address}/console/pools")
    await expect(bob.get_by_text("403 · forbidden")).to_be_visible()
    await expect(bob.get_by_role("link", name="Pools")).to_have_count(0)
    await bob.goto(f"{place.address}/console/nowhere")
    await expect(bob.get_by_text("404 · not_found")).to_be_visible()

    await bob.goto(f"{place.address}/console/keys")
    await expect(bob.get_by_text("alice")).to_have_count(0)
    await bob.get_by_role("button", name="New key").click()
    await bob.get_by_label("What it is for").fill("<i>laptop</i>")
    await bob.get_by_role("button", name="Create").click()
    await expect(bob.locator("#made-url")).to_have_text(f"{place.address}/mcp")
    key = await bob.locator("#made-key").inner_text()
    place.keys["laptop"] = key
    laptop = await place.user("laptop")
    await bob.get_by_role("button", name="Revoke <i>laptop</i>").click()
    await bob.get_by_role("button", name="Confirm").click()
    await expect(bob.get_by_role("row").filter(has_text="laptop")).to_have_count(0)
    await laptop.goto(f"{place.address}/console/usage")
    await expect(laptop.get_by_text("Your session has ended")).to_be_visible()
    await bob.get_by_role("button", name="Sign out").click()
    await bob.goto(f"{place.address}/console/")
    await expect(bob.get_by_label("API key")).to_be_visible()
    assert await bob.context.cookies() == []
    for page in (alice, bob, laptop):
        await page.context.close()


PAGES: Final = (
    "",
    "sandboxes/default#files",
    "sandboxes/default#state",
    "all",
    "pools",
    "usage",
    "keys",
    "audit",
    "connect",
    "nowhere",
)


MORE: Final = """async () => {
  const send = (method, path, body) => fetch(`/api/v1/sandboxes${path}`, {method, body})
  for (const name of ["report", "etl"]) await send("POST", "", JSON.stringify({name}))
  for (const name of ["data.csv", "notes/a.txt"]) await send("PUT", `/default/files/${name}`, "a")
}"""
LOOKS: Final[dict[str, tuple[dict[str, Any], int, str]]] = {
    "light": ({"color_scheme": "light"}, 1280, "{}"),
    "dark": ({"color_scheme": "dark"}, 1280, "{runOnly: ['color-contrast']}"),
    "phone": ({"color_scheme": "light"}, 390, "{runOnly: ['scrollable-region-focusable', 'target-size']}"),
}
"""How a page is looked at: the theme, the width, and what is tried besides what was tried before."""


async def test_every_page_is_accessible_in_both_themes_and_on_a_phone(place: Place) -> None:
    """The pictures are in .build/screenshots, for people to look at."""
    SHOTS.mkdir(parents=True, exist_ok=True)
    axe, wrong = AXE.read_text(encoding="utf-8"), dict[str, Any]()

    async def check(page: Page, path: str) -> None:
        await page.evaluate(axe)
        for look, (media, width, rules) in LOOKS.items():
            name = f"{path.replace('/', '-').replace('#', '-') or 'home'}-{look}"
            await page.emulate_media(**media)
            await page.set_viewport_size({"width": width, "height": 844})
            await page.screenshot(path=SHOTS / f"{name}.png", caret="initial", full_page=True)
            found = await page.evaluate(f"axe.run({rules})")
            bad = [each for each in found["violations"] if each["impact"] in {"serious", "critical"}]
            wrong.update({f"{name}: {each['id']}": [node["html"][:200] for node in each["nodes"]] for each in bad})
            if not await page.evaluate("document.documentElement.scrollWidth <= innerWidth"):
                wrong[f"{name}: wide"] = path

    page = await place.page()
    await page.goto(f"{place.address}/")
    await check(page, "sign-in")
    await page.context.close()
    page = await place.user("alice")
    await page.goto(f"{place.address}/console/sandboxes/default")
    await run(page, PLOT + "\nprint('\\x1b[32mdone\\x1b[0m')\n" + TABLE, "notebook")
    await expect(page.frame_locator("#shown iframe").get_by_text("<i>x</i>")).to_be_visible()
    await expect(page.locator("#about .phase")).to_have_text("Ready")  # it was made for the run
    await check(page, "run")
    await page.evaluate(MORE)
    for path in PAGES:
        await page.goto(f"{place.address}/console/{path}")
        if "sandboxes" in path:
            await page.locator("[role=tabpanel]:not([hidden]) :is(.cm-content, #entries tr, #now)").first.wait_for()
        await check(page, path)
    await page.goto(f"{place.address}/console/all")
    await page.get_by_role("link", name="report").click()
    await page.locator("#now").wait_for()
    await check(page, "anybodys")
    await page.goto(f"{place.address}/console/sandboxes/default#files")
    await page.locator("#upload").set_input_files({"name": "paper.pdf", "mimeType": "x/x", "buffer": PAPER})
    await page.get_by_role("button", name="paper.pdf", exact=True).click()
    await expect(page.frame_locator("#preview-body iframe").locator("canvas").first).to_have_attribute("role", "img")
    await check(page, "paper")
    await page.context.close()
    assert wrong == {}
