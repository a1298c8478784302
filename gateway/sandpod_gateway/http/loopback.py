"""A server on a free port of this machine's loopback, for callers who come another way than by HTTP.

Over standard input and output there is no address for links to lead to: this gives them one.
"""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Final

import uvicorn
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.types import ASGIApp

from sandpod_gateway.http import connections

_HOST: Final = "127.0.0.1"
_MOST_CONNECTIONS: Final = 256
_END_SECONDS: Final = 1  # for answers that are under way when the client leaves


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone: they are for the whole program."""
        yield


@asynccontextmanager
async def serving(app: ASGIApp) -> AsyncIterator[str]:
    """Serve an app on this machine alone until the block is left, and give its address.

    A page of a browser that reaches it by a name of its own (DNS rebinding) is refused.

    Raises:
        OSError: No port can be had.
    """
    listener = socket.create_server((_HOST, 0), backlog=_MOST_CONNECTIONS)
    with listener:
        address = f"http://{_HOST}:{listener.getsockname()[1]}"
        server = _Server(
            uvicorn.Config(
                TrustedHostMiddleware(app, [_HOST, "localhost"]),
                log_config=None,
                access_log=False,
                server_header=False,
                http=connections.bounded(_MOST_CONNECTIONS),
                ws="none",
                lifespan="off",
                timeout_graceful_shutdown=_END_SECONDS,
            )
        )
        task = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield address
        finally:
            server.should_exit = True
            with contextlib.suppress(asyncio.CancelledError):
                await task
