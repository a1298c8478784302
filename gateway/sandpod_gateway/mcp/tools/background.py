"""The tools for runs that nobody waits for, and for contexts. Called by MCP clients, registered by `server.py`."""

from typing import Annotated

from fastmcp import FastMCP
from pydantic import Field

from sandpod_gateway.api.run_results import ContextList, ContextRestarted, RunList, RunOutput, RunStarted
from sandpod_gateway.auth.api_keys import current_owner
from sandpod_gateway.files.links import LinkMaker
from sandpod_gateway.mcp import arguments
from sandpod_gateway.mcp.artifact_links import linked_reading
from sandpod_gateway.mcp.tool_results import answering, output_schema
from sandpod_gateway.metrics import Metrics
from sandpod_gateway.runs.background import BackgroundRuns
from sandpod_gateway.runs.request import RunRequest
from sandpod_gateway.runs.result import Reading

Code = Annotated[str, Field(description="The program, or the command for the shell.")]
LanguageName = Annotated[
    str,
    Field(
        description="python, javascript, shell, or one that the sandbox's template adds; the capabilities list them."
    ),
]
Cursor = Annotated[int, Field(ge=0, le=2**62, description="Where the last read_run ended; 0 is the beginning.")]
Wait = Annotated[float, Field(ge=0, le=300, description="Seconds to wait for output or the end, if there is none yet.")]
RequiredContext = Annotated[str, Field(description="Name of the context.")]

_READ = {"readOnlyHint": True, "destructiveHint": False, "idempotentHint": True, "openWorldHint": False}
_RUN = {"readOnlyHint": False, "destructiveHint": True, "idempotentHint": False, "openWorldHint": False}
_END = {"readOnlyHint": False, "destructiveHint": True, "idempotentHint": True, "openWorldHint": False}


def register(mcp: FastMCP[None], background: BackgroundRuns, links: LinkMaker, metrics: Metrics) -> None:
    """Add the tools to a server."""
    _register_runs(mcp, background, links, metrics)
    _register_contexts(mcp, background, metrics)


def _register_runs(mcp: FastMCP[None], background: BackgroundRuns, links: LinkMaker, metrics: Metrics) -> None:
    @mcp.tool(annotations={"title": "Start a run", **_RUN}, output_schema=output_schema(RunStarted))
    @answering(metrics)
    async def start_run(
        *,
        code: Code,
        language: LanguageName = "python",
        sandbox: arguments.Sandbox = None,
        context: arguments.Context = None,
        timeout: arguments.Timeout = None,  # noqa: ASYNC109  # the program's, enforced in its sandbox
        stdin: arguments.Stdin = None,
        args: arguments.Args = None,
        env: arguments.Env = None,
        cwd: arguments.Cwd = ".",
        idempotency_key: arguments.Key = None,
    ) -> RunStarted:
        """Begin a program in the background and return at once. Read on with read_run, end it with stop_run.

        It goes on when this connection ends, up to its timeout: give one that is long enough.
        """
        request = RunRequest(
            language=language,
            code=code,
            args=args or [],
            env=env or {},
            cwd=cwd,
            stdin=stdin,
            timeout=timeout,
            context=context,
            key=idempotency_key,
        )
        return await background.start(current_owner(), request, sandbox=sandbox)

    @mcp.tool(annotations={"title": "Read a run", **_READ}, output_schema=output_schema(RunOutput))
    @answering(metrics)
    async def read_run(
        *, run_id: arguments.RunId, cursor: Cursor = 0, wait: Wait = 0, strip_ansi: arguments.StripAnsi = False
    ) -> Reading:
        """Return what a run has written since the cursor, and once it has ended and all is read its result.

        What it showed comes with the result, as it does from run_python_code.
        """
        read = await background.read(current_owner(), run_id, cursor=cursor, wait=wait, strip_ansi=strip_ansi)
        return linked_reading(links, read)

    @mcp.tool(annotations={"title": "Stop a run", **_END}, output_schema=output_schema(RunOutput))
    @answering(metrics)
    async def stop_run(*, run_id: arguments.RunId) -> Reading:
        """End a run and everything it started, and return how it ended."""
        return linked_reading(links, await background.stop(current_owner(), run_id))

    @mcp.tool(annotations={"title": "List runs", **_READ}, output_schema=output_schema(RunList))
    @answering(metrics)
    async def list_runs(*, sandbox: arguments.Sandbox = None) -> RunList:
        """List the runs of a sandbox: those that go on, and ended ones that are still remembered."""
        return await background.list_runs(current_owner(), sandbox=sandbox)


def _register_contexts(mcp: FastMCP[None], background: BackgroundRuns, metrics: Metrics) -> None:
    @mcp.tool(annotations={"title": "List contexts", **_READ}, output_schema=output_schema(ContextList))
    @answering(metrics)
    async def list_contexts(*, sandbox: arguments.Sandbox = None) -> ContextList:
        """List the contexts of a sandbox with their language and whether something runs in them."""
        return await background.list_contexts(current_owner(), sandbox=sandbox)

    @mcp.tool(annotations={"title": "Restart a context", **_END}, output_schema=output_schema(ContextRestarted))
    @answering(metrics)
    async def restart_context(*, context: RequiredContext, sandbox: arguments.Sandbox = None) -> ContextRestarted:
        """End a context's process: its variables are gone, and its next use begins anew. Files stay."""
        return await background.restart_context(current_owner(), context, sandbox=sandbox)
