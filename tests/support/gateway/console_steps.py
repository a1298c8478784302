"""What users do on pages of the console, a few steps each, and what they see then."""

import base64
import re
from typing import Final

from playwright.async_api import FrameLocator, Page, expect

from support.gateway.console import Place, run
from support.servers.cut_connections import way_to

NAME: Final = "<img src=x onerror=alert(1)>"
CONTROLS: Final = "a\x1b[31m\u202egpj.txt"
DOT: Final = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="
)
DROP: Final = """(zone, files) => {
  const dataTransfer = new DataTransfer()
  const bytes = (data) => Uint8Array.from(atob(data), (char) => char.charCodeAt(0))
  for (const [name, data] of files) dataTransfer.items.add(new File([bytes(data)], name))
  const seen = ["dragover", "drop"].map((kind) => {
    zone.dispatchEvent(new DragEvent(kind, {dataTransfer, bubbles: true, cancelable: true}))
    return zone.classList.contains("over")
  })
  return seen.join()
}"""
CHOOSE: Final = """(input, size) => {
  const chosen = new DataTransfer()
  chosen.items.add(new File([new Uint8Array(size)], "half.bin"))
  input.files = chosen.files
  input.dispatchEvent(new Event("change"))
}"""
PARTS: Final = """\
import os, time
def parts(): return [name for name in os.listdir() if name[0] == "."]
while not {wanted}: time.sleep(0.02)
print([name for name in os.listdir() if "half" in name])
"""
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
HOSTILE: Final = r"print('<script>alert(1)</script>\x00\x1b]0;t\x07\u202Ecod.exe\x1b[2J'); print('1 %\r2 %\r3 %')"
LINES: Final = "import sys\nfor i in range(40): sys.stdout.write(('x' * 100 + '\\n') * 5000)\nprint('the end')"
LONG: Final = "print('y' * 5_000_000)"


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


async def is_sent_on_another_tab(page: Page, name: str) -> None:
    """Go to the files by the arrow keys, send an empty one, and come back."""
    await page.get_by_role("tab", name="Code").press("ArrowRight")
    await expect(page.get_by_role("tab", name="Files", selected=True)).to_be_focused()
    await page.locator("#upload").set_input_files({"name": name, "mimeType": "text/plain", "buffer": b""})
    await expect(page.locator("#transfer")).to_have_text(f"{name} is there.")
    await page.keyboard.press("ArrowLeft")
    await page.keyboard.press("ArrowLeft")
    await expect(page.get_by_role("tab", name="State", selected=True)).to_be_focused()
    await page.keyboard.press("ArrowRight")
    await expect(page.locator("#code")).to_be_visible()


async def other_languages_and_an_earlier_run(page: Page) -> None:
    language, history = page.get_by_label("Language"), page.locator("#history button")
    for name, code, printed in (
        ("javascript", "console.log([3, 4].map((x) => x * 2))", "[ 6, 8 ]"),
        ("shell", "echo $((6 * 7))", "42"),
    ):
        await language.select_option(name)
        await expect(await run(page, code)).to_have_text(printed)
        await expect(history.first).to_contain_text(name)

    # An earlier run is shown again, and its program can be run again.
    await history.filter(has_text="matplotlib").click()
    await expect(page.locator("#shown img")).to_be_visible()
    await expect(page.locator(".cm-content")).to_contain_text("plt.plot")
    await expect(language).to_have_value("python")
    known = await history.count()
    await page.locator("#run").click()
    await expect(history).to_have_count(known + 1)
    await expect(page.locator("#state")).to_contain_text("ok · exit code 0")
    await expect(page.locator("#shown img")).to_be_visible()
    await expect(history.first).to_contain_text("matplotlib")


async def are_dropped(page: Page, known: int) -> dict[str, bytes]:
    """Drag files onto the table."""
    dropped = {"dot.png": DOT, CONTROLS: b"controls"}
    given = [[name, base64.b64encode(data).decode()] for name, data in dropped.items()]
    assert await page.locator("#drop").evaluate(DROP, given) == "true,false"
    await expect(page.locator("#entries tr")).to_have_count(known + len(dropped))
    return dropped


async def breaks_off(page: Page, place: Place) -> None:
    """Send a file over a connection that ends while it is sent: the page says so, and no part of it is left."""
    async with way_to(place.address) as way:
        await page.goto(f"{way.address}/console/sandboxes/default#files")
        await expect(page.locator("#entries tr").first).to_be_visible()
        way.delay = 0.1  # of each piece, so that it is under way until the end
        await page.locator("#upload").evaluate(CHOOSE, 16_000_000)
        await expect(page.locator("#transfer")).to_have_text(re.compile(r"^half.bin: [1-9]\d? %$"))
        asked = {"code": PARTS.format(wanted="any(map(os.path.getsize, parts()))")}
        own = {"origin": place.address}
        there = await page.context.request.post(f"{place.address}/api/v1/runs", data=asked, headers=own)
        assert (await there.json())["stdout"] == "[]\n", "no part has come"
    await expect(page.locator("#notice")).to_contain_text("half.bin was not sent. Try again.")
    await page.goto(f"{place.address}/console/sandboxes/default")
    await expect(await run(page, PARTS.format(wanted="(parts() == [])"))).to_have_text("[]")
    await page.get_by_role("tab", name="Files").click()


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


async def table_by_keyboard_and_extended(page: Page) -> None:
    """Find a sandbox by the filter, which a key leads to, and let it live for longer."""
    rows, count = page.locator("#rows tr:visible"), page.locator("#count")
    await page.locator("body").press("/")
    await expect(page.get_by_label("Filter sandboxes")).to_be_focused()
    await page.keyboard.type("HERS")
    await expect(count).to_have_text(re.compile(r"^1 of \d+$"))
    await expect(rows).to_have_count(1)
    await page.keyboard.type("/")  # is text where one writes
    await expect(count).to_have_text(re.compile(r"^0 of \d+$"))
    await expect(rows).to_have_count(0)
    await page.keyboard.press("Backspace")
    await page.get_by_role("button", name="Extend hers").click()
    dialog = page.get_by_role("dialog", name="Extend")
    await dialog.get_by_label("For").select_option("1 day")
    await dialog.get_by_role("button", name="Extend").click()
    await expect(dialog).not_to_be_visible()
    await expect(rows).to_contain_text("in 23 h")
    await expect(rows).to_have_count(1)  # the filter is kept


async def pool_is_scaled(page: Page, place: Place) -> None:
    await page.goto(f"{place.address}/console/pools")
    row, number = page.get_by_role("row", name="default"), page.get_by_label("Sandboxes that default keeps")
    await expect(row).to_contain_text(re.compile(r"0 %\s+0 of \d+ claims\s+since 2"))  # nothing waits here
    await number.fill("65")
    await row.get_by_role("button", name="Scale").click()
    await expect(page.locator("#notice")).to_contain_text("There can't be so many.")
    for count in ("1", "0"):
        await number.fill(count)
        await row.get_by_role("button", name="Scale").click()
        await expect(row).to_contain_text(f"of {count}")
        await expect(number).to_have_value(count)


async def is_copied(page: Page, of: str) -> str:
    """Press the button that copies an element's text; return what the clipboard has then."""
    await page.locator(f"[data-copy='{of}']").click()
    await expect(page.locator(f"[data-copy='{of}']")).to_have_text("Copied")
    copied: str = await page.evaluate("navigator.clipboard.readText()")
    assert copied == await page.locator(of).text_content()
    return copied
