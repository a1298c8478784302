"""Users of the console, each with a browser's page of their own."""

from dataclasses import dataclass, field
from typing import Any, Final

from playwright.async_api import Browser, ConsoleMessage, Locator, Page, expect

PATIENCE: Final = 60_000  # ms after which a test that waits has failed
PASTE: Final = """(editor, text) => {
  const clipboardData = new DataTransfer()
  clipboardData.setData("text/plain", text)
  editor.dispatchEvent(new ClipboardEvent("paste", {clipboardData, bubbles: true, cancelable: true}))
}"""

expect.set_options(timeout=PATIENCE)


@dataclass
class Place:
    """A server with keys, and a browser."""

    address: str
    keys: dict[str, str]
    browser: Browser
    complaints: list[str] = field(default_factory=list)  # of pages: errors of scripts, and of the policy
    behind: str = ""  # the server's own address, where the other is a proxy's

    async def page(self, **options: Any) -> Page:
        context = await self.browser.new_context(viewport={"width": 1280, "height": 900}, **options)
        page = await context.new_page()
        page.set_default_timeout(PATIENCE)

        def heard(message: ConsoleMessage) -> None:
            # The second is htmx's, of a refusal that the page shows; the last is of Playwright's stand-in, which passes
            # on to a connection that it has closed.
            known = ("Failed to load resource", "Response Status Error Code 4", "already in CLOSING")
            if message.type == "error" and not any(each in message.text for each in known):
                self.complaints.append(message.text)

        page.on("console", heard)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("dialog", lambda dialog: self.complaints.append(dialog.message))
        return page

    async def user(self, name: str, **options: Any) -> Page:
        """Return a page of somebody who has signed in."""
        page = await self.page(**options)
        await page.goto(f"{self.address}/")
        await page.get_by_label("API key").fill(self.keys[name])
        await page.get_by_role("button", name="Sign in").click()
        await expect(page.get_by_role("heading", name="Sandboxes")).to_be_visible()
        await page.wait_for_load_state()
        return page


async def go_by(link: Locator) -> None:
    """Go where a link leads; once the page is loaded its scripts have run, and its buttons do something."""
    async with link.page.expect_navigation():
        await link.click()


async def write(page: Page, code: str, context: str = "") -> None:
    """Paste a program into the editor, in place of what is there."""
    await page.locator(".cm-content").click()
    await page.keyboard.press("Control+a")
    await page.locator(".cm-content").evaluate(PASTE, code)
    await page.get_by_label("Context").fill(context)


async def run(page: Page, code: str, context: str = "") -> Locator:
    """Run a program to its end, and return its output."""
    await write(page, code, context)
    await page.locator("#run").click()
    await expect(page.locator("#state")).to_contain_text("ok")
    return page.locator("#output")
