"""Makes the MCP server of the parts it serves. Called by `app.py`; importing it starts nothing."""

from typing import Final

from fastmcp import FastMCP
from fastmcp.server.auth import TokenVerifier

from sandpod_gateway.artifacts import Artifacts
from sandpod_gateway.mcp import (
    artifact_tools,
    background_tools,
    file_tools,
    link_tools,
    package_tools,
    resources,
    run_tools,
    sandbox_tools,
)
from sandpod_gateway.mcp.bad_arguments import BadArguments
from sandpod_gateway.mcp.bounded_calls import BoundedCalls
from sandpod_gateway.mcp.compat import systems
from sandpod_gateway.mcp.compat.settings import CompatSettings
from sandpod_gateway.mcp.parts import Parts

INSTRUCTIONS: Final = (
    "Sandpod runs code in sandboxes that belong to you alone and by default have no network. Use run_python_code, "
    "run_js_code or run_shell_command; without a sandbox argument they share your default sandbox, where files in "
    "/workspace stay between calls, and variables only in a context. start_run is for programs that outlast a call, "
    "and install_packages for what a program can't import. Results tell stdout, stderr, exit_code and outcome; a "
    "failed run is a normal result, with a hint where its cause is known. An answer with `error` was refused: `next` "
    "says what to do."
)


def create_mcp(
    parts: Parts, *, version: str, auth: TokenVerifier | None, compat: CompatSettings, max_calls: int
) -> FastMCP[None]:
    """Return the server with all its tools.

    Args:
        parts: What the tools call.
        version: What it tells clients.
        auth: Knows the API keys, or None where the only caller is this machine.
        compat: Which other systems' tools it has too.
        max_calls: Most calls of one caller at a time.
    """
    # Unknown errors are ours to log and to mask: their texts may hold anything.
    mcp: FastMCP[None] = FastMCP(
        "sandpod", version=version, instructions=INSTRUCTIONS, auth=auth, mask_error_details=True
    )
    mcp.add_middleware(BoundedCalls(max_calls, parts.metrics))
    mcp.add_middleware(BadArguments(parts.metrics))
    run_tools.register(mcp, parts.runs, parts.links, parts.metrics)
    background_tools.register(mcp, parts.background, parts.links, parts.metrics)
    sandbox_tools.register(mcp, parts.sandboxes, parts.metrics)
    file_tools.register(mcp, parts.files, parts.links, parts.metrics)
    artifact_tools.register(mcp, Artifacts(parts.files), parts.links, parts.metrics)
    link_tools.register(mcp, parts.links, parts.metrics)
    package_tools.register(mcp, parts.installer, parts.metrics)
    resources.register(mcp, parts.files, parts.metrics)
    systems.register(mcp, parts, compat)
    return mcp
