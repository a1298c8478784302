"""How bytes come and go, for asyncio and for threads: one interface, whose coroutines the blocking one never suspends.

So what is written once for asyncio runs without a loop as well: `finish` runs such a coroutine to its end at once.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, Final, ParamSpec, Protocol, TypeVar

import httpx2

_T = TypeVar("_T")
_P = ParamSpec("_P")

# The server says something every 15 seconds of whatever takes long.
TIMEOUT: Final = httpx2.Timeout(connect=15, read=90, write=90, pool=15)
PIECE: Final = 256 * 1024  # bytes of a file that are held at a time


def finish(work: Coroutine[Any, Any, _T]) -> _T:
    """Return what a coroutine returns that waits for nothing but the blocking transport."""
    try:
        work.send(None)
    except StopIteration as ended:
        result: _T = ended.value
        return result
    work.close()
    raise RuntimeError("A coroutine of the blocking client was suspended.")


def steps(items: AsyncGenerator[_T, None]) -> Iterator[_T]:
    """Yield what an asynchronous generator yields that waits for nothing but the blocking transport."""

    async def following() -> _T:
        return await anext(items)

    try:
        while True:
            try:
                yield finish(following())
            except StopAsyncIteration:
                return
    finally:
        finish(items.aclose())


class Answer(Protocol):
    """An answer whose body has not been read."""

    @property
    def response(self) -> httpx2.Response:
        """Status and headers."""

    def pieces(self) -> AsyncIterator[bytes]:
        """Yield the body as it comes."""

    async def close(self) -> None:
        """Hang up, unless all was read."""


class Transport(Protocol):
    """Sends requests, waits, and does what would block."""

    def request(self, method: str, url: str, **what: Any) -> httpx2.Request:
        """Make a request."""

    async def send(self, request: httpx2.Request) -> Answer:
        """Send it. Raises httpx2.TransportError."""

    def body(self, pieces: AsyncGenerator[bytes, None]) -> Any:
        """Return a request's body."""

    async def sleep(self, seconds: float) -> None:
        """Wait."""

    async def work(self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Call a function that may block."""

    async def close(self) -> None:
        """Close all connections."""


class _AsyncAnswer:
    def __init__(self, response: httpx2.Response) -> None:
        self.response = response

    def pieces(self) -> AsyncIterator[bytes]:
        """Yield the body as it comes."""
        return self.response.aiter_bytes()

    async def close(self) -> None:
        """Close what is open."""
        await self.response.aclose()


class AsyncTransport:
    """For asyncio."""

    def __init__(self) -> None:
        self._http = httpx2.AsyncClient(timeout=TIMEOUT)

    def request(self, method: str, url: str, **what: Any) -> httpx2.Request:
        """Make a request."""
        return self._http.build_request(method, url, **what)

    async def send(self, request: httpx2.Request) -> Answer:
        """Send a request."""
        return _AsyncAnswer(await self._http.send(request, stream=True))

    def body(self, pieces: AsyncGenerator[bytes, None]) -> AsyncIterable[bytes]:
        """Return a request's body."""
        return pieces

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)

    async def work(self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Call a function that may block."""
        return await asyncio.to_thread(function, *args, **kwargs)

    async def close(self) -> None:
        """Close what is open."""
        await self._http.aclose()


class _BlockingAnswer:
    def __init__(self, response: httpx2.Response) -> None:
        self.response = response

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the body as it comes."""
        for piece in self.response.iter_bytes():
            yield piece

    async def close(self) -> None:
        """Close what is open."""
        self.response.close()


class BlockingTransport:
    """For threads: its coroutines are never suspended."""

    def __init__(self) -> None:
        self._http = httpx2.Client(timeout=TIMEOUT)

    def request(self, method: str, url: str, **what: Any) -> httpx2.Request:
        """Make a request."""
        return self._http.build_request(method, url, **what)

    async def send(self, request: httpx2.Request) -> Answer:
        """Send a request."""
        return _BlockingAnswer(self._http.send(request, stream=True))

    def body(self, pieces: AsyncGenerator[bytes, None]) -> Iterator[bytes]:
        """Return a request's body."""
        return steps(pieces)

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)  # noqa: ASYNC251 - there is no loop

    async def work(self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Call a function that may block."""
        return function(*args, **kwargs)

    async def close(self) -> None:
        """Close what is open."""
        self._http.close()
