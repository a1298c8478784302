"""A gateway of this process on a port of its own, for what needs real connections: streams, cancels, disconnects."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sandpod_gateway.app import Gateway
from sandpod_gateway.cli import serve
from sandpod_gateway.http import connections
from sandpod_gateway.settings import Settings
from support.gateway.peers import until


@asynccontextmanager
async def listening(
    gateway: Gateway, settings: Settings, *, host: str = "127.0.0.1", port: int = 0
) -> AsyncIterator[str]:
    """Serve a gateway as `sandpod serve` does; gives its address."""
    with serve._listen(host, port, flag="--port") as listener:
        # One that takes no signals: they are for pytest.
        server = connections._Server(serve._uvicorn(gateway, settings, serve._certificate(gateway, settings)).config)
        server.ending = gateway.ending
        async with gateway.running():
            task = asyncio.create_task(server.serve(sockets=[listener]))
            await until(lambda: server.started or task.done())
            try:
                yield f"http://{host}:{listener.getsockname()[1]}"
            finally:
                server.should_exit = True
                await task
