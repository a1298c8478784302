"""What callers used."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any

from pydantic import Field

from sandpod_gateway.api.account_results import UsageReport, UsageRow
from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.auth.current import current_caller
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.mcp.toolbox import Toolbox
from sandpod_gateway.rest.pages import LIMIT, MAX_LIMIT, cursor_of, name_in
from sandpod_gateway.usage.amounts import Account, account_of
from sandpod_gateway.usage.document import Document
from sandpod_gateway.usage.report import By, part_of, report

Each = Annotated[By, Field(description="What there is a row for; by tenant for administrators.")]
Since = Annotated[str | None, Field(description="First day, as 2026-11-30 (UTC); default: all days that are kept.")]
User = Annotated[str | None, Field(description="Only this user.")]
Tenant = Annotated[str | None, Field(description="Only this tenant.")]
Limit = Annotated[int, Field(ge=1, le=MAX_LIMIT)]
Key = Annotated[str | None, Field(description="Only keys of this name.")]


def register(toolbox: Toolbox, documents: Callable[[], list[Document]]) -> None:
    """Add the operation, over what all gateways have counted."""

    @toolbox.tool("Show usage", toolset="account", effect="read")
    async def get_usage(
        *,
        by: Each = "user",
        since: Since = None,
        user: User = None,
        tenant: Tenant = None,
        key: Key = None,
        limit: Limit = LIMIT,
        cursor: str = "",
    ) -> UsageReport:
        """Return what you used; for an administrator, what all users of the tenant did, or of all tenants."""
        caller = current_caller()
        own, is_admin = account_of(caller), caller.role == "admin"
        if by == "tenant" and not is_admin:
            message, step = "What a whole tenant used is for administrators.", "Ask by user, key or sandbox."
            raise SandpodError(ErrorCode.FORBIDDEN, message, next_step=step)

        def counts(account: Account) -> bool:
            if not is_admin and account[:2] != own[:2]:
                return False
            if caller.tenant and account.tenant != caller.tenant:
                return False
            return all(given is None or each == given for given, each in zip((tenant, user, key), account, strict=True))

        # As it is now, since it goes on being counted meanwhile: adding up takes a while where there is much.
        found = await asyncio.to_thread(report, part_of(documents(), counts), by=by, since=since)
        after = name_in(cursor, found.names)
        rest = [row for row in found.rows if row[: found.names] > after]
        page = replace(found, rows=rest[:limit])
        rows: list[dict[str, Any]] = page.objects()
        following = cursor_of(tuple(map(str, page.rows[-1][: found.names]))) if len(rest) > limit else None
        return UsageReport(columns=list(found.columns), rows=[UsageRow(**row) for row in rows], next=following)
