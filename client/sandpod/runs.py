"""A run that goes on by itself: followed from any point on, whatever becomes of the connection."""

import json
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace
from inspect import isawaitable
from typing import Any, Final, Literal
from urllib.parse import quote

from sandpod.api import Api, pause
from sandpod.errors import SandboxLostError, UnreachableError, refused, unreachable
from sandpod.results import Output, RunResult
from sandpod.transport import Answer

Show = Callable[[str], object]
"""What gets a piece of output; in asyncio it may be a coroutine function."""

_MAX_EVENT: Final = 64 * 2**20  # bytes
_WAIT: Final = 45  # seconds that one request waits for the end; proxies hang up after 60
_TRIES: Final = 8  # one after the other that come to nothing; some twenty seconds, as a gateway needs to start anew


class AsyncRun:
    """A run that was started; it ends with its program, its timeout or `stop`."""

    def __init__(self, api: Api, run_id: str) -> None:
        self.run_id = run_id
        self._api = api
        self._path = f"/runs/{quote(run_id, safe='')}"

    async def events(self, *, cursor: int = 0) -> AsyncGenerator[Output | RunResult, None]:
        """Yield output as it comes, then the result."""
        failures = 0
        while True:
            try:
                headers = {"Last-Event-ID": str(cursor)}
                async with (
                    self._api.stream("GET", f"{self._path}/events", headers=headers) as answer,
                    aclosing(_events(answer)) as events,
                ):
                    async for name, number, data in events:
                        failures, cursor = 0, number if number is not None else cursor
                        if name == "error":
                            raise refused(data)
                        if name == "result":
                            yield RunResult.of(data)
                            return
                        dropped = data.get("dropped_bytes", 0)
                        for stream in _STREAMS:
                            if data.get(stream) or dropped:
                                yield Output(stream, data[stream], dropped)
                                dropped = 0
                raise unreachable(self._api.url, "it ended the answer before the run had ended")
            except UnreachableError:
                failures += 1
                if failures >= _TRIES:
                    raise
                await self._api.http.sleep(pause(failures))

    async def wait(self, *, on_stdout: Show | None = None, on_stderr: Show | None = None) -> RunResult:
        """Return how the run ended, once it has; hand on its output meanwhile."""
        show, dropped = {"stdout": on_stdout, "stderr": on_stderr}, 0
        if on_stdout is None and on_stderr is None:
            return await self._end()
        async with aclosing(self.events()) as events:
            async for event in events:
                if isinstance(event, RunResult):
                    return replace(event, dropped_bytes=dropped)
                dropped += event.dropped_bytes
                shown = show[event.stream]
                if shown is not None and event.text and isawaitable(done := shown(event.text)):
                    await done
        raise SandboxLostError("sandbox_lost", "How the run ended is not known.", "Run it again.")

    async def _end(self) -> RunResult:
        """Return how the run ended: sooner than by its events, which come at intervals."""
        cursor = 0
        while True:
            query = {"until": "end", "wait": _WAIT, "cursor": cursor}
            found = await self._api.call("GET", self._path, query=query, tries=_TRIES)
            if found["result"] is not None:
                return RunResult.of({**found["result"], "pictures": found.get("pictures", ())})
            cursor = found["cursor"]

    async def stop(self) -> None:
        """End the run, and everything that it has started."""
        await self._api.call("DELETE", self._path)


_STREAMS: Final[tuple[Literal["stdout", "stderr"], ...]] = ("stdout", "stderr")


async def _events(answer: Answer) -> AsyncGenerator[tuple[str, int | None, dict[str, Any]], None]:
    """Yield each server-sent event: its name, its id and its data."""
    name, number, data = "", None, ""
    async with aclosing(_lines(answer)) as lines:
        async for line in lines:
            kind, _, value = line.partition(": ")
            if kind == "event":
                name = value
            elif kind == "id" and value.isdecimal():
                number = int(value)
            elif kind == "data":
                data = value
            elif not line and data:
                yield name, number, json.loads(data)
                name, number, data = "", None, ""


async def _lines(answer: Answer) -> AsyncGenerator[str, None]:
    rest = bytearray()
    async for piece in answer.pieces():
        begin = len(rest)
        rest += piece
        while (end := rest.find(b"\n", begin)) >= 0:
            line = rest[:end].decode()
            del rest[: end + 1]
            begin = 0
            yield line
        if len(rest) > _MAX_EVENT:
            raise unreachable("the server", "an event is too large")
