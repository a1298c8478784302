"""The server of the operations that REST alone has, which no MCP client reaches."""

from collections.abc import Sequence

from fastmcp import FastMCP
from fastmcp.server.middleware import Middleware

from sandpod_gateway.audit.log import AuditLog
from sandpod_gateway.auth.key_management import KeyManager
from sandpod_gateway.backends.base import Backend
from sandpod_gateway.mcp.toolbox import Parts, Toolbox
from sandpod_gateway.rest.tools import audit, keys, pools, sandboxes, templates, usage
from sandpod_gateway.settings import Settings
from sandpod_gateway.usage.document import Document
from sandpod_gateway.usage.report import last_used


def create_rest_tools(
    parts: Parts,
    guards: Sequence[Middleware],
    settings: Settings,
    *,
    manager: KeyManager,
    log: AuditLog,
    backend: Backend,
) -> FastMCP[None]:
    """Return the server, behind the guards of the MCP server; without own toolsets it has nothing."""
    own: FastMCP[None] = FastMCP("sandpod-rest", mask_error_details=True)
    for guard in guards:
        own.add_middleware(guard)
    if settings.toolsets:
        toolbox, meter = Toolbox(own, parts, {}, link_files=False), parts.sandboxes.meter

        def documents() -> list[Document]:
            return [meter.document, *meter.others.documents]

        audit.register(toolbox, log)
        pools.register(toolbox, backend)
        sandboxes.register(toolbox, parts, backend)
        sandboxes.register_administration(toolbox, parts, backend)
        templates.register(toolbox, parts.sandboxes, backend.kind)
        usage.register(toolbox, documents)
        keys.register(toolbox, manager, lambda: last_used(documents()), settings.auth.token_key_days)
    return own
