"""Files of a sandbox as they are, of any size: what links serve, for callers with a key."""

from dataclasses import dataclass
from typing import Final

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.audit.act import hide, note
from sandpod_gateway.auth.callers import Caller
from sandpod_gateway.auth.current import current_caller
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.files.links import LinkHolder
from sandpod_gateway.http.audit import LinkAudit
from sandpod_gateway.http.routes import FileRoutes
from sandpod_gateway.masking.current import calling
from sandpod_gateway.mcp import arguments
from sandpod_gateway.mcp.audit import who
from sandpod_gateway.mcp.calls import chosen_toolsets
from sandpod_gateway.rest.answers import refused
from sandpod_gateway.rest.requests import ACTS, need_owner
from sandpod_gateway.usage.amounts import account_of

METHODS: Final = ("GET", "HEAD", "PUT")
_TOOLSET: Final = "links"  # which serve the same


@dataclass(frozen=True, slots=True)
class RestFiles:
    """Reads and writes files for whoever may use the toolset of links."""

    routes: FileRoutes
    toolsets: frozenset[str]  # that the server's settings choose

    async def answer(self, request: Request) -> ASGIApp:
        """Return the answer to a request, which is recorded once it is sent. Raises SandpodError (unauthorized)."""
        need_owner(request)
        log = self.routes.audit
        return LinkAudit(self._serve, log, event="file") if log.on else self._serve

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        with calling() as call:
            hide(call.masked)
            try:
                answer = await self._answer(Request(scope, receive))
            except SandpodError as error:
                note(error=error.code)
                answer = refused(error)
            except ClientDisconnect:
                return  # nobody reads it
            await answer(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        caller, writes = current_caller(), request.method == "PUT"
        sandboxes, account = self.routes.transfers.files.sandboxes, account_of(caller)
        name, path = request.path_params["sandbox"], request.path_params["path"]
        request.scope[ACTS].append(request.method)
        await self.routes.audit.begin(**who(), method=request.method.lower(), sandbox=name, path=path)
        self._check_scope(caller, writes=writes)
        sandboxes.meter.call(account, caller.key_id)
        given = None if name.strip().lower() == arguments.DEFAULT else name
        sandbox = (await sandboxes.resolve(caller.owner, given, make=writes)).name
        holder = LinkHolder(caller.owner, account)
        if writes:
            return await self.routes.take(request, holder, sandbox, path)
        sandboxes.meter.check_bytes(account)
        return await self.routes.send(request, holder, sandbox, path)

    def _check_scope(self, caller: Caller, *, writes: bool) -> None:
        if _TOOLSET not in chosen_toolsets(self.toolsets) or (writes and caller.read_only):
            message, step = "Your key may not do that with files.", "Ask the administrator for another key."
            raise SandpodError(ErrorCode.FORBIDDEN, message, next_step=step)
