"""Requests to an app in this process, each with a record of the work that it makes: calls of a backend and its stores.

What the server does by itself meanwhile is nobody's request, and is not recorded.
"""

import asyncio
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final
from urllib.parse import unquote

from starlette.types import ASGIApp, Message

from support.gateway.peers import PATIENCE

STORES: Final = frozenset(
    {"key_source", "link_store", "secret_source", "sign_in_key_store", "sign_in_places", "usage_store"}
)
_work: ContextVar[list[str] | None] = ContextVar("work", default=None)


def note(what: str) -> None:
    """Note work, if it is for a request."""
    if (work := _work.get()) is not None:
        work.append(what)


class Recorded:
    """Stands before a backend or a store, and notes each call with the texts that it names."""

    def __init__(self, inner: Any, where: str) -> None:
        self._inner, self._where = inner, where

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        return partial(self._call, name, value) if callable(value) else value

    def _call(self, name: str, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        note(" ".join([f"{self._where}.{name}", *(each for each in args if isinstance(each, str))]))
        result = method(*args, **kwargs)
        if name in STORES:
            return None if result is None else Recorded(result, f"{self._where} {name}")
        return _opened(result, self._where) if name == "open_stream" else result


class _Stream:
    """Stands before a stream to a sandbox, and notes what later requests than the one that opened it write."""

    def __init__(self, inner: Any, where: str, opener: list[str] | None) -> None:
        self._inner, self._where, self._opener = inner, where, opener
        self.read, self.close = inner.read, inner.close

    async def write(self, data: bytes) -> None:
        """Send the bytes."""
        if _work.get() is not self._opener:  # as what answers the sandbox has it, too
            note(f"{self._where} stream")
        await self._inner.write(data)


async def _opened(opening: Awaitable[Any], where: str) -> _Stream:
    return _Stream(await opening, where, _work.get())


@dataclass(frozen=True)
class Ask:
    """A request."""

    method: str
    path: str
    headers: Mapping[str, str] = field(default_factory=dict)
    content: bytes = b""
    socket: bool = False  # for a WebSocket


@dataclass
class Answer:
    """What came, and the work that it took."""

    status: int = 0
    headers: list[tuple[str, str]] = field(default_factory=list)
    text: str = ""
    work: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        """Return all that its client sees, but for the time."""
        return f"{self.status} {sorted(each for each in self.headers if each[0] != 'date')} {self.text}"


async def answer(app: ASGIApp, ask: Ask, headers: Mapping[str, str], *, begin: bool = False) -> Answer:
    """Return the answer to a request; with `begin`, what begins it, when its client leaves."""
    came, left, work = Answer(), asyncio.Event(), list[str]()
    said = [_begin(ask)]

    async def receive() -> Message:
        if said:
            return said.pop()
        await left.wait()
        return {"type": "websocket.disconnect", "code": 1000} if ask.socket else {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        if message["type"].endswith("response.start"):
            came.status = message["status"]
            came.headers = [(name.decode(), value.decode()) for name, value in message["headers"]]
        elif message["type"] == "websocket.accept":
            came.status = 101
        part = message.get("body") or message.get("text") or message.get("bytes") or b""
        came.text += part if isinstance(part, str) else part.decode("utf-8", "replace")
        if begin and part:
            left.set()

    token = _work.set(work)
    task = asyncio.ensure_future(app(_scope(ask, headers), receive, send))
    _work.reset(token)
    leaving = asyncio.ensure_future(left.wait())
    try:
        async with asyncio.timeout(PATIENCE):
            await asyncio.wait({task, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                task.cancel()
            await asyncio.gather(task, return_exceptions=begin)
    finally:
        leaving.cancel()
    came.work = Counter(work)
    return came


def _begin(ask: Ask) -> Message:
    if ask.socket:
        return {"type": "websocket.connect"}
    return {"type": "http.request", "body": ask.content, "more_body": False}


def _scope(ask: Ask, headers: Mapping[str, str]) -> dict[str, Any]:
    path, _, query = ask.path.partition("?")
    assert not re.search("[{}]", path), "say what the path's parameters may name"
    sent = {"host": "localhost", "content-length": str(len(ask.content)), **ask.headers, **headers}
    if ask.socket:
        sent |= {"upgrade": "websocket", "connection": "upgrade"}
        del sent["content-length"]
    scope: dict[str, Any] = {
        "type": "websocket" if ask.socket else "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "scheme": "ws" if ask.socket else "http",
        "path": unquote(path),
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(name.encode(), value.encode()) for name, value in sent.items()],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
        "state": {},
        "extensions": {"websocket.http.response": {}},
    }
    return scope if ask.socket else {**scope, "method": ask.method}
