"""A run's output as events, from any point on: the id of each is the cursor to go on from.

They are server-sent events, or text messages of a WebSocket. What a program writes while a client reads slowly waits in
its sandbox, bounded, and holds up nothing here.
"""

import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, suppress
from typing import Any, Final, NamedTuple

from starlette.websockets import WebSocket, WebSocketDisconnect

from sandpod_gateway.errors import SandpodError
from sandpod_gateway.rest.answers import as_json
from sandpod_gateway.rest.requests import first_ended
from sandpod_gateway.runs.background import BackgroundRuns
from sandpod_gateway.runs.follow import Check, follow

HEADERS: Final = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
_DONE, _REFUSED = 1000, 1008  # codes of RFC 6455


class Event(NamedTuple):
    """Something of a run."""

    name: str
    data: dict[str, Any]
    cursor: int | None = None


Events = AsyncGenerator[Event | None, None]


async def run_events(background: BackgroundRuns, owner: str, run_id: str, cursor: int, check: Check) -> Events:
    """Yield `output` events until one `result`, or `error`, which are the last; `check` may end it by an error.

    None stands between them for the time that goes by.
    """
    try:
        async with aclosing(follow(background, owner, run_id, cursor, check)) as following:
            async for found in following:
                if found is None:
                    yield None
                    continue
                shown = found.result.model_dump(mode="json")
                result = shown.pop("result")
                if shown["stdout"] or shown["stderr"] or shown["dropped_bytes"]:
                    yield Event("output", shown, found.result.cursor)
                if result is not None:
                    if found.pictures:
                        result["pictures"] = [as_json(picture) for picture in found.pictures]
                    yield Event("result", result, found.result.cursor)
    except SandpodError as error:
        yield Event("error", error.problem().model_dump(mode="json"))


async def as_stream(events: Events) -> AsyncIterator[bytes]:
    """Yield events as server-sent events."""
    async with aclosing(events):
        async for event in events:
            if event is None:
                yield b": waiting\n\n"
            else:
                number = f"id: {event.cursor}\n" if event.cursor is not None else ""
                yield f"{number}event: {event.name}\ndata: {json.dumps(event.data)}\n\n".encode()


async def send_events(socket: WebSocket, events: Events, *_scope: object) -> None:
    """Send events as text messages, each {"event", "data", "id"}, until the last one, or the client leaves."""
    await socket.accept()
    with suppress(WebSocketDisconnect, RuntimeError):  # the latter where the end is not read yet
        async with first_ended(_send(socket, events), _until_left(socket)) as done:
            for task in done:
                task.result()


async def _send(socket: WebSocket, events: Events) -> None:
    code = _REFUSED
    async with aclosing(events):
        async for event in events:
            if event is not None:
                # It waits while the client does not read: then nothing more is asked of the sandbox.
                await socket.send_text(json.dumps({"event": event.name, "data": event.data, "id": event.cursor}))
                code = _DONE if event.name == "result" else _REFUSED
    await socket.close(code)


async def _until_left(socket: WebSocket) -> None:
    while (await socket.receive())["type"] != "websocket.disconnect":
        pass  # there is nothing to say
