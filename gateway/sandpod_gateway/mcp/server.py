"""The MCP server: its tools, resources and prompt, and what it says of itself to a model."""

from collections.abc import Mapping, Sequence
from typing import Final

from fastmcp import FastMCP
from fastmcp.server.auth import TokenVerifier

from sandpod_gateway.api.toolsets import ALL
from sandpod_gateway.mcp import resources
from sandpod_gateway.mcp.calls import CallMiddleware
from sandpod_gateway.mcp.compat.chrishayuk import Chrishayuk
from sandpod_gateway.mcp.compat.common import System
from sandpod_gateway.mcp.compat.gaiar import Gaiar
from sandpod_gateway.mcp.compat.johanli233 import Johanli
from sandpod_gateway.mcp.compat.philschmid import Philschmid
from sandpod_gateway.mcp.compat.settings import CompatSettings
from sandpod_gateway.mcp.compat.telnet import Telnet
from sandpod_gateway.mcp.toolbox import Parts, Toolbox
from sandpod_gateway.mcp.tools import background, files, runs, sandboxes

INSTRUCTIONS: Final = (
    "Sandpod runs code in sandboxes that belong to you alone. Call run_python_code, run_js_code or run_shell_command: "
    "without `sandbox` they share your default sandbox, where files in /workspace are kept between calls, and "
    "variables only in a `context`. Sandboxes have no network by default; install_packages needs none. A failed "
    "program is a normal result with stdout, stderr, exit_code and outcome. A refused call has `error`, and `next` "
    "says what to do."
)

_COMPAT: Final[dict[str, tuple[type[System], ...]]] = {
    "philschmid": (Philschmid,),
    "johanli233": (Johanli,),
    "chrishayuk": (Chrishayuk, Telnet),
    "gaiar": (Gaiar,),
}


def create_mcp(
    parts: Parts,
    *,
    version: str,
    auth: TokenVerifier | None,
    compat: CompatSettings,
    max_calls: int,
    toolsets: frozenset[str],
    facts: Mapping[str, str],
    link_files: bool,
    libraries: Sequence[str],
) -> FastMCP[None]:
    """Return the server with its own `toolsets` and those of other systems, for `max_calls` of each caller at a time.

    `auth` is None where the only caller is this machine, `facts` stand for `$name` in descriptions, and `libraries` are
    the Python libraries of the default sandbox.
    """
    mcp: FastMCP[None] = FastMCP(
        "sandpod",
        version=version,
        instructions=INSTRUCTIONS,
        auth=auth,
        mask_error_details=True,  # unknown errors are ours to log: their texts may hold anything
        on_duplicate="replace",  # tools of other systems may take the names of ours
    )
    mcp.add_middleware(CallMiddleware(max_calls, toolsets or ALL, parts.metrics))
    if toolsets:
        toolbox = Toolbox(mcp, parts, facts, link_files=link_files)
        for module in (runs, files, background, sandboxes):
            module.register(toolbox, parts)
    resources.register(mcp, parts.files, parts.metrics)
    for system in compat.systems:
        for tools in _COMPAT[system]:
            tools(parts, compat, libraries).register(mcp)
    return mcp
