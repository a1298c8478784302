"""A gateway in a process of its own, which a test can kill, over a sandbox that outlives it, as a pod does.

The sandbox's runner is the test's. As a program it takes the folder with the runner's socket, serves, and prints its
address. What is used is kept in that folder, and is all that the next gateway has of this one.
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

from fakes.backend import FakeBackend
from sandpod_api.conditions import Reason
from sandpod_gateway.app import Gateway
from sandpod_gateway.auth.callers import LOCAL
from sandpod_gateway.backends.base import SandboxRecord
from sandpod_gateway.backends.local.process import SocketStream
from sandpod_gateway.settings import Settings
from sandpod_gateway.usage.stores import FolderStore
from support.gateway.server import listening


class OutlivingCell:
    """A sandbox whose runner goes on whatever becomes of the gateway."""

    def __init__(self, address: Path) -> None:
        self._address = address

    async def connect(self) -> SocketStream:
        return SocketStream(*await asyncio.open_unix_connection(self._address))

    async def ending(self) -> tuple[Reason, str]:
        await asyncio.get_running_loop().create_future()
        raise AssertionError

    async def end(self) -> None:
        pass


class OutlivingBackend(FakeBackend):
    """Sandboxes that share one runner, and usage that is shared by a folder.

    Args:
        folder: Where the runner's socket is.
        held: The sandbox that an earlier gateway had claimed, if any.
    """

    def __init__(self, folder: Path, held: str | None = None) -> None:
        super().__init__()
        self._folder, self._held = folder, held
        self._store = FolderStore(folder / "usage")
        self._store.open()

    async def start(self) -> None:
        await super().start()
        if self._held is not None:
            record = SandboxRecord(
                name=self._held,
                owner=LOCAL.owner,
                session="default",
                template="default",
                network="none",
                status="Ready",
                created=datetime.now(UTC),
                ttl=3600,
                idle_timeout=3600,
            )
            self._attach(record, OutlivingCell(self._folder / "socket"))

    def usage_store(self) -> FolderStore:  # type: ignore[override]
        return self._store

    async def _launch(self, *, may_make: bool) -> OutlivingCell:  # type: ignore[override]  # noqa: ARG002 - there is always one
        return OutlivingCell(self._folder / "socket")


async def main(folder: Path) -> None:
    settings = Settings()
    async with listening(Gateway(settings, OutlivingBackend(folder)), settings) as address:
        print(address, flush=True)
        await asyncio.get_running_loop().create_future()


@asynccontextmanager
async def killable(folder: Path) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """Start the program; gives its process and its address."""
    path = [str(Path(__file__).parents[2]), *sys.path]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "support.gateway.outliving",
        str(folder),
        env={"PYTHONPATH": ":".join(path), "PATH": "/usr/bin:/bin", "XDG_STATE_HOME": "/dev/null/none"},
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(120):
            address = (await process.stdout.readline()).decode().strip()
        assert address, "it did not start"
        yield process, address
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
