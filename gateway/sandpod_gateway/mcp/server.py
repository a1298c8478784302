"""The MCP server: its tools, its resources, which clients read without a tool call, and what it says to a model."""

import mimetypes
from collections.abc import Mapping, Sequence
from typing import Final

from fastmcp import FastMCP
from fastmcp.resources import ResourceContent, ResourceResult
from fastmcp.server.auth import AuthProvider
from fastmcp.server.middleware import Middleware

from sandpod_gateway.api.toolsets import ALL
from sandpod_gateway.audit.log import AuditLog
from sandpod_gateway.auth.current import current_owner
from sandpod_gateway.content import json_size
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.files.service import Files
from sandpod_gateway.mcp.audit import AuditMiddleware
from sandpod_gateway.mcp.calls import FILES_URI, CallMiddleware, resource_error
from sandpod_gateway.mcp.compat.chrishayuk import Chrishayuk
from sandpod_gateway.mcp.compat.common import System
from sandpod_gateway.mcp.compat.gaiar import Gaiar
from sandpod_gateway.mcp.compat.johanli233 import Johanli
from sandpod_gateway.mcp.compat.philschmid import Philschmid
from sandpod_gateway.mcp.compat.settings import CompatSettings
from sandpod_gateway.mcp.compat.telnet import Telnet
from sandpod_gateway.mcp.measuring import Measuring
from sandpod_gateway.mcp.toolbox import Parts, Toolbox
from sandpod_gateway.mcp.tools import files, runs, sandboxes
from sandpod_gateway.metrics import Metrics

MAX_BYTES: Final = 512 * 1024  # of a file that is read as a resource: in base64 below the 1 MiB that clients accept
_MAX_TEXT: Final = 900 * 1024  # bytes of JSON of a text that is sent as text

INSTRUCTIONS: Final = (
    "Sandpod runs code in sandboxes that belong to you alone. Call run_python_code, run_js_code or run_shell_command: "
    "without `sandbox` they share your default sandbox, where files in /workspace are kept between calls, and "
    "variables only in a `context`. Sandboxes have no network by default; install_packages needs none. A failed "
    "program is a normal result with stdout, stderr, exit_code and outcome. A refused call has `error`, and `next` "
    "says what to do."
)
_GUIDE: Final = """\
Work with Sandpod like this.

1. Run code with run_python_code, run_js_code or run_shell_command. Each call is a whole program: print what you want to
   see. A failed program is a normal result: read outcome, exit_code, stderr and hint, correct it, run it again.
2. Files in /workspace stay between calls, and every language sees them. Put data there with write_file or upload_file,
   and keep code short. Variables stay only where calls name the same context.
3. There is no network unless the sandbox has a network profile that opens one. install_packages needs none;
   list_packages lists what is there.
4. Figures come back as images by themselves. Give results to people as files: create_link makes a link to one,
   fetch_workspace to all.
5. For a program that takes longer than a call may: start_run, then read_run with the cursor that it returned last, and
   stop_run. Give start_run a timeout that is long enough.
6. An answer with `error` was refused: `next` says what to do. sandpod://capabilities lists limits and languages.
"""

_COMPAT: Final[dict[str, tuple[type[System], ...]]] = {
    "philschmid": (Philschmid,),
    "johanli233": (Johanli,),
    "chrishayuk": (Chrishayuk, Telnet),
    "gaiar": (Gaiar,),
}


def create_guards(parts: Parts, audit: AuditLog, *, max_calls: int, toolsets: frozenset[str]) -> list[Middleware]:
    """Return what every call goes through: measure, audit, limits, scopes; `max_calls` of a caller at a time."""
    # The first ones see all calls, and how they end.
    first = [Measuring(parts.metrics), *([AuditMiddleware(audit, parts.metrics)] if audit.on else [])]
    return [*first, CallMiddleware(max_calls, toolsets or ALL, parts.metrics, parts.sandboxes.meter)]


def create_mcp(
    parts: Parts,
    *,
    version: str,
    auth: AuthProvider | None,
    compat: CompatSettings,
    guards: Sequence[Middleware],
    toolsets: frozenset[str],
    facts: Mapping[str, str],
    link_files: bool,
    libraries: Sequence[str],
) -> FastMCP[None]:
    """Return the server with its own `toolsets` and those of other systems, behind `guards`.

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
    for guard in guards:
        mcp.add_middleware(guard)
    if toolsets:
        toolbox = Toolbox(mcp, parts, facts, link_files=link_files)
        for register in (runs.register, files.register, runs.register_background, sandboxes.register):
            register(toolbox, parts)
    _register_resources(mcp, parts.files, parts.metrics)
    for system in compat.systems:
        for tools in _COMPAT[system]:
            tools(parts, compat, libraries).register(mcp)
    return mcp


def _register_resources(mcp: FastMCP[None], files: Files, metrics: Metrics) -> None:
    """Add resources and prompt to a server."""

    @mcp.resource(FILES_URI, name="file", title="A file of a sandbox")
    async def file(sandbox: str, path: str) -> ResourceResult:
        """A file of one of your sandboxes, by its handle and the path inside /workspace."""
        try:
            data = await files.whole(current_owner(), path, sandbox=sandbox, limit=MAX_BYTES)
        except SandpodError as error:
            raise resource_error(metrics, error) from error
        return ResourceResult([_content(path, data)])

    @mcp.prompt(title="How to work with Sandpod")
    def work_with_sandpod(
        task: str = "",  # a description of its own would get a JSON schema from FastMCP
    ) -> str:
        """Explain to a model how to get something done with the tools of this server; `task`, if given, says what."""
        return f"{_GUIDE}\nThe task: {task}\n" if task else _GUIDE


def _content(path: str, data: bytes) -> ResourceContent:
    """Return a file's content as text, or in base64 where it is no text or would take too much as text."""
    kind = mimetypes.guess_type(path)[0]
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return ResourceContent(data, mime_type=kind or "application/octet-stream")
    content = text if json_size(text) <= _MAX_TEXT else data
    return ResourceContent(content, mime_type=kind or "text/plain")
