"""Makes the MCP server of the parts it serves. Called by `app.py`; importing it starts nothing."""

from typing import Final

from fastmcp import FastMCP
from fastmcp.server.auth import TokenVerifier

from sandpod_gateway.files import Files
from sandpod_gateway.mcp import file_tools, run_tools, sandbox_tools
from sandpod_gateway.mcp.bad_arguments import BadArguments
from sandpod_gateway.metrics import Metrics
from sandpod_gateway.runs import Runs
from sandpod_gateway.sandboxes import Sandboxes

INSTRUCTIONS: Final = (
    "Sandpod runs code in sandboxes that belong to you alone and have no network. Use run_python_code, run_js_code or "
    "run_shell_command; without a sandbox argument they share your default sandbox, where files in /workspace stay "
    "between calls and variables do not. Results tell stdout, stderr, exit_code and outcome; a failed run is a normal "
    "result with a hint. An answer with `error` was refused: `next` says what to do."
)


def create_mcp(
    *, version: str, runs: Runs, sandboxes: Sandboxes, files: Files, metrics: Metrics, auth: TokenVerifier | None
) -> FastMCP[None]:
    """Return the server with all its tools.

    Args:
        version: What it tells clients.
        runs: Runs code.
        sandboxes: Holds sandboxes.
        files: Reads and writes files.
        metrics: Counts refusals.
        auth: Knows the API keys, or None where the only caller is this machine.
    """
    # Unknown errors are ours to log and to mask: their texts may hold anything.
    mcp: FastMCP[None] = FastMCP(
        "sandpod", version=version, instructions=INSTRUCTIONS, auth=auth, mask_error_details=True
    )
    mcp.add_middleware(BadArguments(metrics))
    run_tools.register(mcp, runs, metrics)
    sandbox_tools.register(mcp, sandboxes, metrics)
    file_tools.register(mcp, files, metrics)
    return mcp
