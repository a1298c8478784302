"""What the console costs: a browser with a page of many sandboxes, and the gateway with many such pages open."""

import asyncio
import re
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import httpx2
import yaml

from bench.console_server import USER
from bench.machine import processor_seconds
from bench.measures import MILLIS, BenchError
from bench.rows import Row
from sandpod_gateway.auth.api_keys import make_key
from support.gateway.browser import chromium
from support.servers.program import started

SANDBOXES: Final = 1000
IN_USE: Final = 20  # of them, whose processors and memory the pages show
CONSOLES: Final = 50
POLL_SECONDS: Final = 5  # as the page has it
_SHOWS: Final = "text => document.querySelector('#count')?.textContent.includes(text)"
_RUN: Final = {"code": "print(1)"}
_KNOWN: Final = re.compile(r"known=(\w+)")


async def console(loads: int, seconds: int) -> AsyncIterator[Row]:
    """A page of many sandboxes, so many times, and what all consoles cost the gateway in so many seconds."""
    with tempfile.TemporaryDirectory() as folder:
        key, entry = make_key(user=USER, name="bench", days=None, now=datetime.now(UTC))
        keys = Path(folder) / "keys.yaml"
        keys.write_text(yaml.safe_dump({"keys": [entry.model_dump(mode="json")]}), encoding="utf-8")
        command = (sys.executable, "-m", "bench.console_server", keys, SANDBOXES)
        async with started(*command) as said:
            address, pid = said.split()
            yield Row("page", await _loaded(address, key, loads))
            yield Row("consoles", [await _polled(address, key, seconds, int(pid))])


async def _loaded(address: str, key: str, count: int) -> list[float]:
    """Return the milliseconds from the address bar until a letter that is typed into the filter has chosen rows."""
    samples = []
    async with chromium() as browser:
        page = await browser.new_page()
        await page.goto(f"{address}/console/")
        await page.get_by_label("API key").fill(key)
        await page.get_by_role("button", name="Sign in").click()
        await page.wait_for_function(_SHOWS, arg=f"{SANDBOXES} in all")
        for _ in range(count):
            start = time.perf_counter()
            await page.goto(f"{address}/console/", wait_until="domcontentloaded")
            await page.get_by_label("Filter sandboxes").press("7")
            await page.wait_for_function(_SHOWS, arg=f" of {SANDBOXES}")
            samples.append((time.perf_counter() - start) * MILLIS)
    return samples


async def _polled(address: str, key: str, seconds: int, pid: int) -> float:
    """Return how much of a processor the gateway needs for all consoles while the sandboxes change, in per cent."""
    async with httpx2.AsyncClient(base_url=address, headers={"origin": address}, timeout=60) as http:
        bearer = {"x-api-key": key}
        names = [each["sandbox"] for each in (await http.get("/api/v1/sandboxes", headers=bearer)).json()["sandboxes"]]
        for name in names[:IN_USE]:  # the gateway keeps a stream to what has run something
            (await http.post("/api/v1/runs", headers=bearer, json=_RUN | {"sandbox": name})).raise_for_status()
        await http.post("/console/sign-in", data={"key": key})
        known = _tag_in((await http.get("/console/")).text)
        assert known
        end, before = time.monotonic() + seconds, processor_seconds(pid)
        changes = asyncio.create_task(_change(http, bearer, end))
        news = await asyncio.gather(*(_poll(http, index, known, end) for index in range(CONSOLES)))
        await changes
    if not all(news):
        raise BenchError("a console saw nothing change")
    return (processor_seconds(pid) - before) / seconds * 100


async def _change(http: httpx2.AsyncClient, bearer: dict[str, str], end: float) -> None:
    """Create a sandbox or close it, in turns, so that most polls bring news."""
    made = ""
    while time.monotonic() < end:
        if made:
            (await http.delete(f"/api/v1/sandboxes/{made}", headers=bearer)).raise_for_status()
            made = ""
        else:
            made = (await http.post("/api/v1/sandboxes", headers=bearer, json={})).raise_for_status().json()["sandbox"]
        await asyncio.sleep(POLL_SECONDS)


async def _poll(http: httpx2.AsyncClient, index: int, known: str, end: float) -> int:
    """Ask as a page does that knows the rows of a tag, and return how often there were others."""
    await asyncio.sleep(POLL_SECONDS * index / CONSOLES)  # each asks at its own moment
    news = 0
    while time.monotonic() < end:
        answer = await http.get("/console/rows", params={"known": known}, headers={"hx-request": "true"})
        if tag := _tag_in(answer.raise_for_status().text):
            known, news = tag, news + 1
        await asyncio.sleep(POLL_SECONDS)
    return news


def _tag_in(text: str) -> str:
    """Return the tag of the rows in a page or a part of it; nothing where they are the same."""
    found = _KNOWN.search(text)
    return found[1] if found else ""
