"""Runs: the toolset `core`, with installing packages; runs that nobody waits for (`background`), and `contexts`."""

from typing import Annotated, Final, Literal

from fastmcp.server.dependencies import get_context
from pydantic import Field

from sandpod_gateway.api import results, run_results
from sandpod_gateway.auth.current import current_owner
from sandpod_gateway.backends.base import ClaimRequest
from sandpod_gateway.content import Answer
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.mcp import arguments
from sandpod_gateway.mcp.toolbox import Parts, Toolbox
from sandpod_gateway.packages.installer import Installer
from sandpod_gateway.runs.progress import Send
from sandpod_gateway.runs.request import RunRequest

Command = Annotated[str, Field(description="A command line or script; with `language`, a whole program in it.")]
ShellLanguage = Annotated[
    arguments.LanguageName, Field(description="A language that the sandbox's template adds, such as ruby.")
]
Code = Annotated[str, Field(description="The program, or the shell command.")]
Cursor = Annotated[int, Field(ge=0, le=2**62, description="`cursor` of the last read_run; 0 is the beginning.")]
Until = Annotated[Literal["output", "end"], Field(description="What to wait for: the next output, or the run's end.")]
RequiredContext = Annotated[str, Field(description="The context's name.")]
InstallationName = Annotated[str, Field(description="`installation` of install_packages.")]

PYTHON: Final = """\
Run a Python program in your sandbox and return its output.

Each call is a new process: files in /workspace are kept, variables only in a `context`. Print what you want to see.
Top-level await works; matplotlib figures come back as images.$network$libraries
"""
JAVASCRIPT: Final = """\
Run a Node.js program in your sandbox and return its output.

CommonJS, ES modules, top-level await and TypeScript work. Otherwise as run_python_code.
"""


def register(toolbox: Toolbox, parts: Parts) -> None:
    """Add the tools."""

    async def answer(
        request: RunRequest, sandbox: str | None, *, fresh: bool = False, cold_start: bool | None = None
    ) -> Answer[run_results.RunResult]:
        if cold_start and not fresh:
            message = "`cold_start` needs fresh=true: other runs use an existing sandbox."
            raise SandpodError(
                results.ErrorCode.INVALID_ARGUMENT, message, next_step="Leave it out, or set fresh=true."
            )
        owner, send = current_owner(), _progress_sender()
        claim = ClaimRequest(owner=owner, cold_start=cold_start) if fresh else None
        return await parts.runs.run(owner, request, sandbox=sandbox, fresh=claim, send=send)

    def register_program(name: str, title: str, language: run_results.Language, description: str) -> None:
        async def run_program(
            *,
            code: Annotated[str, Field(description="The whole program.")],
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
            max_output: arguments.MaxOutput = None,
        ) -> Answer[run_results.RunResult]:
            request = RunRequest(
                language=language,
                code=code,
                args=args or [],
                env=env or {},
                stdin=stdin,
                timeout=timeout,
                context=context,
                key=idempotency_key,
                strip_ansi=strip_ansi,
                max_output=max_output,
                packages=packages or [],
            )
            return await answer(request, sandbox, fresh=fresh, cold_start=cold_start)

        run_program.__name__, run_program.__doc__ = name, description
        toolbox.tool(title, toolset="core", effect="run")(run_program)

    register_program("run_python_code", "Run Python", run_results.Language.PYTHON, PYTHON)
    register_program("run_js_code", "Run JavaScript", run_results.Language.JAVASCRIPT, JAVASCRIPT)

    @toolbox.tool("Run a shell command", toolset="core", effect="run")
    async def run_shell_command(
        *,
        command: Command,
        sandbox: arguments.Sandbox = None,
        timeout: arguments.Timeout = None,  # noqa: ASYNC109  # as above
        stdin: arguments.Stdin = None,
        env: arguments.Env = None,
        cwd: arguments.Cwd = ".",
        strip_ansi: arguments.StripAnsi = False,
        max_output: arguments.MaxOutput = None,
        language: ShellLanguage = run_results.Language.SHELL,
    ) -> Answer[run_results.RunResult]:
        """Run a shell command in your sandbox and return its output.

        The shell is bash where the image has it. What the command leaves in the background ends with it.$network
        """
        request = RunRequest(
            language=language,
            code=command,
            env=env or {},
            cwd=cwd,
            stdin=stdin,
            timeout=timeout,
            strip_ansi=strip_ansi,
            max_output=max_output,
        )
        return await answer(request, sandbox)

    _register_packages(toolbox, parts.installer)


def _register_packages(toolbox: Toolbox, installer: Installer) -> None:
    @toolbox.tool("Install packages", toolset="core", effect="make", open_world=True)
    async def install_packages(
        *,
        packages: arguments.RequiredPackages,
        language: arguments.PackageLanguage = "python",
        sandbox: arguments.Sandbox = None,
        wait: arguments.Wait = 30,
    ) -> results.Installation:
        """Install Python or npm packages in a sandbox. It needs no network: the server fetches them.

        Use it in place of pip and npm. Only wheels are installed, and npm's install scripts are not run.
        """
        return await installer.install(current_owner(), packages, language=language, sandbox=sandbox, wait=wait)

    @toolbox.tool("List packages", toolset="sandboxes", effect="read")
    async def list_packages(
        *, sandbox: arguments.Sandbox = None, language: arguments.PackageLanguage = "python"
    ) -> results.PackageList:
        """List a sandbox's packages with versions: installed ones, then those of the image."""
        return await installer.listed(current_owner(), sandbox=sandbox, language=language)


def register_background(toolbox: Toolbox, parts: Parts) -> None:
    """Add the tools of `background` and `contexts`."""
    background = parts.background

    @toolbox.tool("Start a run", toolset="background", effect="run")
    async def start_run(
        *,
        code: Code,
        language: arguments.LanguageName = "python",
        sandbox: arguments.Sandbox = None,
        context: arguments.Context = None,
        timeout: arguments.Timeout = None,  # noqa: ASYNC109  # the program's, enforced in its sandbox
        stdin: arguments.Stdin = None,
        args: arguments.Args = None,
        env: arguments.Env = None,
        cwd: arguments.Cwd = ".",
        idempotency_key: arguments.Key = None,
    ) -> run_results.RunStarted:
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
        run_id: arguments.RunId,
        cursor: Cursor = 0,
        wait: arguments.Wait = 0,
        until: Until = "output",
        strip_ansi: arguments.StripAnsi = False,
        max_output: arguments.MaxOutput = None,
    ) -> Answer[run_results.RunOutput]:
        """Return what a run has written since `cursor`, and, once it has ended, its result with all of its output.

        With `wait` it waits for more. Runs of other calls can be read too, for some minutes after they end.
        """
        return await background.read(
            current_owner(), run_id, cursor=cursor, wait=wait, until=until, strip_ansi=strip_ansi, max_output=max_output
        )

    @toolbox.tool("Stop a run", toolset="background", effect="write")
    async def stop_run(*, run_id: arguments.RunId) -> Answer[run_results.RunOutput]:
        """Stop a run and everything it started; return its output and how it ended."""
        return await background.stop(current_owner(), run_id)

    @toolbox.tool("List runs", toolset="background", effect="read")
    async def list_runs(*, sandbox: arguments.Sandbox = None) -> run_results.RunList:
        """List the runs of a sandbox: live ones, and ended ones that are still kept."""
        return await background.list_runs(current_owner(), sandbox=sandbox)

    @toolbox.tool("Look at an installation", toolset="background", effect="read")
    async def get_installation(*, installation: InstallationName, wait: arguments.Wait = 0) -> results.Installation:
        """Return the state of an installation, its packages, or why it failed."""
        return await parts.installer.get(current_owner(), installation, wait=wait)

    @toolbox.tool("List contexts", toolset="contexts", effect="read")
    async def list_contexts(*, sandbox: arguments.Sandbox = None) -> run_results.ContextList:
        """List the contexts of a sandbox with their language and state."""
        return await background.list_contexts(current_owner(), sandbox=sandbox)

    @toolbox.tool("Restart a context", toolset="contexts", effect="write")
    async def restart_context(
        *, context: RequiredContext, sandbox: arguments.Sandbox = None
    ) -> run_results.ContextRestarted:
        """End a context's process: its variables are deleted, and its next use starts a new one. Files stay."""
        return await background.restart_context(current_owner(), context, sandbox=sandbox)


def _progress_sender() -> Send | None:
    """Return what sends a progress notification of this call, or None where the caller gave no progress token."""
    context = get_context()
    meta = context.request_context.meta if context.request_context is not None else None
    if not meta or meta.get("progressToken") is None:
        return None
    return lambda number, message: context.report_progress(number, None, message)
