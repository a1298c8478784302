"""Servers in addition to the main one, which takes the signals: for metrics, and for links on this machine alone.

Over standard input and output there is no address for links to lead to: a free port of the loopback gives them one.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, Final

import uvicorn
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.types import ASGIApp

from sandpod_gateway.http import connections

_HOST: Final = "127.0.0.1"
_MOST_CONNECTIONS: Final = 256
_END_SECONDS: Final = 1  # for answers in progress when the client leaves


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone: they are for the whole program."""
        yield


def config(app: ASGIApp, *, connections_at_most: int, **options: Any) -> uvicorn.Config:
    """Return what all servers have in common: bounded connections, no log and no name of their own."""
    http = connections.bounded(connections_at_most)
    return uvicorn.Config(app, log_config=None, access_log=False, server_header=False, http=http, ws="none", **options)


@asynccontextmanager
async def serving_beside(
    app: ASGIApp, listener: socket.socket, *, connections_at_most: int, **options: Any
) -> AsyncIterator[None]:
    """Serve an app at a socket until the block is left."""
    server = _Server(config(app, connections_at_most=connections_at_most, lifespan="off", **options))
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield
    finally:
        server.should_exit = True
        with suppress(asyncio.CancelledError):
            await task


@asynccontextmanager
async def serving(app: ASGIApp) -> AsyncIterator[str]:
    """Serve an app on this machine alone until the block is left, and give its address.

    A page of a browser that reaches it by a name of its own (DNS rebinding) is refused.

    Raises:
        OSError: No port can be had.
    """
    with socket.create_server((_HOST, 0), backlog=_MOST_CONNECTIONS) as listener:
        guarded = TrustedHostMiddleware(app, [_HOST, "localhost"])
        options = {"connections_at_most": _MOST_CONNECTIONS, "timeout_graceful_shutdown": _END_SECONDS}
        async with serving_beside(guarded, listener, **options):
            yield f"http://{_HOST}:{listener.getsockname()[1]}"
