"""A sandbox without asyncio: each method runs the one of `AsyncSandbox` to its end."""

from collections.abc import Callable, Coroutine, Iterator
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, Unpack, overload

from sandpod.parts import AsyncContexts, AsyncFiles, AsyncPackages
from sandpod.results import Output, RunResult
from sandpod.runs import AsyncRun
from sandpod.sandbox import AsyncSandbox, Options, Sandboxes, Server
from sandpod.transport import BlockingTransport, Transport, finish, steps

_P = ParamSpec("_P")
_T = TypeVar("_T")
_R = TypeVar("_R")


@overload
def _blocking(
    method: Callable[Concatenate[Any, _P], Coroutine[Any, Any, _T]],
) -> Callable[Concatenate[Any, _P], _T]: ...


@overload
def _blocking(
    method: Callable[Concatenate[Any, _P], Coroutine[Any, Any, _T]], made: Callable[[_T], _R]
) -> Callable[Concatenate[Any, _P], _R]: ...


def _blocking(method: Callable[..., Any], made: Callable[[Any], Any] | None = None) -> Callable[..., Any]:
    """Return the method of an object that has its asynchronous twin as `_twin`; `made` makes of what it returns."""

    @wraps(method)
    def call(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        result = finish(method(self._twin, *args, **kwargs))
        return result if made is None else made(result)

    return call


class Files:
    """The files of a sandbox. Paths are relative to its workspace."""

    def __init__(self, twin: AsyncFiles) -> None:
        self._twin = twin

    read = _blocking(AsyncFiles.read)
    read_text = _blocking(AsyncFiles.read_text)
    write = _blocking(AsyncFiles.write)
    list = _blocking(AsyncFiles.list)
    upload = _blocking(AsyncFiles.upload)
    download = _blocking(AsyncFiles.download)
    make_directory = _blocking(AsyncFiles.make_directory)
    delete = _blocking(AsyncFiles.delete)
    move = _blocking(AsyncFiles.move)


class Contexts:
    """The contexts of a sandbox: processes that keep variables between runs."""

    def __init__(self, twin: AsyncContexts) -> None:
        self._twin = twin

    list = _blocking(AsyncContexts.list)
    restart = _blocking(AsyncContexts.restart)


class Packages:
    """The packages of a sandbox. It needs no network: the server fetches them."""

    def __init__(self, twin: AsyncPackages) -> None:
        self._twin = twin

    install = _blocking(AsyncPackages.install)
    list = _blocking(AsyncPackages.list)


class Run:
    """A run that was started; it ends with its program, its timeout or `stop`."""

    def __init__(self, twin: AsyncRun) -> None:
        self._twin = twin

    @property
    def run_id(self) -> str:
        """Its name."""
        return self._twin.run_id

    def events(self, *, cursor: int = 0) -> Iterator[Output | RunResult]:
        """Yield output as it comes, then the result."""
        return steps(self._twin.events(cursor=cursor))

    wait = _blocking(AsyncRun.wait)
    stop = _blocking(AsyncRun.stop)


class _Twin(AsyncSandbox):
    """A sandbox whose coroutines never wait."""

    @staticmethod
    def _transport() -> Transport:
        return BlockingTransport()


class Sandbox:
    r"""A sandbox: made at its first use, and closed at the end of its `with`.

    Without an address it is at the server of SANDPOD_URL, else at your profile's, else at one that runs here. If
    there is none, it starts one for itself.

    >>> with Sandbox() as sandbox:
    ...     sandbox.run("1 + 1").result
    '2'

    A program's output comes whole, or as it is written. A program that fails is a result, too.

    >>> sandbox = Sandbox()
    >>> sandbox.run("for n in range(3): print(n)", on_stdout=lambda text: None).stdout
    '0\n1\n2\n'
    >>> failed = sandbox.run("1 / 0")
    >>> failed.outcome, failed.stderr.splitlines()[-1]
    ('error', 'ZeroDivisionError: division by zero')
    >>> sandbox.run("cat; exit 3", language="shell", input="given").exit_code
    3

    Variables are kept from run to run, unless `context` is another name, or None for a new process.

    >>> sandbox.run("x = 20").ok, sandbox.run("x + 1").result
    (True, '21')
    >>> sandbox.run("x", context=None).outcome
    'error'
    >>> [each.name for each in sandbox.contexts.list()]
    ['python']

    Files are written and read whole; `upload` and `download` take files of any size.

    >>> sandbox.files.write("notes/a.txt", "a note")
    >>> sandbox.files.read_text("notes/a.txt")
    'a note'
    >>> sandbox.files.move("notes/a.txt", "b.txt")
    >>> [(each.path, each.kind) for each in sandbox.files.list()]
    [('b.txt', 'file'), ('notes', 'directory')]

    A run in the background is followed, or waited for, or stopped.

    >>> run = sandbox.start("print('it works')")
    >>> [event.text for event in run.events() if isinstance(event, Output)]
    ['it works\n']
    >>> run.wait().outcome
    'ok'

    What is refused is an error, which says what to do.

    >>> sandbox.run("1", language="cobol")
    Traceback (most recent call last):
    ...
    sandpod.errors.InvalidArgumentError: This sandbox has no cobol. It has: ...
    >>> sandbox.close()
    """

    def __init__(self, name: str | None = None, **options: Unpack[Options]) -> None:
        self._begin(_Twin(name, **options))

    def _begin(self, twin: AsyncSandbox) -> None:
        self._twin = twin
        self.files = Files(twin.files)
        self.contexts = Contexts(twin.contexts)
        self.packages = Packages(twin.packages)

    @classmethod
    def connect(cls, handle: str, **server: Unpack[Server]) -> Self:
        """Return a sandbox that exists, by its handle or name; `default` is your default one.

        Leaving its `with` does not close it.
        """
        sandbox = cls.__new__(cls)
        sandbox._begin(  # noqa: SLF001 - this class's own
            finish(_Twin.connect(handle, **server))
        )
        return sandbox

    @staticmethod
    def list(**server: Unpack[Server]) -> Sandboxes:
        """Return your sandboxes, oldest first."""
        return finish(_Twin.list(**server))

    @property
    def handle(self) -> str | None:
        """The server's name for it, once it is made."""
        return self._twin.handle

    def __enter__(self) -> Self:
        self.open()
        return self

    __exit__ = _blocking(AsyncSandbox.__aexit__)
    open = _blocking(AsyncSandbox.open)
    close = _blocking(AsyncSandbox.close)
    info = _blocking(AsyncSandbox.info)
    run = _blocking(AsyncSandbox.run)
    runs = _blocking(AsyncSandbox.runs)

    start = _blocking(AsyncSandbox.start, Run)
    get_run = _blocking(AsyncSandbox.get_run, Run)
