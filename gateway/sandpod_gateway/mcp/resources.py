"""Resources, which clients read without a tool call, and the prompt that explains the tools to a model.

A refusal is the protocol's error, with the same sentence as a tool's.
"""

import logging
import mimetypes
from typing import Final

from fastmcp import FastMCP
from fastmcp.exceptions import ResourceError
from fastmcp.resources import ResourceContent, ResourceResult

from sandpod_gateway.api.toolsets import Toolset
from sandpod_gateway.auth.api_keys import current_owner
from sandpod_gateway.content import json_size
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.files.service import Files
from sandpod_gateway.metrics import Metrics

MAX_BYTES: Final = 512 * 1024  # of a file that is read as a resource: in base64 below the 1 MiB that clients accept
_MAX_TEXT: Final = 900 * 1024  # bytes of JSON of a text that is sent as text

FILES_URI: Final = "sandpod://sandboxes/{sandbox}/files/{path*}"
FILES_TOOLSET: Final[Toolset] = "core"  # the toolset of read_file, with which the resource is on and off

_GUIDE: Final = """\
Work with Sandpod like this.

1. Run code with run_python_code, run_js_code or run_shell_command. Each call is a whole program: print what you want to
   see. A failed program is a normal result: read outcome, exit_code, stderr and hint, correct it, run it again.
2. Files in /workspace stay between calls, and every language sees them. Put data there with write_file or upload_file,
   and keep code short. Variables stay only where calls name the same context.
3. There is no network unless the sandbox has a network profile that opens one. install_packages needs none;
   list_packages tells what is there.
4. Figures come back as images by themselves. Give results to people as files: create_link makes a link to one,
   fetch_workspace to all.
5. For a program that takes longer than a call may: start_run, then read_run with the cursor that it returned last, and
   stop_run. Give start_run a timeout that is long enough.
6. An answer with `error` was refused: `next` says what to do. sandpod://capabilities tells limits and languages.
"""


def register(mcp: FastMCP[None], files: Files, metrics: Metrics) -> None:
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


def resource_error(metrics: Metrics, error: SandpodError) -> ResourceError:
    """Count a refused resource and return the protocol's error for it."""
    metrics.refusals.labels(error.code).inc()
    return ResourceError(f"{error.code}: {error.message} {error.next_step}", log_level=logging.DEBUG)


def _content(path: str, data: bytes) -> ResourceContent:
    """Return a file's content as text, or in base64 where it is no text or would take too much as text."""
    kind = mimetypes.guess_type(path)[0]
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return ResourceContent(data, mime_type=kind or "application/octet-stream")
    content = text if json_size(text) <= _MAX_TEXT else data
    return ResourceContent(content, mime_type=kind or "text/plain")
