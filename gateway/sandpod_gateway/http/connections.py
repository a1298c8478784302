"""HTTP servers, and bounds on their connections: how many there are, and how long one may wait for a request.

uvicorn has no such limits. A connection costs a file descriptor before any key is checked, so someone who opens many
and sends nothing must not keep others out.
"""

import asyncio
import logging
import resource
import socket
import termios
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext, suppress
from fcntl import ioctl
from typing import Any, ClassVar, Final

import uvicorn
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame
from websockets.http11 import Request

REQUEST_SECONDS: Final = 20.0  # from the first byte of a request, or the connection, to the end of its headers
PASSED_ON: Final = b"x-sandpod-passed-on"  # header of a request that another gateway can answer, too
PROBES: Final = frozenset({"/healthz", "/readyz", "/metrics"})  # asked of a server by name, whichever takes the calls
_DESCRIPTORS: Final = 65_536  # more than that, memory would not serve
_FRAGMENTS: Final = 1024  # of a WebSocket's message
_LOOPBACK: Final = "127.0.0.1"
_LOOPBACK_CONNECTIONS: Final = 256
_no_requests = logging.getLogger(f"{__name__}.websockets")
_no_requests.setLevel(logging.WARNING)
_END_SECONDS: Final = 1  # for answers in progress when the client over standard input and output leaves


def most_connections() -> int:
    """Allow this process all the file descriptors that it can have; return how many may be connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted // 2  # the other half is for streams to sandboxes, files and package clients


class BoundedConnection(H11Protocol):
    """A connection that is closed when its request does not come, or when others need its place."""

    most: ClassVar[int]  # connections at a time
    linger: ClassVar[float]  # seconds that an ending one waits for a request that its client may be about to send
    new: ClassVar[dict["BoundedConnection", None]]  # which wait for a first request, the oldest first
    idle: ClassVar[dict["BoundedConnection", None]]  # which wait for another request, the longest idle first
    last_call: ClassVar[float] = (
        0.0  # when something was asked for which others know no other server, on the loop's clock
    )

    _deadline: asyncio.TimerHandle | None = None
    _passed_on = False  # whether it is a WebSocket's now
    _ending = False  # whether the connection is to end

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take the connection, in place of one that waits where there are too many."""
        super().connection_made(transport)
        self.new[self] = None
        self._start_timer()
        if len(self.connections) > self.most:
            next(iter(self.new or self.idle)).transport.abort()

    def data_received(self, data: bytes) -> None:
        """Read; the timer stops once the headers of a request are complete."""
        super().data_received(data)
        if self._passed_on:
            return
        if self._serving():
            self._leave()
            if self.scope["path"] not in PROBES and all(name != PASSED_ON for name, _ in self.headers):
                type(self).last_call = self.loop.time()
        elif self._deadline is None or self._ending:
            self._leave()
            self._start_timer()

    def handle_websocket_upgrade(self, event: Any) -> None:
        """Pass the connection on for good: no request follows on it."""
        self._leave()
        self._passed_on = True
        if self.flow.write_paused:
            self.transport.abort()  # earlier answers are not read, nor would the next one be
            return
        type(self).last_call = self.loop.time()
        super().handle_websocket_upgrade(event)

    def on_response_complete(self) -> None:
        """Wait for the next request; what is left of this one's body is not waited for long."""
        super().on_response_complete()
        if self._ending and not self.transport.is_closing():
            # The answer began before clients were told to go: this one may send its next request at this moment.
            self._deadline = self.loop.call_later(self.linger, self.shutdown)
        elif not self._serving():
            self.idle[self] = None

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._leave()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """Close the connection, after its answer where a request is in progress, or has arrived and is not read yet."""
        unread = any(ioctl(self.transport.get_extra_info("socket").fileno(), termios.FIONREAD, bytes(4)))
        self._ending = True
        if not unread and not self._serving():
            super().shutdown()

    def _serving(self) -> bool:
        cycle = getattr(self, "cycle", None)  # None until the first request, whatever its type says
        return cycle is not None and not cycle.response_complete

    def _start_timer(self) -> None:
        self._deadline = self.loop.call_later(REQUEST_SECONDS, self.transport.abort)

    def _leave(self) -> None:
        self.new.pop(self, None)
        self.idle.pop(self, None)
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


class WebSocketConnection(WebSocketsSansIOProtocol):
    """A WebSocket that keeps out of the log what clients ask for, and for which a refusal is an answer like others.

    Nothing is read of a client that was not let in, and little is kept, and not for long, for one that does not read.
    """

    _pong = b""  # the latest that waits for the client to read
    _end: asyncio.TimerHandle | None = None

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.logger = self.conn.logger = _no_requests
        self.default_headers = []  # an ending server's say "Connection: close", and a WebSocket's something else

    def handle_connect(self, event: Request) -> None:
        """Answer a request; reading goes on when the app accepts it."""
        self.read_paused = True
        self.transport.pause_reading()
        super().handle_connect(event)
        if self.close_sent:
            self._end_soon()

    def handle_cont(self, event: Frame) -> None:
        """Take a part of a message; small ones cost more than they bring."""
        if len(self.frames) < _FRAGMENTS:
            super().handle_cont(event)
        else:
            self.transport.abort()

    def handle_ping(self) -> None:
        """Answer a ping, or the latest of several once the client reads."""
        output = self.conn.data_to_send()
        if self.writable.is_set():
            self.transport.write(b"".join(output))
        elif output:
            self._pong = output[-1]

    def resume_writing(self) -> None:
        """Send what was held back."""
        super().resume_writing()
        pong, self._pong = self._pong, b""
        self.transport.write(pong)

    def keepalive_timeout(self) -> None:
        """End the connection at once: what its client does not read is not waited for."""
        super().keepalive_timeout()
        self.transport.abort()

    def on_task_complete(self, task: asyncio.Task[None]) -> None:
        """Wait for the client to read the rest, but not for long."""
        super().on_task_complete(task)
        self._end_soon()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        super().connection_lost(exc)
        if self._end is not None:
            self._end.cancel()

    def _end_soon(self) -> None:
        if not self.disconnected:
            self._end = self.loop.call_later(self.close_timeout, self.transport.abort)

    async def send(self, message: Any) -> None:
        """Send a message."""
        await super().send(message)
        self.handshake_complete = self.handshake_complete or self.close_sent


WEBSOCKETS: Final = {
    "ws": WebSocketConnection,
    "ws_max_size": 256 * 1024,  # bytes of a message: one or two of them wait to be read
    # It would cost each connection memory and time, and tell something of secrets by the size of what is sent.
    "ws_per_message_deflate": False,
}
"""Options of a server that takes WebSockets. Each is pinged every 20 seconds, and closed without an answer for 20."""


def config(app: ASGIApp, *, most: int, linger: float = 0, **options: Any) -> uvicorn.Config:
    """Return what all servers have in common: so many connections at most, no log and no name of their own.

    `linger` is how long, seconds, a connection without a request stays open whose answer was not said to be the last.
    Forwarded headers are the app's matter: uvicorn would trust whoever an environment variable names.
    """
    http = type("Connection", (BoundedConnection,), {"most": most, "linger": linger, "new": {}, "idle": {}})
    own: dict[str, Any] = {"log_config": None, "access_log": False, "server_header": False, "proxy_headers": False}
    return uvicorn.Config(app, http=http, **({"ws": "none"} | own | options))


class Server(uvicorn.Server):
    """A server that says when it does not listen any more."""

    ending: asyncio.Event | None = None

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop listening, and wait for answers in progress."""
        if self.ending is not None:
            self.ending.set()
        await super().shutdown(sockets)


class _Server(Server):
    capture_signals = nullcontext  # type: ignore[assignment]  # signals are for the main server


@asynccontextmanager
async def serving(app: ASGIApp, listener: socket.socket, *, most: int, **options: Any) -> AsyncIterator[None]:
    """Serve an app in addition to the main one, until the block is left."""
    server = _Server(config(app, most=most, lifespan="off", **options))
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield
    finally:
        server.should_exit = True
        with suppress(asyncio.CancelledError):
            await task


@asynccontextmanager
async def serving_on_loopback(app: ASGIApp) -> AsyncIterator[str]:
    """Serve an app at a free port of this machine's loopback until the block is left, and give its address.

    Callers over standard input and output have no other address for links to lead to. A page of a browser that reaches
    it by another name (DNS rebinding) is refused. Raises OSError: no port can be had.
    """
    with socket.create_server((_LOOPBACK, 0), backlog=_LOOPBACK_CONNECTIONS) as listener:
        guarded = TrustedHostMiddleware(app, [_LOOPBACK, "localhost"])
        async with serving(guarded, listener, most=_LOOPBACK_CONNECTIONS, timeout_graceful_shutdown=_END_SECONDS):
            yield f"http://{_LOOPBACK}:{listener.getsockname()[1]}"
