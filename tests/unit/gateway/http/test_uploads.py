"""Uploads over links that come slowly, or many at a time."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from sandpod_gateway.http import routes
from support.gateway.peers import until
from unit.gateway.auth.test_links import serving


async def halting(begun: list[int], going_on: asyncio.Event) -> AsyncIterator[bytes]:
    """A body whose rest comes when it is allowed to."""
    yield b"a"
    begun.append(1)
    await going_on.wait()
    yield b"b"


async def test_an_upload_too_many_is_refused_and_one_that_ends_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "MAX_UPLOADS", 2)
    begun: list[int] = []
    going_on = asyncio.Event()
    async with serving() as place:
        await place.call("write_file", path="first.txt", text="makes the sandbox")
        links = [await place.link(f"{number}.txt", method="put") for number in range(3)]
        tasks = [asyncio.create_task(place.http.put(link, content=halting(begun, going_on))) for link in links[:2]]
        await until(lambda: len(begun) == 2)
        refused = await place.http.put(links[2], content=b"x")
        assert (refused.status_code, refused.json()["error"]) == (429, "rate_limited")
        going_on.set()
        assert [answer.status_code for answer in await asyncio.gather(*tasks)] == [201, 201]
        assert (await place.http.put(links[2], content=b"x")).status_code == 201


async def test_an_upload_that_stops_is_given_up_and_leaves_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "SILENCE", 0.01)
    async with serving() as place:
        await place.call("write_file", path="first.txt", text="makes the sandbox")
        link = await place.link("half.txt", method="put")
        answer = await place.http.put(link, content=halting([], asyncio.Event()))
        assert (answer.status_code, answer.json()["error"]) == (408, "timeout")
        assert (await place.call("stat_file", path="half.txt"))["error"] == "not_found"
