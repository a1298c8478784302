"""E2B's watches of folders: a stream of changes, or a watcher that is asked for them.

A watcher is kept by the gateway that made it; requests about it that arrive at another one are passed on.
"""

import asyncio
import posixpath
import re
import secrets
import time
from collections.abc import AsyncGenerator
from http import HTTPStatus
from typing import Any, Final
from weakref import WeakSet

from cachetools import TTLCache
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.auth.current import current_owner
from sandpod_gateway.e2b.calls import SANDBOX, Calls
from sandpod_gateway.e2b.envd.filesystem import entry_of, path_in
from sandpod_gateway.e2b.errors import connect_error
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.files.watch import Change, Watch
from sandpod_gateway.http.mcp.peers import Peers, was_passed_on
from sandpod_gateway.masking.current import calling
from sandpod_gateway.runs.follow import Check

PAUSE_SECONDS: Final = 0.5  # between two looks at a folder
SHARE: Final = 10  # a look may take this part of the time
KEEPALIVE_SECONDS: Final = 15.0
MAX_WATCHES: Final = 16  # of one caller: streams and watchers
MAX_ALL: Final = 200  # of all callers; each takes half a megabyte at most
FORGET_SECONDS: Final = 3600.0  # after which a watcher that nobody asked is forgotten
_NAME: Final = re.compile(r"([0-9a-f]{8})[0-9a-f]{8}-[0-9a-f]{32}", re.ASCII)  # of a watcher: where, and which
_LIKE: Final = "list_files"
_TYPES: Final = {"create": "EVENT_TYPE_CREATE", "write": "EVENT_TYPE_WRITE", "remove": "EVENT_TYPE_REMOVE"}


class Watches:
    """The methods, by their names."""

    def __init__(self, calls: Calls, peers: Peers) -> None:
        self._calls = calls
        self._peers = peers
        self._kept: TTLCache[str, tuple[Watch, bool]] = TTLCache(MAX_ALL, FORGET_SECONDS)
        self._open = WeakSet[Watch]()  # all that there are, even of a stream that was never begun

    async def watch_dir(
        self, request: Request, message: dict[str, Any], check: Check
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Stream what changes in a folder."""
        watch = await self._begin(request, message)
        return self._events(watch, check, with_entry=message.get("includeEntry") is True)

    async def create_watcher(self, request: Request, message: dict[str, Any]) -> dict[str, Any]:
        """Begin to watch a folder."""
        name = f"{self._peers.prefix}{secrets.token_hex(16)}"
        self._kept[name] = await self._begin(request, message), message.get("includeEntry") is True
        return {"watcherId": name}

    async def get_events(self, request: Request, message: dict[str, Any]) -> dict[str, Any]:
        """Return what has changed since the last time."""
        name = str(message.get("watcherId"))
        watch, with_entry = self._find(request, name)
        async with self._calls.act(request, "watch", like=_LIKE) as call:
            found = await watch.changes()
            if name in self._kept:  # else it was removed meanwhile
                self._kept[name] = watch, with_entry  # from now on it has its time again
            shown: list[Any] = call.masked([_event(change, watch, with_entry=with_entry) for change in found])
        return {"events": shown}

    async def remove_watcher(self, request: Request, message: dict[str, Any]) -> dict[str, Any]:
        """End a watcher."""
        name = str(message.get("watcherId"))
        self._find(request, name)
        self._kept.pop(name, None)
        return {}

    def elsewhere(self, request: Request, message: dict[str, Any], body: bytes) -> ASGIApp | None:
        """Return what has the gateway answer that has the watcher of a message; None where this one is to."""
        match = _NAME.fullmatch(str(message.get("watcherId")))
        if match is None or was_passed_on(request.scope):
            return None
        at = self._peers.home(match[0], match[1])
        if at == self._peers.address:
            return None

        async def pass_on(scope: Scope, receive: Receive, send: Send) -> None:
            if not await self._peers.pass_on(at, body, scope, receive, send):
                await JSONResponse(connect_error(_no_watcher()), HTTPStatus.NOT_FOUND)(scope, receive, send)

        return pass_on

    async def _begin(self, request: Request, message: dict[str, Any]) -> Watch:
        path, recursive = path_in(message, "path"), message.get("recursive") is True
        async with self._calls.act(request, "watch", like=_LIKE):
            watch = Watch(self._calls.parts.files, current_owner(), request.scope[SANDBOX], path, recursive)
            self._check_count(watch.owner)
            self._open.add(watch)  # before anything is waited for, so that no other one takes its place
            await watch.changes()
        return watch

    def _check_count(self, owner: str) -> None:
        self._kept.expire()
        if sum(each.owner == owner for each in self._open) >= MAX_WATCHES:
            message = f"You have {MAX_WATCHES} watches, the most for one caller."
            raise SandpodError(ErrorCode.RATE_LIMITED, message, next_step="End one.")
        if len(self._open) >= MAX_ALL:
            message = f"{MAX_ALL} folders are watched, the most that this server takes."
            raise SandpodError(ErrorCode.BACKEND_UNAVAILABLE, message, next_step="Try again in a minute.")

    def _find(self, request: Request, name: str) -> tuple[Watch, bool]:
        found = self._kept.get(name)
        if found is None or (found[0].owner, found[0].sandbox) != (current_owner(), request.scope[SANDBOX]):
            raise _no_watcher()
        return found

    async def _events(self, watch: Watch, check: Check, *, with_entry: bool) -> AsyncGenerator[dict[str, Any], None]:
        try:
            yield {"start": {}}
            said = time.monotonic()
            while True:
                await check()
                begun = time.monotonic()
                with calling(_LIKE) as call:
                    found = await watch.changes()
                    shown: list[Any] = call.masked([_event(change, watch, with_entry=with_entry) for change in found])
                for event in shown:
                    yield {"filesystem": event}
                    said = time.monotonic()
                now = time.monotonic()
                if now - said > KEEPALIVE_SECONDS:
                    yield {"keepalive": {}}
                    said = now
                await asyncio.sleep(max(PAUSE_SECONDS, SHARE * (now - begun)))
        finally:
            self._open.discard(watch)


def _no_watcher() -> SandpodError:
    return SandpodError(ErrorCode.NOT_FOUND, "There is no such watcher.", next_step="Watch the folder again.")


def _event(change: Change, watch: Watch, *, with_entry: bool) -> dict[str, Any]:
    event: dict[str, Any] = {"name": posixpath.relpath(change.path, watch.path), "type": _TYPES[change.kind]}
    if with_entry and change.entry is not None:
        event["entry"] = entry_of(change.entry)
    return event
