"""A sandbox for asyncio. What is written here is all of the client: `Sandbox` runs it without a loop."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any, Final, Self, TypedDict, Unpack

from sandpod import endpoint
from sandpod.api import Api, new_key
from sandpod.errors import SandpodError
from sandpod.parts import AsyncContexts, AsyncFiles, AsyncPackages, Place
from sandpod.results import RunInfo, RunResult, SandboxInfo, parsed
from sandpod.runs import AsyncRun, Show
from sandpod.transport import AsyncTransport, Transport

Runs = list[RunInfo]
Sandboxes = list[SandboxInfo]

OWN: Final = "default"
# Languages that have contexts, by all names that servers know them by.
_IN_CONTEXTS: Final = {
    **dict.fromkeys(("python", "py", "python3"), "python"),
    **dict.fromkeys(("javascript", "js", "node", "node.js", "nodejs", "typescript", "ts"), "javascript"),
}


class Server(TypedDict, total=False):
    """Which server is used; without an address that of SANDPOD_URL, else a profile's, else one that is here."""

    url: str | None  # the address
    key: str | None  # an API key or token; default: SANDPOD_KEY, or the profile's
    profile: str | None  # a profile of the profile file, or `local` for a server that is started here


class Options(Server, total=False):
    """How a sandbox is made."""

    template: str | None  # that it is made from
    network: str | None  # a network profile of the template; without one there is no network
    ttl: int | None  # seconds until it ends, used or not
    idle_timeout: int | None  # seconds without use until it ends
    secrets: Mapping[str, Any] | None  # environment variables of its runs, which are masked in output


class AsyncSandbox:
    """A sandbox: `async with AsyncSandbox() as sandbox: ...`; see `Sandbox`, whose methods are these.

    Args:
        name: Yours for it: the same name is the same sandbox, for as long as it lives.
        options: template, network, ttl, idle_timeout, secrets, and which server: url, key, profile.
    """

    def __init__(self, name: str | None = None, **options: Unpack[Options]) -> None:
        lifetime = {each: value for each in ("ttl", "idle_timeout") if (value := options.get(each)) is not None}
        wanted = {each: options.get(each) for each in ("template", "network", "secrets")}
        server = Server(url=options.get("url"), key=options.get("key"), profile=options.get("profile"))
        self._begin(_api(self._transport(), server), None, {**wanted, "name": name, "lifetime": lifetime or None})

    @staticmethod
    def _transport() -> Transport:
        return AsyncTransport()

    def _begin(self, api: Api, handle: str | None, wanted: dict[str, Any]) -> None:
        self._api = api
        self._is_own = handle is None
        self._place = Place(api, handle, wanted)
        self.files = AsyncFiles(self._place)
        self.contexts = AsyncContexts(self._place)
        self.packages = AsyncPackages(self._place)

    @classmethod
    async def connect(cls, handle: str, **server: Unpack[Server]) -> Self:
        """Return a sandbox that exists, by its handle or name; `default` is your default one.

        Leaving its `with` does not close it.
        """
        sandbox = cls.__new__(cls)
        sandbox._begin(_api(cls._transport(), server), handle, {})  # noqa: SLF001 - this class's own
        if handle != "default":  # which is made when it is used
            await sandbox.info()
        return sandbox

    @classmethod
    async def list(cls, **server: Unpack[Server]) -> Sandboxes:
        """Return your sandboxes, oldest first."""
        api = _api(cls._transport(), server)
        try:
            return [parsed(SandboxInfo, each) for each in await api.pages("/sandboxes", "sandboxes")]
        finally:
            await api.close()

    @property
    def handle(self) -> str | None:
        """The server's name for it, once it is made."""
        return self._place.handle

    async def open(self) -> str:
        """Make the sandbox unless that is done, and return its handle. Whatever else is called does so too."""
        return await self._place.open()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, error: object = None, *_: object) -> None:
        if not self._is_own:
            await self._api.close()
            return
        # What went wrong before says more than that closing fails as well.
        with nullcontext() if error is None else suppress(SandpodError):
            await self.close()

    async def close(self) -> None:
        """End the sandbox: its processes are stopped and its files deleted."""
        try:
            await self._place.delete()
        finally:
            await self._api.close()

    async def info(self) -> SandboxInfo:
        """Return its status, age, packages and expiry."""
        return parsed(SandboxInfo, await self._api.call("GET", await self._place.path()))

    async def run(
        self,
        code: str,
        *,
        language: str = "python",
        context: str | None = OWN,
        on_stdout: Show | None = None,
        on_stderr: Show | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - the program's, enforced in its sandbox
        env: Mapping[str, str] | None = None,
        input: str | None = None,  # noqa: A002 - as of subprocess.run
        args: Sequence[str] | None = None,
        cwd: str | None = None,
    ) -> RunResult:
        """Run a program and return what it did. A program that fails is a result, too.

        Args:
            code: The program, or the shell command.
            language: python, javascript, shell, or one that the template adds.
            context: The process that keeps variables between runs; by default there is one for Python and one for
                JavaScript, each of the language's name. None is a new process, which other languages always get.
            on_stdout: Gets output as it comes.
            on_stderr: Gets error output as it comes.
            timeout: Seconds until the program is stopped.
            env: Environment variables.
            input: Its standard input.
            args: Its arguments.
            cwd: The folder that it runs in, relative to the workspace.
        """
        run = await self.start(
            code, language=language, context=context, timeout=timeout, env=env, input=input, args=args, cwd=cwd
        )
        try:
            return await run.wait(on_stdout=on_stdout, on_stderr=on_stderr)
        except BaseException:  # nobody waits for it any more
            with suppress(SandpodError):
                await run.stop()
            raise

    async def start(
        self,
        code: str,
        *,
        language: str = "python",
        context: str | None = OWN,
        timeout: float | None = None,  # noqa: ASYNC109 - as above
        env: Mapping[str, str] | None = None,
        input: str | None = None,  # noqa: A002 - as above
        args: Sequence[str] | None = None,
        cwd: str | None = None,
    ) -> AsyncRun:
        """Start a program in the background; see `run`. Set a timeout that is long enough for the whole program."""
        own = _IN_CONTEXTS.get(language.strip().lower())
        body = {
            "code": code,
            "language": language,
            "sandbox": None if (handle := await self.open()) == "default" else handle,
            "context": own if context == OWN else context,
            "timeout": timeout,
            "env": env and dict(env),
            "stdin": input,
            "args": args and [*args],
            "cwd": cwd,
        }
        headers = {"Prefer": "respond-async", "Idempotency-Key": new_key()}
        return AsyncRun(self._api, (await self._api.call("POST", "/runs", body, headers=headers))["run_id"])

    async def get_run(self, run_id: str) -> AsyncRun:
        """Return a run that was started, by its name."""
        return AsyncRun(self._api, run_id)

    async def runs(self) -> Runs:
        """Return the runs that go on, and ended ones that are still remembered."""
        return [parsed(RunInfo, each) for each in await self._api.pages(await self._place.path("/runs"), "runs")]


def _api(http: Transport, server: Server) -> Api:
    return Api(http, partial(endpoint.find, server.get("url"), server.get("key"), server.get("profile")))
