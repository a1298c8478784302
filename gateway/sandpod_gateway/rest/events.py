"""A run's output as server-sent events, from any point on: the id of each event is the cursor to go on from."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

from sandpod_gateway.errors import SandpodError
from sandpod_gateway.masking.current import calling
from sandpod_gateway.rest.answers import as_json
from sandpod_gateway.runs.background import READ_LIMIT, BackgroundRuns

PAUSE_SECONDS: Final = 0.05  # between two looks, whatever the sandbox says
WAIT_SECONDS: Final = 15.0  # for output, after which something is sent that keeps proxies from hanging up
HEADERS: Final = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


async def run_events(
    background: BackgroundRuns, owner: str, run_id: str, cursor: int, valid: Callable[[], Awaitable[bool]]
) -> AsyncIterator[bytes]:
    """Yield `output` events until one `result`, or `error`, which are the last; none without a `valid` key.

    What a program writes meanwhile waits in its sandbox, bounded, so a slow client holds up nothing here.
    """
    while await valid():
        with calling("read_run") as call:
            try:
                found = await background.read(owner, run_id, cursor=cursor, wait=WAIT_SECONDS, max_output=READ_LIMIT)
            except SandpodError as error:
                yield _event("error", call.masked(error.problem().model_dump(mode="json")))
                return
            shown: dict[str, Any] = call.masked(found.result.model_dump(mode="json"))
        result, cursor = shown.pop("result"), found.result.cursor
        size = len(shown["stdout"]) + len(shown["stderr"])
        if size or shown["dropped_bytes"]:
            yield _event("output", shown, cursor)
        if result is not None:
            if found.pictures:
                result["pictures"] = [as_json(picture) for picture in found.pictures]
            yield _event("result", result, cursor)
            return
        if size < READ_LIMIT // 2:  # else there is more already
            yield b": waiting\n\n"
            await asyncio.sleep(PAUSE_SECONDS)


def _event(name: str, data: dict[str, Any], cursor: int | None = None) -> bytes:
    number = f"id: {cursor}\n" if cursor is not None else ""
    return f"{number}event: {name}\ndata: {json.dumps(data)}\n\n".encode()
