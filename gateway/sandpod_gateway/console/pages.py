"""The pages about sandboxes and about how to connect."""

import hashlib
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response

from sandpod_gateway.auth.current import current_owner
from sandpod_gateway.console.calls import Calls, form, number
from sandpod_gateway.console.session import PREFIX
from sandpod_gateway.console.views import Views
from sandpod_gateway.mcp.arguments import DEFAULT
from sandpod_gateway.sandboxes.service import DEFAULT_SESSION, Sandboxes

_HOUR: Final = 3600


@dataclass(frozen=True, slots=True)
class SandboxPages:
    """Sandboxes: all of them, and one."""

    views: Views
    calls: Calls
    sandboxes: Sandboxes

    async def all(self, request: Request) -> Response:
        """Return the table."""
        rows = await self._rows(request)
        return self.views.answer(request, "sandboxes.html", {**rows, "offers": await self.calls.capabilities()})

    async def rows(self, request: Request) -> Response:
        """Return the table's rows if they are others than the page knows: only then a call is made for them."""
        if await self._tag() == request.query_params.get("known"):
            return Response(status_code=HTTPStatus.NO_CONTENT)
        return self.views.answer(request, "_rows.html", await self._rows(request))

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
        await self.calls(request, "close_sandbox", sandbox=request.path_params["sandbox"], force=True)
        if request.query_params.get("then") == "all":
            return Response(headers={"HX-Redirect": f"{PREFIX}/"})
        return self.views.answer(request, "_rows.html", await self._rows(request))

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

    async def _default(self) -> str | None:
        records = await self.sandboxes.list(current_owner())
        return next((record.name for record in records if record.session == DEFAULT_SESSION), None)

    async def _rows(self, request: Request) -> dict[str, Any]:
        tag, found = await self._tag(), await self.calls(request, "list_sandboxes")
        return {"sandboxes": found["sandboxes"][::-1], "tag": tag}

    async def _tag(self) -> str:
        records = await self.sandboxes.list(current_owner())
        running = [self.sandboxes.running(record.name) for record in records]
        return hashlib.sha256(repr((records, running)).encode()).hexdigest()[:24]


def _seconds(count: int | None, unit: int = _HOUR) -> int | None:
    return None if count is None else count * unit


def _languages(offers: dict[str, Any], template: str) -> list[str]:
    available: list[dict[str, Any]] = offers["templates"]["available"]
    found: list[str] = next((each["languages"] for each in available if each["name"] == template), offers["languages"])
    return found
