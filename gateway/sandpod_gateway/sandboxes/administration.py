"""The sandboxes of all users, for administrators: those of their tenant, or of all tenants."""

from dataclasses import dataclass

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.audit.act import note
from sandpod_gateway.auth.callers import Caller, tenant_of
from sandpod_gateway.auth.current import current_caller
from sandpod_gateway.backends.base import Backend, SandboxRecord
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.sandboxes.service import Sandboxes


@dataclass(frozen=True, slots=True)
class Administration:
    """Finds and ends them. All methods raise forbidden for whoever is no administrator."""

    sandboxes: Sandboxes
    backend: Backend

    async def list(self) -> list[SandboxRecord]:
        """Return the sandboxes that the caller administers, oldest first."""
        caller = current_caller()
        if caller.role != "admin":
            message, step = "The sandboxes of others are for administrators.", "List your own."
            raise SandpodError(ErrorCode.FORBIDDEN, message, next_step=step)
        return [record for record in await self.backend.every() if _administers(caller, record)]

    async def find(self, handle: str) -> SandboxRecord:
        """Return one of them, by its handle alone: names are their owners'. Raises session_not_found."""
        record = next((each for each in await self.list() if each.name == handle), None)
        if record is None:
            step = "List the sandboxes to see them."
            raise SandpodError(ErrorCode.SESSION_NOT_FOUND, "There is no such sandbox.", next_step=step)
        note(sandbox=record.name, target_user=record.owner)
        return record

    async def close(self, handle: str, *, force: bool) -> str:
        """End one of them, by `force` even with a run in it, and return its name. Raises session_busy, as `find`."""
        record = await self.find(handle)
        return await self.sandboxes.delete(record.owner, record.name, force=force)


def _administers(caller: Caller, record: SandboxRecord) -> bool:
    if caller.tenant and tenant_of(record.owner) != caller.tenant:
        return False
    return caller.templates is None or record.template in caller.templates
