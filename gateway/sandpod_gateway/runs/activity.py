"""What sandboxes do at this moment: what they use, and which runs go on. To ask is no use of them."""

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from typing import Final, NamedTuple

from cachetools import TTLCache

from sandpod_gateway.api.run_results import RunInfo
from sandpod_gateway.backends.base import SandboxRecord
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.runner.connection import RunnerConnection
from sandpod_gateway.runner.demux import ConnectionLostError
from sandpod_gateway.runner.messages import Listing, checked
from sandpod_gateway.runs.background import run_infos
from sandpod_gateway.sandboxes.load import Load, measure
from sandpod_gateway.sandboxes.requests import ask_runner
from sandpod_gateway.sandboxes.service import Sandboxes

FRESH_SECONDS: Final = 4.0  # in which a sandbox is asked once, however many look
ANSWER_SECONDS: Final = 5.0  # that it may take to answer
MAX_ASKED: Final = 50  # of a caller's sandboxes, the newest: each look costs a stream some frames
MAX_KEPT: Final = 1024


class Activity(NamedTuple):
    """What a sandbox does."""

    load: Load
    runs: tuple[RunInfo, ...]  # that go on


class Activities:
    """Asks the runners of sandboxes."""

    def __init__(self, sandboxes: Sandboxes) -> None:
        self._sandboxes = sandboxes
        self._looks: TTLCache[str, asyncio.Future[Activity | None]] = TTLCache(MAX_KEPT, FRESH_SECONDS)

    async def of(self, record: SandboxRecord) -> Activity | None:
        """Return what a sandbox does; None where it does not run, or does not answer."""
        if record.status != "Ready":
            return None
        with suppress(SandpodError, TimeoutError):
            async with asyncio.timeout(ANSWER_SECONDS):
                return await ask_runner(
                    self._sandboxes, record, lambda connection: _look(record.name, connection), again=True, use=False
                )
        return None

    async def known(self, records: Iterable[SandboxRecord]) -> dict[str, Activity]:
        """Return what those of some sandboxes do that this gateway has a stream to: the others are not in use here."""
        connected = [record.name for record in records if self._sandboxes.connected(record.name)]
        looks = {name: self._shared(name) for name in connected[-MAX_ASKED:]}
        await asyncio.gather(*map(asyncio.shield, looks.values()))
        return {name: found for name, look in looks.items() if (found := look.result()) is not None}

    def _shared(self, name: str) -> "asyncio.Future[Activity | None]":
        look = self._looks.get(name)
        if look is None:
            look = self._looks[name] = asyncio.ensure_future(self._try(name))
        return look

    async def _try(self, name: str) -> Activity | None:
        with suppress(ConnectionLostError, SandpodError, TimeoutError):
            async with asyncio.timeout(ANSWER_SECONDS):
                if (connection := self._sandboxes.connected(name)) is not None:
                    return await _look(name, connection)
        return None


async def _look(name: str, connection: RunnerConnection) -> Activity:
    load = await measure(connection)
    listing = checked(Listing, await connection.ask("list"))
    return Activity(load, tuple(run for run in run_infos(name, listing) if run.state == "running"))
