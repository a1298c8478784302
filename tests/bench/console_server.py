"""A gateway over sandboxes in memory, as a program of its own, so that its processor time can be read.

python -m bench.console_server KEYS COUNT    prints its address and process once as many sandboxes are there
"""

import asyncio
import os
import sys
from pathlib import Path

from fakes.backend import FakeBackend
from sandpod_gateway.app import Gateway
from sandpod_gateway.auth.callers import owner_of
from sandpod_gateway.backends.base import ClaimRequest
from sandpod_gateway.backends.local.settings import LocalSettings
from sandpod_gateway.settings import AuthSettings, Settings
from support.gateway.server import listening

USER = "bench"


async def main(keys: Path, count: int) -> None:
    """Serve until the process is ended."""
    limits = {"max_sandboxes": 2 * count, "max_sandboxes_per_owner": 2 * count}
    backend = FakeBackend(LocalSettings(**limits))
    settings = Settings(auth=AuthSettings(keys_file=keys))
    async with listening(Gateway(settings, backend), settings) as address:
        for index in range(count):
            await backend.claim(ClaimRequest(owner=owner_of("", USER), session=f"work {index}"))
        print(address, os.getpid(), flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
