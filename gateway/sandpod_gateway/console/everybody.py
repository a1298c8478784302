"""The pages about everybody's sandboxes, for administrators: what they do, and nothing of what is in them."""

from dataclasses import dataclass
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from sandpod_gateway.auth.current import current_caller
from sandpod_gateway.backends.base import SandboxRecord
from sandpod_gateway.console.pages import SandboxPages
from sandpod_gateway.console.session import PREFIX
from sandpod_gateway.console.tables import Table
from sandpod_gateway.sandboxes.administration import Administration

ALL: Final = "/all"


@dataclass(frozen=True, slots=True)
class EverybodyPages:
    """Sandboxes of all users: all of them, and one."""

    own: SandboxPages
    administration: Administration

    async def all(self, request: Request) -> Response:
        """Return the table."""
        rows = await self._rows(request, await self.administration.list())
        return self.own.views.answer(request, "sandboxes.html", rows)

    async def rows(self, request: Request) -> Response:
        """Return the rows that are others than the page knows, and what the sandboxes do now."""
        records = await self.administration.list()
        answer = await self.own.news(request, self._table(records), records, everybody=True)
        return answer or self.own.whole(request, await self._rows(request, records))

    async def one(self, request: Request) -> Response:
        """Return a sandbox's page."""
        box = await self.own.calls(request, "describe_any_sandbox", sandbox=request.path_params["sandbox"])
        record = await self.administration.find(request.path_params["sandbox"])
        context = {"box": box, "tag": self.own.tag([record]), "oob": False}  # another one than the part's, once
        return self.own.views.answer(request, "anybody.html", context)

    async def state(self, request: Request) -> Response:
        """Return how a sandbox is and what it does."""
        record = await self.administration.find(request.path_params["sandbox"])
        return await self.own.state_of(request, record, "describe_any_sandbox")

    async def close(self, request: Request) -> Response:
        """Close a sandbox."""
        return await self.own.closed(request, "close_any_sandbox", f"{PREFIX}{ALL}")

    async def _rows(self, request: Request, records: list[SandboxRecord]) -> dict[str, Any]:
        tag, found = self._table(records).tag, await self.own.calls(request, "list_all_sandboxes")
        return {**await self.own.rows_of(tag, records, found), "everybody": True}

    def _table(self, records: list[SandboxRecord]) -> Table:
        caller = current_caller()
        return self.own.tables.of(ALL, caller.tenant, caller.templates, records=records)
