"""The pages about sandboxes and about how to connect."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.auth.callers import tenant_of, user_of
from sandpod_gateway.auth.current import current_caller, current_owner
from sandpod_gateway.backends.base import SandboxRecord
from sandpod_gateway.console.calls import Calls, form, number
from sandpod_gateway.console.session import PREFIX
from sandpod_gateway.console.tables import Table, Tables
from sandpod_gateway.console.views import Views
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.mcp.arguments import DEFAULT
from sandpod_gateway.mcp.calls import chosen_toolsets
from sandpod_gateway.rest.tools.sandboxes import load_info
from sandpod_gateway.runs.activity import Activities, Activity
from sandpod_gateway.sandboxes.describing import fields_of
from sandpod_gateway.sandboxes.service import DEFAULT_SESSION, Sandboxes

_HOUR: Final = 3600
_ACTS: Final = frozenset({"extend", "suspend", "resume"})
NO_SWAP: Final = {"HX-Reswap": "none"}  # what comes goes to places of its own
CHANGED: Final = {"HX-Trigger": "changed"}  # what shows sandboxes asks for them anew


@dataclass(frozen=True, slots=True)
class SandboxPages:
    """Sandboxes: all of them, and one."""

    views: Views
    calls: Calls
    sandboxes: Sandboxes
    activities: Activities
    toolsets: frozenset[str]  # that the server's settings choose
    tables: Tables = field(default_factory=Tables)

    async def all(self, request: Request) -> Response:
        """Return the table."""
        rows = await self._rows(request)
        context = {**rows, "offers": await self.calls.capabilities()}
        return self.views.answer(request, "sandboxes.html", context)

    async def rows(self, request: Request) -> Response:
        """Return the rows that are others than the page knows, and what the sandboxes do now."""
        records = await self.sandboxes.list(current_owner())
        caller = current_caller()
        table = self.tables.of(caller.owner, caller.templates, records=records)
        return await self.news(request, table, records) or self.whole(request, await self._rows(request))

    async def create(self, request: Request) -> Response:
        """Create a sandbox, and lead to its page."""
        fields = await form(request)
        lifetime = {
            "ttl": _seconds(number(fields, "hours")),
            "idle_timeout": _seconds(number(fields, "idle"), 60),
        }
        made = await self.calls(
            request,
            "create_sandbox",
            name=fields.get("name"),
            template=fields.get("template"),
            network=fields.get("network"),
            lifetime={name: value for name, value in lifetime.items() if value} or None,
        )
        return Response(headers={"HX-Redirect": f"{PREFIX}/sandboxes/{quote(made['sandbox'], safe='')}"})

    async def close(self, request: Request) -> Response:
        """Close a sandbox, with what runs in it: the page has asked the user."""
        return await self.closed(request, "close_sandbox", f"{PREFIX}/")

    async def closed(self, request: Request, tool: str, then: str) -> Response:
        """Close a sandbox, and lead away from its page."""
        await self.calls(request, tool, sandbox=request.path_params["sandbox"], force=True)
        if request.query_params.get("then") == "all":
            return Response(headers={"HX-Redirect": then})
        return Response(status_code=HTTPStatus.NO_CONTENT, headers=CHANGED)

    async def act(self, request: Request) -> Response:
        """Extend, suspend or resume a sandbox."""
        fields, act = await form(request), request.path_params["act"]
        if act not in _ACTS:
            message, step = "There is no such page.", "Go to your sandboxes."
            raise SandpodError(ErrorCode.NOT_FOUND, message, next_step=step)
        more = {"seconds": number(fields, "seconds")} if act == "extend" else {}
        await self.calls(request, f"{act}_sandbox", sandbox=fields.get("sandbox", ""), **more)
        return Response(status_code=HTTPStatus.NO_CONTENT, headers=CHANGED)

    async def one(self, request: Request) -> Response:
        """Return a sandbox's page; the default sandbox has one before it exists."""
        name, offers = request.path_params["sandbox"], await self.calls.capabilities()
        found: dict[str, Any] = {
            "sandbox": DEFAULT,
            **dict.fromkeys(("name", "status", "template", "reason", "message")),
        }
        handle = await self._default() if name == DEFAULT else name
        if handle is not None:
            found |= await self.calls(request, "get_sandbox", sandbox=handle)
        template = found["template"] or offers["templates"]["default"]
        languages = _languages(offers, template)
        context = {"box": found, "handle": name, "languages": languages}
        return self.views.answer(request, "sandbox.html", context)

    async def state(self, request: Request) -> Response:
        """Return how a sandbox is and what it does, or the latter alone where nothing else has changed."""
        name = request.path_params["sandbox"]
        handle = await self._default() if name == DEFAULT else name
        if handle is None:
            return Response(status_code=HTTPStatus.NO_CONTENT)
        record = await self.sandboxes.find(current_owner(), handle)
        return await self.state_of(request, record, "describe_sandbox")

    async def state_of(self, request: Request, record: SandboxRecord, tool: str) -> Response:
        """Return the part of a page about one sandbox; a call of the tool is made only where there is news."""
        tag = self.tag([record], [each.model_dump() for each in record.conditions])
        if tag == request.query_params.get("known"):
            found = (await self.activity([record])).get(record.name)
            if found is None:
                return Response(status_code=HTTPStatus.NO_CONTENT)
            return self.views.answer(request, "_now.html", {"box": found, "oob": True}, headers=NO_SWAP)
        box = await self.calls(request, tool, sandbox=record.name)
        return self.views.answer(request, "_state.html", {"box": box, "tag": tag, "oob": False})

    async def _default(self) -> str | None:
        records = await self.sandboxes.list(current_owner())
        return next((record.name for record in records if record.session == DEFAULT_SESSION), None)

    async def _rows(self, request: Request) -> dict[str, Any]:
        records, caller = await self.sandboxes.list(current_owner()), current_caller()
        tag = self.tables.of(caller.owner, caller.templates, records=records).tag
        return await self.rows_of(tag, records, await self.calls(request, "list_sandboxes"))

    async def rows_of(self, tag: str, records: Sequence[SandboxRecord], found: dict[str, Any]) -> dict[str, Any]:
        """Return what all rows are made from: `found`, but for sandboxes that are newer than the tag."""
        known = {record.name for record in records}
        sandboxes = [each for each in reversed(found["sandboxes"]) if each["sandbox"] in known]
        return {"sandboxes": sandboxes, "tag": tag, "doing": await self.activity(records), "everybody": False}

    def whole(self, request: Request, rows: dict[str, Any]) -> Response:
        """Return all rows, for a page that knows others."""
        return self.views.answer(request, "_all.html", rows)

    async def news(
        self, request: Request, table: Table, records: Sequence[SandboxRecord], *, everybody: bool = False
    ) -> Response | None:
        """Return what is another than the page knows, which is no call; None where the page needs all rows."""
        changes = table.since(request.query_params.get("known", ""))
        if changes is None or "sandboxes" not in chosen_toolsets(self.toolsets):
            return None
        tag, doing = table.tag, await self.activity(records)
        if not changes:
            return self.doing(request, doing)
        new, changed = [[self._row(each) for each in some] for some in (changes.new[::-1], changes.changed)]
        gone = changes.gone
        context = {"new": new, "changed": changed, "gone": gone, "tag": tag, "doing": doing, "everybody": everybody}
        return self.views.answer(request, "_changes.html", context)

    def _row(self, record: SandboxRecord) -> dict[str, Any]:
        names = {"user": user_of(record.owner), "tenant": tenant_of(record.owner)}
        return {**fields_of(record, self.sandboxes), **names}

    async def activity(self, records: Sequence[SandboxRecord]) -> dict[str, dict[str, Any]]:
        """Return what sandboxes do now, as far as it is known; to look at a page again and again is no call."""
        if "sandboxes" not in chosen_toolsets(self.toolsets):
            return {}
        return {name: _seen(each) for name, each in (await self.activities.known(records)).items()}

    def doing(self, request: Request, doing: dict[str, dict[str, Any]]) -> Response:
        """Return what the sandboxes of a table do now, each for its own cell."""
        if not doing:
            return Response(status_code=HTTPStatus.NO_CONTENT)
        return self.views.answer(request, "_doing.html", {"doing": doing}, headers=NO_SWAP)

    def tag(self, records: list[SandboxRecord], *more: Any) -> str:
        """Return what is another one once anything of these is."""
        running = [self.sandboxes.running(record.name) for record in records]
        return hashlib.sha256(repr((records, running, more)).encode()).hexdigest()[:24]


def _seen(activity: Activity) -> dict[str, Any]:
    return {
        "load": load_info(activity.load).model_dump(),
        "runs": [run.model_dump(mode="json") for run in activity.runs],
    }


def _seconds(count: int | None, unit: int = _HOUR) -> int | None:
    return None if count is None else count * unit


def _languages(offers: dict[str, Any], template: str) -> list[str]:
    available: list[dict[str, Any]] = offers["templates"]["available"]
    found: list[str] = next((each["languages"] for each in available if each["name"] == template), offers["languages"])
    return found
