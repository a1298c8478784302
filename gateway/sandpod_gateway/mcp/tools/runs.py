"""The toolset `core`: running code, and what it needs installed; packages are listed with `sandboxes`."""

from typing import Annotated, Final

from fastmcp.server.dependencies import get_context
from pydantic import Field

from sandpod_gateway.api.results import ErrorCode, Installation, PackageList
from sandpod_gateway.api.run_results import Language, RunResult
from sandpod_gateway.auth.api_keys import current_owner
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
    ) -> Answer[RunResult]:
        if cold_start and not fresh:
            message = "`cold_start` needs fresh=true: other runs use an existing sandbox."
            raise SandpodError(ErrorCode.INVALID_ARGUMENT, message, next_step="Leave it out, or set fresh=true.")
        owner, send = current_owner(), _progress_sender()
        claim = ClaimRequest(owner=owner, cold_start=cold_start) if fresh else None
        return await parts.runs.run(owner, request, sandbox=sandbox, fresh=claim, send=send)

    def register_program(name: str, title: str, language: Language, description: str) -> None:
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
        ) -> Answer[RunResult]:
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

    register_program("run_python_code", "Run Python", Language.PYTHON, PYTHON)
    register_program("run_js_code", "Run JavaScript", Language.JAVASCRIPT, JAVASCRIPT)

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
        language: ShellLanguage = Language.SHELL,
    ) -> Answer[RunResult]:
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
    ) -> Installation:
        """Install Python or npm packages in a sandbox. It needs no network: the server fetches them.

        Use it in place of pip and npm. Only wheels are installed, and npm's install scripts are not run.
        """
        return await installer.install(current_owner(), packages, language=language, sandbox=sandbox, wait=wait)

    @toolbox.tool("List packages", toolset="sandboxes", effect="read")
    async def list_packages(
        *, sandbox: arguments.Sandbox = None, language: arguments.PackageLanguage = "python"
    ) -> PackageList:
        """List a sandbox's packages with versions: installed ones, then those of the image."""
        return await installer.listed(current_owner(), sandbox=sandbox, language=language)


def _progress_sender() -> Send | None:
    """Return what sends a progress notification of this call, or None where the caller gave no progress token."""
    context = get_context()
    meta = context.request_context.meta if context.request_context is not None else None
    if not meta or meta.get("progressToken") is None:
        return None
    return lambda number, message: context.report_progress(number, None, message)
