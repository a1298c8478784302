"""Transfers by links, many at a time, stay within a day's bytes together."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import httpx2
from fastmcp import Client
from starlette.types import Message

from fakes.backend import FakeBackend
from sandpod_gateway.app import Gateway
from sandpod_gateway.auth.callers import LOCAL
from sandpod_gateway.settings import LinkSettings, Settings
from sandpod_gateway.usage.amounts import account_of
from sandpod_runner.protocol.messages import FILE_PART
from support.gateway.peers import PATIENCE, until
from unit.gateway.auth.test_links import BASE, Place
from unit.gateway.http.test_uploads import halting

ACCOUNT = account_of(LOCAL)


class Limited(Place):
    """A gateway whose callers may move so many bytes a day."""

    gateway: Gateway
    app: Any

    def use_up(self, leave: int) -> None:
        """Let somebody else of the account move all bytes of the day but so many."""
        meter = self.gateway._sandboxes.meter
        [(_, _, quota)] = meter.limits.of(ACCOUNT)
        assert quota.bytes_per_day is not None
        [row] = meter.document.rows.values()
        meter.move(ACCOUNT, "sbx-other", out=quota.bytes_per_day - row.bytes_in - row.bytes_out - leave)


@asynccontextmanager
async def limited(**limits: int) -> AsyncIterator[Limited]:
    settings = Settings.model_validate({"links": LinkSettings(public_url=BASE), "quotas": {"per_user": limits}})
    gateway = Gateway(settings, FakeBackend())
    app = gateway.http_app()
    async with (
        gateway.running(),
        httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url=BASE) as http,
        Client(gateway.mcp) as mcp,
        asyncio.timeout(PATIENCE),
    ):
        place = Limited(mcp, http)
        place.gateway, place.app = gateway, app
        yield place


async def chunks(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


async def test_uploads_at_once_share_what_is_left_of_the_day() -> None:
    async with limited(upload_bytes_per_day=2) as place:
        await place.call("make_directory", path="d")
        links = [await place.link(f"d/{number}.txt", method="put") for number in range(3)]
        begun: list[int] = []
        going_on = asyncio.Event()
        first, second = (
            asyncio.create_task(place.http.put(link, content=halting(begun, going_on))) for link in links[:2]
        )
        await until(lambda: len(begun) == 2)  # each has sent one byte, and has another
        third = await place.http.put(links[2], content=chunks(b"c"))
        assert (third.status_code, third.json()["error"]) == (507, "quota_exceeded")
        assert int(third.headers["retry-after"]) > 0
        going_on.set()
        answers = await asyncio.gather(first, second)
        assert [(each.status_code, each.json()["error"]) for each in answers] == [(507, "quota_exceeded")] * 2
        assert (await place.call("list_files", path="d"))["entries"] == []


async def test_upload_that_says_its_size_is_refused_before_it_uses_anything_up() -> None:
    async with limited(upload_bytes_per_day=100) as place:
        await place.call("make_directory", path="d")
        link = await place.link("d/a.txt", method="put")
        size = {"content-length": "101"}
        assert (await place.http.put(link, content=chunks(b"x" * 60, b"x" * 41), headers=size)).status_code == 507
        assert (await place.http.put(link, content=b"x" * 100)).status_code == 201


async def test_upload_that_passes_the_limit_on_its_way_leaves_no_half_file() -> None:
    size = 2 * FILE_PART
    async with limited(bytes_per_day=size) as place:
        await place.call("make_directory", path="d")
        link = await place.link("d/a.bin", method="put")
        answer = await place.http.put(link, content=chunks(bytes(size), b"x"))
        assert (answer.status_code, answer.json()["error"]) == (507, "quota_exceeded")
        assert (await place.call("list_files", path="d"))["entries"] == []


async def test_downloads_at_once_share_what_is_left_of_the_day() -> None:
    async with limited(bytes_per_day=200) as place:
        await place.call("write_file", path="a.txt", text="x" * 60)
        link = await place.link("a.txt")
        answers = await asyncio.gather(*(place.http.get(link) for _ in range(5)))
        assert sorted(each.status_code for each in answers) == [200, 200, 507, 507, 507]
        assert all(each.json()["error"] == "quota_exceeded" for each in answers if each.status_code == 507)
        assert (await place.http.get((await place.call("fetch_workspace"))["url"])).status_code == 507


async def test_download_that_comes_to_the_limit_on_its_way_is_cut_off() -> None:
    async with limited(bytes_per_day=100 * FILE_PART) as place:
        await place.http.put(await place.link("a.bin", method="put"), content=bytes(3 * FILE_PART))
        url = urlsplit(await place.link("a.bin"))
        sent: list[Message] = []

        async def send(message: Message) -> None:
            sent.append(message)
            if len(sent) == 2:  # its first part
                place.use_up(leave=1)

        async def receive() -> Message:
            await asyncio.Event().wait()
            raise AssertionError

        scope: dict[str, Any] = {
            "type": "http",
            "method": "GET",
            "path": url.path,
            "raw_path": url.path.encode(),
            "root_path": "",
        }
        scope |= {"query_string": url.query.encode(), "headers": [(b"host", b"sandpod.test")]}
        scope |= {"scheme": "http", "server": ("sandpod.test", 80), "client": ("127.0.0.1", 1), "http_version": "1.1"}
        await place.app(scope, receive, send)
        assert sent[0]["status"] == 200
        assert [len(each["body"]) for each in sent[1:]] == [FILE_PART]
        assert sent[-1]["more_body"], "nobody takes it for whole"
