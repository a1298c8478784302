"""E2B's API to make, find, keep and end sandboxes."""

import base64
import hashlib
import re
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import parse_qsl, unquote

from cachetools import TTLCache
from fastmcp.server.dependencies import get_access_token
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from sandpod_api.base import rfc3339
from sandpod_api.fields import MAX_LIFETIME
from sandpod_api.names import NETWORK_NONE, is_dns_label
from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.auth.current import current_caller, current_owner
from sandpod_gateway.backends.base import ClaimRequest, SandboxRecord, WorkspaceRequest
from sandpod_gateway.e2b.calls import Calls
from sandpod_gateway.e2b.errors import NotHereError
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.mcp import arguments
from sandpod_gateway.rest.requests import read_object
from sandpod_gateway.runs.request import OTHER_NAMES
from sandpod_gateway.sandboxes.load import Load, load_of
from sandpod_gateway.secrets.values import parse_secrets

VERSION: Final = "0.6.4"
"""Of the daemon that E2B has in its sandboxes: clients tell by it what they may ask for."""
SECONDS: Final = 300  # that a sandbox lives where nothing is said
MAX_PAGE: Final = 100
MAX_OWNERS: Final = 256
KNOWN_SECONDS: Final = 60.0
MAX_METADATA: Final = 2048  # characters of all names and values
_KEY: Final = re.compile(r"[a-z0-9-]{1,255}", re.ASCII)  # of a request that may be sent again
_TEMPLATES: Final = frozenset({"", "base", "code-interpreter", "code-interpreter-v1"})  # E2B's own: the default one
_STATES: Final = {"Ready": "running", "Pending": "running", "Suspended": "paused"}
_REFUSED: Final = {
    "mcp": "There are no MCP servers inside sandboxes here.",
    "iam": "Sandboxes have no identity of their own here.",
    "volumeMounts": "There are no volumes here.",
}


class Control:
    """The routes below /sandboxes; `domain` is that of the sandboxes' own host names, if they have some."""

    def __init__(self, calls: Calls, domain: str | None) -> None:
        self._calls = calls
        self._domain = domain
        # Of templates, by owner: to ask for them costs the API server a request.
        self._memories: TTLCache[str, dict[str, int]] = TTLCache(MAX_OWNERS, KNOWN_SECONDS)
        self._sandboxes = calls.parts.sandboxes

    async def create(self, request: Request) -> Response:
        """Make a sandbox."""
        with ExitStack() as held:
            body = await read_object(request, self._calls.requests, held)
            async with self._calls.act(request, "create_sandbox", like="create_sandbox"):
                claim = replace(claim_of(body, current_owner()), session=_session(request))
                record = await self._create(claim)
        return JSONResponse(self._connection(record), status_code=HTTPStatus.CREATED)

    async def _create(self, claim: ClaimRequest) -> SandboxRecord:
        """Make a sandbox; where none can be suspended it ends at its timeout instead, as its description says."""
        try:
            return await self._sandboxes.create(claim)
        except SandpodError as error:
            if error.code != ErrorCode.INVALID_ARGUMENT or claim.workspace is None:
                raise
        return await self._sandboxes.create(replace(claim, workspace=None, ttl=claim.idle_timeout))

    async def list(self, request: Request) -> Response:
        """List sandboxes, a page at a time."""
        query = request.query_params
        async with self._calls.act(request, "list_sandboxes", like="list_sandboxes"):
            records = await self._sandboxes.list(current_owner())
        records = [each for each in records if each.status in _STATES and _fits(each, query)]
        records.sort(key=lambda each: (each.created, each.name), reverse=query.get("order") != "asc")
        limit, start = _number(query, "limit", MAX_PAGE), _offset(query.get("nextToken", ""))
        headers = {}
        if start + limit < len(records):
            headers["x-next-token"] = base64.urlsafe_b64encode(str(start + limit).encode()).decode("ascii")
        memory = await self._memory()
        page = [described(each, memory) for each in records[start : start + limit]]
        return JSONResponse(page, headers=headers)

    async def get(self, request: Request) -> Response:
        """Describe a sandbox."""
        async with self._calls.act(request, "get_sandbox", like="get_sandbox"):
            record = await self._find(request)
        found = {**described(record, await self._memory()), **self._connection(record)}
        action = "pause" if record.persistent else "kill"
        found["allowInternetAccess"] = record.network != NETWORK_NONE
        return JSONResponse({**found, "lifecycle": {"onTimeout": action, "autoResume": record.persistent}})

    async def kill(self, request: Request) -> Response:
        """End a sandbox."""
        await self._calls.tool(request, "close_sandbox", sandbox=request.path_params["sandbox"], force=True)
        return Response(status_code=HTTPStatus.NO_CONTENT)

    async def metrics(self, request: Request) -> Response:
        """Return what a sandbox uses now; what it used before is not kept."""
        async with self._calls.act(request, "get_metrics", like="get_sandbox"):
            record = await self._find(request)
            if record.status != "Ready":
                return JSONResponse([])
            load = await load_of(self._sandboxes, record)
        return JSONResponse([metric(load, datetime.now(UTC))])

    async def set_timeout(self, request: Request) -> Response:
        """Set when a sandbox ends, from now on: `timeout`; or keep it at least as long: `duration`."""
        with ExitStack() as held:
            body = await read_object(request, self._calls.requests, held)
        name = "timeout" if request.url.path.endswith("/timeout") else "duration"
        async with self._calls.act(request, "set_lifetime", like="create_sandbox"):
            record = await self._find(request)
            await self._calls.lifetimes.set_end(record, _seconds(body, name), shorten=name == "timeout")
        return Response(status_code=HTTPStatus.NO_CONTENT)

    async def pause(self, request: Request) -> Response:
        """Suspend a sandbox."""
        async with self._calls.act(request, "suspend", like="close_sandbox"):
            await self._calls.lifetimes.suspend(await self._find(request))
        return Response(status_code=HTTPStatus.NO_CONTENT)

    async def connect(self, request: Request) -> Response:
        """Give what a client needs for a sandbox, which is resumed, and kept at least as long as is asked."""
        with ExitStack() as held:
            body = await read_object(request, self._calls.requests, held)
        async with self._calls.act(request, "connect", like="create_sandbox"):
            found = await self._find(request)
            record = await self._sandboxes.resolve(current_owner(), found.name)
            await self._calls.lifetimes.set_end(record, _seconds(body, "timeout"), shorten=False)
        status = HTTPStatus.CREATED if found.status == "Suspended" else HTTPStatus.OK
        return JSONResponse(self._connection(record), status_code=status)

    async def _find(self, request: Request) -> SandboxRecord:
        """Return the sandbox that a request names, which lives. Raises session_not_found."""
        record = await self._sandboxes.find(current_owner(), request.path_params["sandbox"])
        if record.status not in _STATES:
            step = "Create another one."
            raise SandpodError(ErrorCode.SESSION_NOT_FOUND, "The sandbox has ended.", next_step=step)
        return record

    def _connection(self, record: SandboxRecord) -> dict[str, Any]:
        credential = get_access_token()
        until = credential.expires_at if credential is not None else None
        token = self._calls.tokens.make(current_caller(), record.name, until=until)
        domain = {"domain": self._domain} if self._domain is not None else {}
        return {
            "sandboxID": record.name,
            "templateID": record.template,
            "clientID": "sandpod",
            "envdVersion": VERSION,
            "envdAccessToken": token,
            "trafficAccessToken": token,
            **domain,
        }

    async def _memory(self) -> Mapping[str, int]:
        """Return the bytes of memory that sandboxes of each template may use, as far as that is known."""
        owner = current_owner()
        if owner not in self._memories:
            with suppress(SandpodError):  # the rest is still useful
                self._memories[owner] = {each.name: each.memory for each in await self._sandboxes.templates()}
        return self._memories.get(owner, {})


def claim_of(body: Mapping[str, Any], owner: str) -> ClaimRequest:
    """Return what a request wants. Raises SandpodError: invalid_argument."""
    for name, message in _REFUSED.items():
        if body.get(name):
            raise NotHereError(message)
    network = body.get("network")
    if isinstance(network, dict) and any(network.get(each) for each in ("allowOut", "rules", "egressProxy")):
        raise NotHereError("Sandboxes made by this API have no network, so that no part of one can be opened.")
    given, seconds = body.get("templateID") or "", _seconds(body, "timeout")
    if not isinstance(given, str) or not (given in _TEMPLATES or is_dns_label(given)):
        raise _invalid("A template's name has small letters, digits and hyphens.")
    variables = body.get("envVars") or {}
    if not isinstance(variables, dict):
        raise _invalid("`envVars` is no object.")
    plain = {name: {"value": value} for name, value in variables.items()}
    pauses = body.get("autoPause") is True
    return ClaimRequest(
        owner=owner,
        template=None if given in _TEMPLATES else given,
        ttl=MAX_LIFETIME if pauses else seconds,
        idle_timeout=seconds,
        workspace=WorkspaceRequest(persistent=True) if pauses else None,
        secrets=parse_secrets(plain, arguments.RUN_TOOLS, OTHER_NAMES, masked=False),
        metadata=metadata_of(body.get("metadata") or {}),
    )


def metadata_of(given: Any) -> tuple[tuple[str, str], ...]:
    """Return what a client notes of a sandbox. Raises SandpodError: invalid_argument."""
    if not isinstance(given, dict) or not all(isinstance(value, str) for value in given.values()):
        raise _invalid("`metadata` is names with texts.")
    if sum(len(name) + len(value) for name, value in given.items()) > MAX_METADATA:
        raise _invalid(f"The metadata has over {MAX_METADATA} characters.")
    return tuple(sorted(given.items()))


def described(record: SandboxRecord, memory: Mapping[str, int]) -> dict[str, Any]:
    """Return a sandbox as lists have it; the number of processors and the size of the disk are not known."""
    end = record.expires or record.created + timedelta(seconds=record.ttl)
    return {
        "sandboxID": record.name,
        "templateID": record.template,
        "clientID": "sandpod",
        "envdVersion": VERSION,
        "startedAt": rfc3339(record.created),
        "endAt": rfc3339(end),
        "state": _STATES[record.status],
        "cpuCount": 0,
        "memoryMB": memory.get(record.template, 0) >> 20,
        "diskSizeMB": 0,
        "metadata": dict(record.metadata),
    }


def metric(load: Load, now: datetime) -> dict[str, Any]:
    """Return what a sandbox uses as E2B has it; how many processors it may use is not known."""
    return {
        "timestamp": rfc3339(now),
        "timestampUnix": int(now.timestamp()),
        "cpuCount": 0,
        "cpuUsedPct": round(100 * load.processors, 1),
        "memUsed": load.memory,
        "memTotal": load.memory_limit,
        "memCache": 0,
        "diskUsed": load.disk,
        "diskTotal": load.disk_limit,
    }


def _fits(record: SandboxRecord, query: Mapping[str, str]) -> bool:
    states = [state for state in query.get("state", "").split(",") if state]
    if states and _STATES[record.status] not in states:
        return False
    if (template := query.get("template")) and template != record.template:
        return False
    if (after := query.get("startedAfter")) and record.created < _time(after):
        return False
    wanted = parse_qsl(query.get("metadata", ""), keep_blank_values=True)
    return {(unquote(name), unquote(value)) for name, value in wanted} <= set(record.metadata)


def _session(request: Request) -> str:
    """Return the name of a sandbox that a request which is sent again gets again; empty for any."""
    key = request.headers.get("idempotency-key")
    if key is None:
        return ""
    if _KEY.fullmatch(key) is None:
        raise _invalid("An idempotency key has 1 to 255 small letters, digits and hyphens.")
    return f"e2b-{hashlib.sha256(key.encode()).hexdigest()[:32]}"


def _time(text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise _invalid("`startedAfter` is no time.") from error
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def _seconds(body: Mapping[str, Any], name: str) -> int:
    seconds = body.get(name, SECONDS)
    if type(seconds) is not int or not 1 <= seconds <= MAX_LIFETIME:
        raise _invalid(f"`{name}` is from 1 to {MAX_LIFETIME} seconds.")
    return int(seconds)


def _number(query: Mapping[str, str], name: str, most: int) -> int:
    text = query.get(name) or str(most)
    if not (text.isascii() and text.isdecimal() and len(text) <= len(str(most)) and 1 <= int(text) <= most):
        raise _invalid(f"`{name}` is from 1 to {most}.")
    return int(text)


def _offset(token: str) -> int:
    try:
        return int(base64.urlsafe_b64decode(token[:64]) or b"0")
    except ValueError as error:
        raise _invalid("The token of the next page is not one of this server's.") from error


def _invalid(message: str) -> SandpodError:
    return SandpodError(ErrorCode.INVALID_ARGUMENT, message, next_step="Correct it and send it again.")
