"""Sandboxes beyond what tools need: how one is and why, and how long it goes on; for administrators, everybody's."""

from typing import Annotated, Any

from pydantic import Field

from sandpod_api.base import rfc3339
from sandpod_api.fields import MAX_LIFETIME
from sandpod_gateway.api.results import Closed, SandboxInfo
from sandpod_gateway.api.sandbox_states import (
    ActivityList,
    OwnedSandbox,
    OwnedSandboxList,
    SandboxActivity,
    SandboxCondition,
    SandboxEventInfo,
    SandboxLoad,
    SandboxState,
)
from sandpod_gateway.auth.callers import tenant_of, user_of
from sandpod_gateway.auth.current import current_owner
from sandpod_gateway.backends.base import Backend, SandboxRecord
from sandpod_gateway.mcp import arguments
from sandpod_gateway.mcp.toolbox import Parts, Toolbox
from sandpod_gateway.mcp.tools.sandboxes import Force
from sandpod_gateway.sandboxes.administration import Administration
from sandpod_gateway.sandboxes.describing import fields_of, info_of
from sandpod_gateway.sandboxes.endings import unusable
from sandpod_gateway.sandboxes.lifetimes import Lifetimes
from sandpod_gateway.sandboxes.load import Load

Seconds = Annotated[
    int, Field(ge=1, le=MAX_LIFETIME, description="For which it lives from now on at least, used or not.")
]
Handle = Annotated[str, Field(description="Handle of the sandbox.")]


def register(toolbox: Toolbox, parts: Parts, backend: Backend) -> None:
    """Add the operations."""
    sandboxes, lifetimes = parts.sandboxes, Lifetimes(parts.sandboxes, backend)

    async def again(record: SandboxRecord) -> SandboxInfo:
        return info_of(await sandboxes.find(record.owner, record.name), sandboxes)

    @toolbox.tool("Extend a sandbox", toolset="sandboxes", effect="make")
    async def extend_sandbox(*, sandbox: arguments.RequiredSandbox, seconds: Seconds) -> SandboxInfo:
        """Let a sandbox live longer."""
        record = await sandboxes.find(current_owner(), sandbox)
        if record.status in {"Expired", "Failed"}:
            raise unusable(record)
        await lifetimes.set_end(record, seconds, shorten=False)
        return await again(record)

    @toolbox.tool("Suspend a sandbox", toolset="sandboxes", effect="write")
    async def suspend_sandbox(sandbox: arguments.RequiredSandbox) -> SandboxInfo:
        """Stop a sandbox and all that runs in it, and keep the files of its persistent workspace."""
        record = await sandboxes.find(current_owner(), sandbox)
        await lifetimes.suspend(record)
        return await again(record)

    @toolbox.tool("Resume a sandbox", toolset="sandboxes", effect="make")
    async def resume_sandbox(sandbox: arguments.RequiredSandbox) -> SandboxInfo:
        """Start a suspended sandbox, as its next use would."""
        found = await sandboxes.find(current_owner(), sandbox)
        return info_of(await sandboxes.resolve(found.owner, found.name, make=False), sandboxes)

    @toolbox.tool("Describe a sandbox", toolset="sandboxes", effect="read")
    async def describe_sandbox(sandbox: arguments.RequiredSandbox) -> SandboxState:
        """Return all that is known of a sandbox: what it uses and runs now, its conditions, and what happened to it."""
        record = await sandboxes.find(current_owner(), sandbox)
        return await _state(parts, backend, record, packages=parts.installer.added(record.name))

    @toolbox.tool("List what sandboxes do", toolset="sandboxes", effect="read")
    async def list_activity() -> ActivityList:
        """List what your sandboxes use and run now, of those in use by the gateway that answers."""
        found = await parts.activities.known(await sandboxes.list(current_owner()))
        return ActivityList(
            sandboxes=[
                SandboxActivity(sandbox=name, load=load_info(each.load), runs=list(each.runs))
                for name, each in found.items()
            ]
        )


def register_administration(toolbox: Toolbox, parts: Parts, backend: Backend) -> None:
    """Add the operations over everybody's sandboxes."""
    every = Administration(parts.sandboxes, backend)

    @toolbox.tool("List everybody's sandboxes", toolset="sandboxes", effect="read", admin=True)
    async def list_all_sandboxes() -> OwnedSandboxList:
        """List the sandboxes of all users of your tenant, or of all tenants, oldest first."""
        records = await every.list()
        return OwnedSandboxList(
            sandboxes=[OwnedSandbox(**fields_of(each, parts.sandboxes), **_owner(each)) for each in records]
        )

    @toolbox.tool("Describe anybody's sandbox", toolset="sandboxes", effect="read", admin=True)
    async def describe_any_sandbox(sandbox: Handle) -> SandboxState:
        """Return all that is known of a user's sandbox, but for what is in it."""
        record = await every.find(sandbox)
        return await _state(parts, backend, record, **_owner(record))

    @toolbox.tool("Close anybody's sandbox", toolset="sandboxes", effect="write", admin=True)
    async def close_any_sandbox(*, sandbox: Handle, force: Force = False) -> Closed:
        """End a user's sandbox: its processes are stopped and its files deleted."""
        return Closed(sandbox=await every.close(sandbox, force=force))


def load_info(load: Load) -> SandboxLoad:
    """Return what a sandbox uses, as callers see it."""
    return SandboxLoad(**{**load._asdict(), "processors": round(load.processors, 3)})


async def _state(parts: Parts, backend: Backend, record: SandboxRecord, **more: Any) -> SandboxState:
    activity, events = await parts.activities.of(record), await backend.events(record.name)
    return SandboxState(
        **fields_of(record, parts.sandboxes),
        **more,
        load=None if activity is None else load_info(activity.load),
        runs=[] if activity is None else list(activity.runs),
        conditions=[
            SandboxCondition(
                **each.model_dump(include={"type", "status", "reason", "message"}),
                since=None if each.last_transition_time is None else rfc3339(each.last_transition_time),
            )
            for each in record.conditions
        ],
        events=[
            SandboxEventInfo(
                time=None if each.time is None else rfc3339(each.time),
                reason=each.reason,
                message=each.message,
                warning=each.is_warning,
                count=each.count,
            )
            for each in events
        ],
    )


def _owner(record: SandboxRecord) -> dict[str, str]:
    return {"user": user_of(record.owner), "tenant": tenant_of(record.owner)}
