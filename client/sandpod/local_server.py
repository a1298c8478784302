"""A server of this program's own, with sandboxes on this machine. It ends with the program, however that ends.

One program has one such server. The child reads a pipe that only the program writes to: at its end the child ends too.
"""

import atexit
import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
import threading
from typing import IO, TYPE_CHECKING, Final

from sandpod.errors import SandpodError, UnreachableError

if TYPE_CHECKING:
    from collections.abc import Callable

_READY: Final = "is ready: "  # before the address, in what the server says
_SAID: Final = 20  # lines of it that are kept for the error when it does not start
_END_SECONDS: Final = 15.0
_FLAGS: Final = ("--backend", "local", "--local.warm", "0", "--host", "127.0.0.1", "--port", "0")

_lock = threading.Lock()
_own: "tuple[int, str] | None" = None  # the process that started it, and its address


def is_installed() -> bool:
    """Whether this environment has the server."""
    return importlib.util.find_spec("sandpod_gateway") is not None


def url() -> str:
    """Return the address of this program's server, which is started unless it is. Raises UnreachableError."""
    global _own  # noqa: PLW0603 - one for the program
    with _lock:
        if _own is None or _own[0] != os.getpid():  # a fork has none: its parent's ends with the parent
            _own = os.getpid(), _start()
        return _own[1]


def _start() -> str:
    if not is_installed():
        step = "Set SANDPOD_URL and SANDPOD_KEY, or run `sandpod login`; or install one here: pip install sandpod."
        raise UnreachableError("unreachable", "There is no server to use.", step)
    command = [sys.executable, "-P", "-m", "sandpod.local_server", *_FLAGS]
    server = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    said: list[str] = []
    for line in server.stderr or ():
        said = [*said[-_SAID:], line.rstrip()]
        if _READY in line:
            atexit.register(_end, server, os.getpid())
            threading.Thread(target=_drain, args=[server.stderr], daemon=True).start()
            return line.rpartition(_READY)[2].strip().removesuffix("/mcp")
    server.wait()
    cause = " ".join(said).removeprefix("sandpod: ") or f"it ended with exit code {server.returncode}"
    raise SandpodError("backend_unavailable", "The local server did not start.", cause=cause)


def _drain(stderr: IO[str]) -> None:
    with contextlib.suppress(ValueError):  # closed
        for _ in stderr:
            pass


def _end(server: "subprocess.Popen[str]", owner: int) -> None:
    if os.getpid() != owner:
        return  # a fork of the program
    if server.stdin is not None:
        server.stdin.close()
    try:
        server.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


def _serve() -> None:
    """Become the server: `serve` of the command line, until the program's end of the pipe is closed."""

    def watch() -> None:
        with contextlib.suppress(OSError):
            while os.read(0, 4096):
                pass
        os.kill(os.getpid(), signal.SIGTERM)

    # Ctrl-C reaches the whole terminal's programs: the server ends after its program has.
    os.setpgid(0, 0)
    threading.Thread(target=watch, daemon=True).start()
    from importlib.metadata import entry_points  # noqa: PLC0415

    [command] = entry_points(group="sandpod.commands", name="serve")
    main: Callable[[], None] = command.load()
    sys.argv = ["sandpod", "serve", *sys.argv[1:]]
    main()


if __name__ == "__main__":
    _serve()
