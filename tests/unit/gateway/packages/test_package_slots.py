"""Slots for resolving and downloading, between owners."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from sandpod_gateway.packages.cache import FileCache
from sandpod_gateway.packages.channel import FairSlots
from sandpod_gateway.packages.pip.packages import PythonPackages, State, Target
from sandpod_gateway.packages.settings import PackageSettings
from support.gateway.peers import until
from support.servers.package_index import package_index

MACHINE = Target(markers={}, abi="cp313", platform="linux-aarch64", libc=("glibc", "2.31"))


class Line:
    """Owners who take slots, each until it may go on."""

    def __init__(self, count: int) -> None:
        self._slots = FairSlots(count)
        self._tasks: list[asyncio.Task[None]] = []
        self.order: list[str] = []
        self.go_on: dict[str, asyncio.Event] = {}

    async def add(self, *names: str) -> None:
        """Let callers come; the first letter of a name is the owner."""
        for name in names:
            self.go_on[name] = asyncio.Event()
            self._tasks.append(asyncio.create_task(self._take(name)))
        for _ in range(10):
            await asyncio.sleep(0)

    async def end(self, name: str) -> None:
        self.go_on[name].set()
        for _ in range(10):
            await asyncio.sleep(0)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _take(self, name: str) -> None:
        async with self._slots.slot(name[0]):
            self.order.append(name)
            await self.go_on[name].wait()


@asynccontextmanager
async def line(count: int) -> AsyncIterator[Line]:
    made = Line(count)
    try:
        yield made
    finally:
        await made.close()


@pytest.mark.parametrize(("count", "share"), [(2, 1), (4, 2), (1, 1)])
async def test_one_owner_has_half_of_the_slots_at_most(count: int, share: int) -> None:
    async with line(count) as here:
        await here.add(*(f"a{number}" for number in range(8)))
        assert len(here.order) == share


async def test_owners_take_turns_however_many_one_of_them_waits_for() -> None:
    async with line(2) as here:
        await here.add("a1", "a2", "a3", "b1", "c1", "c2")
        assert here.order == ["a1", "b1"]
        await here.end("a1")
        await here.end("b1")
        assert here.order == ["a1", "b1", "c1", "a2"]


async def test_slow_installations_of_one_owner_do_not_keep_another_from_the_index(tmp_path: Path) -> None:
    cache = FileCache(tmp_path / "cache", 2**20)
    cache.open()

    async def install(owner: str, name: str) -> None:
        async with packages.supplied(owner, [Requirement(name)], State(environment=MACHINE, installed={})):
            pass

    with package_index() as index:
        sandboxes: Any = None  # that are not asked for anything
        packages = PythonPackages(sandboxes, PackageSettings(index_url=index.url), cache, FairSlots(2))
        index.hold.clear()
        calls = [("slow", "one"), ("slow", "two"), ("other", "three")]
        tasks = [asyncio.create_task(install(*call)) for call in calls]
        await until(lambda: {"/simple/one/", "/simple/three/"} <= set(index.asked))
        assert "/simple/two/" not in index.asked
        for task in tasks:
            task.cancel()
        index.hold.set()
        await asyncio.gather(*tasks, return_exceptions=True)
