"""The services that are called by Connect RPC, by the names of their methods."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, aclosing
from functools import partial
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import ASGIApp, Message, Send

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.e2b.calls import Calls
from sandpod_gateway.e2b.envd.connect import STREAMED, Decoder, ending, envelope
from sandpod_gateway.e2b.envd.filesystem import Filesystem
from sandpod_gateway.e2b.envd.processes import Processes
from sandpod_gateway.e2b.envd.watches import Watches
from sandpod_gateway.e2b.errors import answer_inside, connect_error, connect_status
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.http.mcp.transports import until_ending
from sandpod_gateway.http.routes import timely
from sandpod_gateway.rest.requests import need_owner, parsed, read_body
from sandpod_gateway.runs.follow import Check

Unary = Callable[[Request, dict[str, Any]], Awaitable[dict[str, Any]]]
Streaming = Callable[[Request, dict[str, Any], Check], Awaitable[AsyncGenerator[dict[str, Any], None]]]

SERVICES: Final = ("/process.Process", "/filesystem.Filesystem")
_STEP: Final = "Send JSON: Content-Type application/json, or application/connect+json for a stream."


class Streamed(StreamingResponse):
    """A stream that is over when its request is, whatever ends that."""

    async def stream_response(self, send: Send) -> None:
        """Send the parts."""
        parts: Any = self.body_iterator
        async with aclosing(parts):
            await super().stream_response(send)


class Rpc:
    """Answers calls until the server is `ending`."""

    def __init__(
        self, calls: Calls, processes: Processes, files: Filesystem, watches: Watches, ending: asyncio.Event
    ) -> None:
        self._calls = calls
        self._ending = ending
        self._stream_input = processes.stream_input
        self._elsewhere = watches.elsewhere
        unary: dict[str, Unary] = {
            "process.Process/List": processes.running,
            "process.Process/SendInput": processes.send_input,
            "process.Process/CloseStdin": processes.close_stdin,
            "process.Process/SendSignal": processes.send_signal,
            "process.Process/Update": processes.update,
            "filesystem.Filesystem/Stat": files.stat,
            "filesystem.Filesystem/MakeDir": files.make_dir,
            "filesystem.Filesystem/Move": files.move,
            "filesystem.Filesystem/ListDir": files.list_dir,
            "filesystem.Filesystem/Remove": files.remove,
            "filesystem.Filesystem/CreateWatcher": watches.create_watcher,
            "filesystem.Filesystem/GetWatcherEvents": watches.get_events,
            "filesystem.Filesystem/RemoveWatcher": watches.remove_watcher,
        }
        streaming: dict[str, Streaming] = {
            "process.Process/Start": processes.start,
            "process.Process/Connect": processes.connect,
            "filesystem.Filesystem/WatchDir": watches.watch_dir,
        }
        self.methods: dict[str, Callable[[Request, Check], Awaitable[ASGIApp]]] = {
            **{name: partial(self._answer_one, method) for name, method in unary.items()},
            **{name: partial(self._answer_stream, method) for name, method in streaming.items()},
            "process.Process/StreamInput": self._take_stream,
        }

    async def answer(self, request: Request, check: Check) -> ASGIApp:
        """Call a method. Raises SandpodError (not_found): there is no such method. ClientDisconnect."""
        method = self.methods.get("{service}/{method}".format(**request.path_params))
        if method is None:
            raise SandpodError(ErrorCode.NOT_FOUND, "There is no such method.", next_step="Use one of E2B's.")
        return await method(request, check)

    async def _answer_one(self, method: Unary, request: Request, _check: Check) -> ASGIApp:
        _check_type(request, "application/json")
        with ExitStack() as held:
            body = await read_body(request, self._calls.requests, held)
            message = parsed(body)
            if "watcherId" in message and (passed := self._elsewhere(request, message, body)) is not None:
                return passed
            return JSONResponse(await method(request, message))

    async def _answer_stream(self, method: Streaming, request: Request, check: Check) -> Response:
        _check_type(request, STREAMED)
        with ExitStack() as held:
            body = await read_body(request, self._calls.requests, held)
            messages = await method(request, parsed(next(Decoder().feed(body), b"")), check)
        return Streamed(_enveloped(messages), media_type=STREAMED, headers={"X-Accel-Buffering": "no"})

    async def _take_stream(self, request: Request, check: Check) -> Response:
        _check_type(request, STREAMED)
        # What is called meanwhile does not look whether the client leaves: it would take parts of the body.
        bodiless = Request(request.scope, _nothing)
        said = envelope(await self._stream_input(bodiless, self._messages(request, check)))
        return Response(said + ending(), media_type=STREAMED)

    async def _messages(self, request: Request, check: Check) -> AsyncIterator[dict[str, Any]]:
        """Yield messages as they come; what is held of one that is not whole counts among its caller's."""
        decoder, owner, held = Decoder(), need_owner(request), 0
        body = Request(request.scope, until_ending(self._ending, request.receive))
        try:
            async for data in timely(body.stream()):
                self._calls.requests.hold(owner, len(data))
                held += len(data)
                for message in decoder.feed(data):
                    await check()
                    yield parsed(message)
                self._calls.requests.drop(owner, held - decoder.rest)
                held = decoder.rest
        finally:
            self._calls.requests.drop(owner, held)


async def _nothing() -> Message:
    await asyncio.Event().wait()
    raise AssertionError


def refused(error: SandpodError, request: Request) -> Response:
    """Return a refusal in the form of the request: of Connect RPC, as one message or a stream, or of plain HTTP."""
    if _type(request) == STREAMED and error.code != ErrorCode.UNAUTHORIZED:  # which has a status, to be counted by
        return Response(ending(connect_error(error)), media_type=STREAMED)
    if request.url.path.rpartition("/")[0].endswith(SERVICES):
        return JSONResponse(connect_error(error), status_code=connect_status(error))
    return answer_inside(error)


async def _enveloped(messages: AsyncGenerator[dict[str, Any], None]) -> AsyncGenerator[bytes, None]:
    try:
        async with aclosing(messages):
            async for message in messages:
                yield envelope(message)
        yield ending()
    except SandpodError as error:
        yield ending(connect_error(error))


def _check_type(request: Request, wanted: str) -> None:
    if _type(request) != wanted:
        raise SandpodError(ErrorCode.INVALID_ARGUMENT, "The body is of another type.", next_step=_STEP)


def _type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()
