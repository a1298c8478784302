"""Connections to the HTTP server: how many there may be, and how long one may go without a whole request.

uvicorn has no such limits. A connection costs a file descriptor before any key is checked, so someone who opens many
and sends nothing must not keep others out.
"""

import asyncio
import resource
from typing import ClassVar, Final

from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_SECONDS: Final = 20.0  # from the first byte of a request, or the connection, to the end of its headers
_DESCRIPTORS: Final = 65_536  # more than that, memory would not serve


def most_connections() -> int:
    """Allow this process all the file descriptors that it can have; return how many may be connections.

    The other half is for streams to sandboxes, files and package clients.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted // 2


class BoundedConnection(H11Protocol):
    """A connection that is closed when its request does not come, or when others need its place.

    Attributes:
        most: Most connections at a time.
        new: Those that have not had an answer yet and wait for a request, the oldest first.
        idle: Those that wait for another request, the longest idle first.
    """

    most: ClassVar[int]
    new: ClassVar[dict["BoundedConnection", None]]
    idle: ClassVar[dict["BoundedConnection", None]]

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take the connection, in place of one that waits where there are too many."""
        super().connection_made(transport)
        self.new[self] = None
        self._start_timer()
        if len(self.connections) > self.most:
            next(iter(self.new or self.idle)).transport.abort()

    def data_received(self, data: bytes) -> None:
        """Read; a request that is whole but for its body stops the clock."""
        super().data_received(data)
        if self._serving():
            self._leave()
        elif self._deadline is None:
            self._start_timer()

    def on_response_complete(self) -> None:
        """Wait for the next request; what is left of this one's body is not waited for long."""
        super().on_response_complete()
        if not self._serving():
            self.idle[self] = None

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._leave()
        super().connection_lost(exc)

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


def bounded(most: int) -> type[BoundedConnection]:
    """Return the protocol of one server with that many connections at a time."""
    return type("Connection", (BoundedConnection,), {"most": most, "new": {}, "idle": {}})
