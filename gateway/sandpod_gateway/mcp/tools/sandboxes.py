"""The tools for sandboxes: create, list, get, close. Called by MCP clients, registered by `server.py`."""

from datetime import UTC, datetime
from typing import Annotated

from fastmcp import FastMCP
from pydantic import Field

from sandpod_api.base import rfc3339
from sandpod_api.names import NETWORK_NONE, is_dns_label
from sandpod_gateway.api.results import Closed, ErrorCode, SandboxInfo, SandboxList
from sandpod_gateway.auth.api_keys import current_owner
from sandpod_gateway.backends.base import ClaimRequest, SandboxRecord, WorkspaceRequest
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.limits import check_text
from sandpod_gateway.mcp import arguments
from sandpod_gateway.mcp.tool_results import answering, output_schema
from sandpod_gateway.metrics import Metrics
from sandpod_gateway.sandboxes.service import Sandboxes

MAX_NAME = 128  # characters; names are hashed before they become labels

Name = Annotated[
    str | None,
    Field(description=f"Your own name for it, up to {MAX_NAME} printable characters; the same gives the same sandbox."),
]
Template = Annotated[str | None, Field(description="Template to make it from; the capabilities list them.")]
Lifetime = Annotated[arguments.LifetimeArgument | None, Field(description="How long it lives.")]
Workspace = Annotated[
    arguments.WorkspaceArgument | None,
    Field(
        description="A workspace other than the template's, within the bounds that the capabilities tell. Such a "
        "sandbox is not one of the warm ones, which start faster."
    ),
]
Network = Annotated[str, Field(description="Network profile of the template; none means no network at all.")]
Force = Annotated[bool, Field(description="End it also while a run goes on in it.")]

_READ = {"readOnlyHint": True, "destructiveHint": False, "idempotentHint": True, "openWorldHint": False}
_MAKE = {"readOnlyHint": False, "destructiveHint": False, "idempotentHint": False, "openWorldHint": False}
_END = {"readOnlyHint": False, "destructiveHint": True, "idempotentHint": True, "openWorldHint": False}


def register(mcp: FastMCP[None], sandboxes: Sandboxes, metrics: Metrics) -> None:
    """Add the tools to a server."""

    @mcp.tool(annotations={"title": "Create a sandbox", **_MAKE}, output_schema=output_schema(SandboxInfo))
    @answering(metrics)
    async def create_sandbox(
        *,
        name: Name = None,
        template: Template = None,
        lifetime: Lifetime = None,
        network: Network = NETWORK_NONE,
        workspace: Workspace = None,
        cold_start: arguments.ColdStart = None,
    ) -> SandboxInfo:
        """Make a sandbox of your own and return its handle. It has its own files and processes.

        You need this only beside your default sandbox: for a second one, or one with other terms.
        """
        lifetime = lifetime or arguments.LifetimeArgument()
        request = ClaimRequest(
            owner=current_owner(),
            session=_session(name),
            template=_label(template, "template") if template is not None else None,
            network=_label(network, "network profile"),
            ttl=lifetime.ttl,
            idle_timeout=lifetime.idle_timeout,
            workspace=_workspace(workspace),
            cold_start=cold_start,
        )
        return _info(await sandboxes.create(request), sandboxes)

    @mcp.tool(annotations={"title": "List sandboxes", **_READ}, output_schema=output_schema(SandboxList))
    @answering(metrics)
    async def list_sandboxes() -> SandboxList:
        """List your sandboxes, oldest first, with status and expiry."""
        records = await sandboxes.list(current_owner())
        return SandboxList(sandboxes=[_info(record, sandboxes) for record in records])

    @mcp.tool(annotations={"title": "Get a sandbox", **_READ}, output_schema=output_schema(SandboxInfo))
    @answering(metrics)
    async def get_sandbox(sandbox: arguments.RequiredSandbox) -> SandboxInfo:
        """Tell a sandbox's status, age and expiry, and why it can't be used if it can't."""
        return _info(await sandboxes.find(current_owner(), sandbox), sandboxes)

    @mcp.tool(annotations={"title": "Close a sandbox", **_END}, output_schema=output_schema(Closed))
    @answering(metrics)
    async def close_sandbox(
        *,
        sandbox: arguments.RequiredSandbox,
        force: Force = False,
    ) -> Closed:
        """End a sandbox: its processes are stopped and its files are deleted."""
        return Closed(sandbox=await sandboxes.delete(current_owner(), sandbox, force=force))


def _session(name: str | None) -> str:
    if not name:
        return ""
    check_text(name, "name")
    if len(name) > MAX_NAME or not name.isprintable():
        raise SandpodError(
            ErrorCode.INVALID_SESSION_ID,
            f"A name has at most {MAX_NAME} characters, and no control characters.",
            next_step="Choose a shorter or simpler name.",
        )
    return name


def _workspace(workspace: arguments.WorkspaceArgument | None) -> WorkspaceRequest | None:
    if workspace is None or workspace == arguments.WorkspaceArgument():
        return None
    return WorkspaceRequest(size=workspace.size, persistent=workspace.persistent)


def _label(text: str, what: str) -> str:
    if not is_dns_label(text):
        raise SandpodError(
            ErrorCode.INVALID_ARGUMENT,
            f"That is no name of a {what}: small letters, digits and hyphens, at most 63.",
            next_step="Read sandpod://capabilities for those that exist.",
        )
    return text


def _info(record: SandboxRecord, sandboxes: Sandboxes) -> SandboxInfo:
    now = datetime.now(UTC)
    return SandboxInfo(
        sandbox=record.name,
        name=record.session or None,
        status=record.status,
        reason=record.reason,
        message=record.message,
        template=record.template,
        image=record.image,
        network=record.network,
        created_at=rfc3339(record.created),
        last_activity_at=rfc3339(record.last_activity) if record.last_activity is not None else None,
        expires_at=rfc3339(record.expires) if record.expires is not None else None,
        age_seconds=max(0.0, round((now - record.created).total_seconds(), 3)),
        running=sandboxes.running(record.name),
        persistent=record.persistent,
    )
