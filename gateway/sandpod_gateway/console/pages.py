"""The pages about sandboxes and about how to connect."""

import hashlib
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.auth.current import current_owner
from sandpod_gateway.backends.base import SandboxRecord
from sandpod_gateway.console.calls import Calls, form, number
from sandpod_gateway.console.session import PREFIX
from sandpod_gateway.console.views import Views
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.mcp.arguments import DEFAULT
from sandpod_gateway.mcp.calls import chosen_toolsets
from sandpod_gateway.rest.tools.sandboxes import load_info
from sandpod_gateway.runs.activity import Activities, Activity
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

    async def all(self, request: Request) -> Response:
        """Return the table."""
        rows = await self._rows(request)
        context = {**rows, "everybody": False, "offers": await self.calls.capabilities()}
        return self.views.answer(request, "sandboxes.html", context)

    async def rows(self, request: Request) -> Response:
        """Return the table's rows if they are others than the page knows, else what they do now."""
        records = await self.sandboxes.list(current_owner())
        if self.tag(records) == request.query_params.get("known"):
            return self.doing(request, await self.activity(records))
        return self.views.answer(request, "_rows.html", {**await self._rows(request), "everybody": False})

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
        records = await self.sandboxes.list(current_owner())
        tag, found = self.tag(records), await self.calls(request, "list_sandboxes")
        return {"sandboxes": found["sandboxes"][::-1], "tag": tag, "doing": await self.activity(records)}

    async def activity(self, records: list[SandboxRecord]) -> dict[str, dict[str, Any]]:
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
