"""The toolsets `background` and `contexts`: runs that nobody waits for, processes that keep variables between runs."""

from typing import Annotated, Literal

from pydantic import Field

from sandpod_gateway.api.results import Installation
from sandpod_gateway.api.run_results import ContextList, ContextRestarted, RunList, RunOutput, RunStarted
from sandpod_gateway.auth.api_keys import current_owner
from sandpod_gateway.content import Answer
from sandpod_gateway.mcp import arguments
from sandpod_gateway.mcp.arguments import MaxOutput, RunId, Sandbox, StripAnsi, Wait
from sandpod_gateway.mcp.toolbox import Parts, Toolbox
from sandpod_gateway.runs.request import RunRequest

Code = Annotated[str, Field(description="The program, or the shell command.")]
Cursor = Annotated[int, Field(ge=0, le=2**62, description="`cursor` of the last read_run; 0 is the beginning.")]
Until = Annotated[Literal["output", "end"], Field(description="What to wait for: the next output, or the run's end.")]
RequiredContext = Annotated[str, Field(description="The context's name.")]
InstallationName = Annotated[str, Field(description="`installation` of install_packages.")]


def register(toolbox: Toolbox, parts: Parts) -> None:
    """Add the tools."""
    background = parts.background

    @toolbox.tool("Start a run", toolset="background", effect="run")
    async def start_run(
        *,
        code: Code,
        language: arguments.LanguageName = "python",
        sandbox: Sandbox = None,
        context: arguments.Context = None,
        timeout: arguments.Timeout = None,  # noqa: ASYNC109  # the program's, enforced in its sandbox
        stdin: arguments.Stdin = None,
        args: arguments.Args = None,
        env: arguments.Env = None,
        cwd: arguments.Cwd = ".",
        idempotency_key: arguments.Key = None,
    ) -> RunStarted:
        """Start a program in the background and return its run_id at once.

        It goes on when this call or connection ends, until its timeout: set one that is long enough for the whole
        program. Read it with read_run, end it with stop_run.
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

    @toolbox.tool("Read a run", toolset="background", effect="read")
    async def read_run(
        *,
        run_id: RunId,
        cursor: Cursor = 0,
        wait: Wait = 0,
        until: Until = "output",
        strip_ansi: StripAnsi = False,
        max_output: MaxOutput = None,
    ) -> Answer[RunOutput]:
        """Return what a run has written since `cursor`, and, once it has ended, its result with all of its output.

        With `wait` it waits for more. Runs of other calls can be read too, for some minutes after they end.
        """
        return await background.read(
            current_owner(), run_id, cursor=cursor, wait=wait, until=until, strip_ansi=strip_ansi, max_output=max_output
        )

    @toolbox.tool("Stop a run", toolset="background", effect="write")
    async def stop_run(*, run_id: RunId) -> Answer[RunOutput]:
        """Stop a run and everything it started; return its output and how it ended."""
        return await background.stop(current_owner(), run_id)

    @toolbox.tool("List runs", toolset="background", effect="read")
    async def list_runs(*, sandbox: Sandbox = None) -> RunList:
        """List the runs of a sandbox: live ones, and ended ones that are still kept."""
        return await background.list_runs(current_owner(), sandbox=sandbox)

    @toolbox.tool("Look at an installation", toolset="background", effect="read")
    async def get_installation(*, installation: InstallationName, wait: Wait = 0) -> Installation:
        """Return the state of an installation, its packages, or why it failed."""
        return await parts.installer.get(current_owner(), installation, wait=wait)

    @toolbox.tool("List contexts", toolset="contexts", effect="read")
    async def list_contexts(*, sandbox: Sandbox = None) -> ContextList:
        """List the contexts of a sandbox with their language and state."""
        return await background.list_contexts(current_owner(), sandbox=sandbox)

    @toolbox.tool("Restart a context", toolset="contexts", effect="write")
    async def restart_context(*, context: RequiredContext, sandbox: Sandbox = None) -> ContextRestarted:
        """End a context's process: its variables are deleted, and its next use starts a new one. Files stay."""
        return await background.restart_context(current_owner(), context, sandbox=sandbox)
