"""What every part of this face does: call a tool as a caller, or a service that no tool has, and follow a run."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from fastmcp import FastMCP
from mcp_types import ImageContent
from starlette.requests import Request

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.api.run_results import RunOutput
from sandpod_gateway.audit.act import Act, hide
from sandpod_gateway.audit.log import AuditLog
from sandpod_gateway.auth.current import current_caller, current_owner
from sandpod_gateway.auth.sandbox_tokens import SandboxTokens
from sandpod_gateway.content import Answer
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.http.limits import Requests
from sandpod_gateway.masking.current import Call, calling
from sandpod_gateway.mcp.audit import who
from sandpod_gateway.mcp.calls import check_scope
from sandpod_gateway.mcp.toolbox import Parts, SetTool
from sandpod_gateway.rest.requests import ACTS, while_connected
from sandpod_gateway.runs.follow import Check, follow
from sandpod_gateway.sandboxes.lifetimes import Lifetimes
from sandpod_gateway.terminals.service import Terminals
from sandpod_gateway.usage.amounts import account_of

SANDBOX: Final = "sandpod.e2b.sandbox"  # in the scope of a request that is for one: its handle


@dataclass(frozen=True, kw_only=True, slots=True)
class Calls:
    """Calls what a request asks for."""

    mcp: FastMCP[Any]
    parts: Parts
    requests: Requests
    audit: AuditLog
    tokens: SandboxTokens
    lifetimes: Lifetimes
    terminals: Terminals
    toolsets: frozenset[str]  # that the server's settings choose

    async def tool(self, request: Request, name: str, /, **arguments: Any) -> tuple[dict[str, Any], list[ImageContent]]:
        """Return a tool's result and its pictures; it is cancelled if the client leaves. Raises its refusal."""
        await self._need(name)
        request.scope[ACTS].append(name)
        result = await while_connected(request, self.mcp.call_tool(name, arguments))
        body: dict[str, Any] = dict(result.structured_content or {})
        if result.is_error:
            raise SandpodError(
                ErrorCode(body["error"]),
                body["message"],
                cause=body.get("cause"),
                next_step=body["next"],
                retry_after=body.get("retry_after_seconds"),
            )
        return body, [block for block in result.content if isinstance(block, ImageContent)]

    @asynccontextmanager
    async def act(self, request: Request, name: str, *, like: str, code: str | None = None) -> AsyncIterator[Call]:
        """Do what no tool does, with the scopes of the tool that it is `like`, on the record as `name`.

        The call that this gives masks what is shown of the sandbox.

        Raises SandpodError: forbidden, quota_exceeded, rate_limited, backend_unavailable (there is no record).
        """
        tool = await self._need(like)
        request.scope[ACTS].append(name)
        caller = current_caller()
        async with self.audit.recording(Act("call", who(), code)) as act:
            act.note(tool=name, sandbox=request.scope.get(SANDBOX))
            try:
                await self.audit.begin()
                check_scope(tool, self.toolsets)
                self.parts.sandboxes.meter.call(account_of(caller), caller.key_id)
                with calling(like) as call:
                    hide(call.masked)
                    yield call
            except SandpodError as error:
                act.note(error=error.code)
                self.parts.metrics.refusals.labels(error.code).inc()
                raise

    async def _need(self, name: str) -> SetTool:
        tool = await self.mcp.get_tool(name)
        if not isinstance(tool, SetTool):  # it is off, or another system's of that name
            message, step = f"This server has no operation {name}.", "Ask the administrator for it."
            raise SandpodError(ErrorCode.NOT_FOUND, message, next_step=step)
        return tool

    def follow(self, run_id: str, check: Check) -> AsyncGenerator[Answer[RunOutput] | None, None]:
        """Follow a run of the caller's from its begin on."""
        return follow(self.parts.background, current_owner(), run_id, 0, check)
