"""The tools that run code: Python, JavaScript, shell. Called by MCP clients, registered by `server.py`."""

from typing import Annotated

from fastmcp import Context, FastMCP
from pydantic import Field

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.api.run_results import Language, RunResult
from sandpod_gateway.auth.api_keys import current_owner
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.files.links import LinkMaker
from sandpod_gateway.mcp import arguments
from sandpod_gateway.mcp.artifact_links import linked_answer
from sandpod_gateway.mcp.progress import progress_sender
from sandpod_gateway.mcp.tool_results import answering, output_schema
from sandpod_gateway.metrics import Metrics
from sandpod_gateway.runs.recorder import RunAnswer
from sandpod_gateway.runs.request import FreshSandbox, RunRequest
from sandpod_gateway.runs.service import Runs

PythonCode = Annotated[
    str,
    Field(description="A whole Python 3 program. Top-level await works. Print what you want to see."),
]
JsCode = Annotated[
    str,
    Field(
        description="A whole Node.js program, CommonJS or ES module; top-level await works, types of TypeScript are "
        "stripped. Log what you want to see."
    ),
]
Command = Annotated[str, Field(description="A command line or script for the shell, or a program in `language`.")]
ShellLanguage = Annotated[
    str,
    Field(
        description="shell, or another language that the sandbox's template adds, as ruby: `command` is then a whole "
        "program in it. The capabilities list the languages of each template."
    ),
]

_ANNOTATIONS = {"readOnlyHint": False, "destructiveHint": True, "idempotentHint": False, "openWorldHint": False}


def register(mcp: FastMCP[None], runs: Runs, links: LinkMaker, metrics: Metrics) -> None:
    """Add the tools to a server."""

    async def answer(
        ctx: Context, request: RunRequest, sandbox: str | None, fresh: FreshSandbox | None = None
    ) -> RunAnswer:
        send = progress_sender(ctx)
        return linked_answer(links, await runs.run(current_owner(), request, sandbox=sandbox, fresh=fresh, send=send))

    @mcp.tool(annotations={"title": "Run Python", **_ANNOTATIONS}, output_schema=output_schema(RunResult))
    @answering(metrics)
    async def run_python_code(
        ctx: Context,
        *,
        code: PythonCode,
        sandbox: arguments.Sandbox = None,
        context: arguments.Context = None,
        fresh: arguments.Fresh = False,
        cold_start: arguments.FreshColdStart = None,
        timeout: arguments.Timeout = None,  # noqa: ASYNC109  # the program's, enforced in its sandbox
        stdin: arguments.Stdin = None,
        args: arguments.Args = None,
        env: arguments.Env = None,
        packages: arguments.Packages = None,
        idempotency_key: arguments.Key = None,
        strip_ansi: arguments.StripAnsi = False,
    ) -> RunAnswer:
        """Run a Python program in a sandbox, by default without network; return output, exit code and how it ended.

        Each call is a new process unless it names a context: files in /workspace stay between calls, variables only
        in a context. Figures of matplotlib and images come back as images, plotly figures and what `display(value)`
        shows as HTML and data in `displays`. The program is stopped at its timeout, and with it everything it started.
        """
        request = RunRequest(
            language=Language.PYTHON,
            code=code,
            args=args or [],
            env=env or {},
            stdin=stdin,
            timeout=timeout,
            context=context,
            key=idempotency_key,
            strip_ansi=strip_ansi,
            packages=packages or [],
        )
        return await answer(ctx, request, sandbox, _fresh(fresh=fresh, cold_start=cold_start))

    @mcp.tool(annotations={"title": "Run JavaScript", **_ANNOTATIONS}, output_schema=output_schema(RunResult))
    @answering(metrics)
    async def run_js_code(
        ctx: Context,
        *,
        code: JsCode,
        sandbox: arguments.Sandbox = None,
        context: arguments.Context = None,
        fresh: arguments.Fresh = False,
        cold_start: arguments.FreshColdStart = None,
        timeout: arguments.Timeout = None,  # noqa: ASYNC109  # as above
        stdin: arguments.Stdin = None,
        args: arguments.Args = None,
        env: arguments.Env = None,
        packages: arguments.Packages = None,
        idempotency_key: arguments.Key = None,
        strip_ansi: arguments.StripAnsi = False,
    ) -> RunAnswer:
        """Run a Node.js program in a sandbox, by default without network; return output, exit code and how it ended.

        Each call is a new process unless it names a context: files in /workspace stay between calls, variables only
        in a context, where each name may be declared again and a promise that is the last value is waited for. An
        unhandled rejection fails the run.
        """
        request = RunRequest(
            language=Language.JAVASCRIPT,
            code=code,
            args=args or [],
            env=env or {},
            stdin=stdin,
            timeout=timeout,
            context=context,
            key=idempotency_key,
            strip_ansi=strip_ansi,
            packages=packages or [],
        )
        return await answer(ctx, request, sandbox, _fresh(fresh=fresh, cold_start=cold_start))

    @mcp.tool(annotations={"title": "Run a shell command", **_ANNOTATIONS}, output_schema=output_schema(RunResult))
    @answering(metrics)
    async def run_shell_command(
        ctx: Context,
        *,
        command: Command,
        sandbox: arguments.Sandbox = None,
        timeout: arguments.Timeout = None,  # noqa: ASYNC109  # as above
        stdin: arguments.Stdin = None,
        env: arguments.Env = None,
        cwd: arguments.Cwd = ".",
        strip_ansi: arguments.StripAnsi = False,
        language: ShellLanguage = Language.SHELL,
    ) -> RunAnswer:
        """Run a shell command in a sandbox, by default without network; return output, exit code and how it ended.

        The shell is bash where the image has it. Files in /workspace stay between calls. What the command leaves
        running in the background is ended with it. `language` runs a program in another language of the template's.
        """
        request = RunRequest(
            language=language,
            code=command,
            env=env or {},
            cwd=cwd,
            stdin=stdin,
            timeout=timeout,
            strip_ansi=strip_ansi,
        )
        return await answer(ctx, request, sandbox)


def _fresh(*, fresh: bool, cold_start: bool | None) -> FreshSandbox | None:
    if cold_start is not None and not fresh:
        raise SandpodError(
            ErrorCode.INVALID_ARGUMENT,
            "cold_start goes with fresh=true: other runs use a sandbox that is there, or your default one.",
            next_step="Leave it out, set fresh, or call create_sandbox with it and name that sandbox.",
        )
    return FreshSandbox(cold_start=cold_start) if fresh else None
