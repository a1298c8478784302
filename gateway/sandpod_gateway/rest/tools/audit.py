"""The audit log's records."""

from typing import Annotated

from pydantic import Field

from sandpod_gateway.api.account_results import AuditRecords
from sandpod_gateway.audit.act import Record
from sandpod_gateway.audit.log import AuditLog
from sandpod_gateway.auth.callers import Caller, tenant_of, user_of
from sandpod_gateway.auth.current import current_caller
from sandpod_gateway.mcp.toolbox import Toolbox
from sandpod_gateway.rest.pages import LIMIT, MAX_LIMIT

User = Annotated[str | None, Field(description="Only those of this user.")]
Event = Annotated[str | None, Field(description="Only those of this event, such as call.")]
Limit = Annotated[int, Field(ge=1, le=MAX_LIMIT)]


def register(toolbox: Toolbox, log: AuditLog) -> None:
    """Add the operation."""

    @toolbox.tool("List audit records", toolset="account", effect="read")
    async def list_audit_records(
        *, user: User = None, event: Event = None, limit: Limit = LIMIT, cursor: str | None = None
    ) -> AuditRecords:
        """List what you did, newest first; for an administrator, what all users of the tenant did, or everybody.

        Only records of the gateway that answers are here: each keeps a file of its own.
        """
        caller = current_caller()

        def wanted(record: Record) -> bool:
            whose = record.get("user")
            is_theirs = user is None or (isinstance(whose, str) and user in {whose, user_of(whose)})
            return is_theirs and event in {None, record.get("event")} and _may_see(caller, whose)

        records, following = await log.read(cursor, wanted, limit)
        return AuditRecords(replica=log.replica, records=records, next=following)


def _may_see(caller: Caller, whose: object) -> bool:
    if caller.role == "admin" and not caller.tenant:
        return True
    if not isinstance(whose, str):
        return False
    return whose == caller.owner or (caller.role == "admin" and tenant_of(whose) == caller.tenant)
