"""A server of this program's own, with sandboxes on this machine. It ends with the program, however that ends.

One program has one such server, with a key of its own: other users of the machine can't use it. The child reads a pipe
that only the program writes to: at its end the child ends too.
"""

import atexit
import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
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
_own: "tuple[int, tuple[str, str]] | None" = None  # the process that started it, its address and key


def is_installed() -> bool:
    """Whether this environment has the server."""
    return importlib.util.find_spec("sandpod_gateway") is not None


def address() -> tuple[str, str]:
    """Return address and key of this program's server, which is started unless it is. Raises SandpodError."""
    global _own  # noqa: PLW0603 - one for the program
    with _lock:
        if _own is None or _own[0] != os.getpid():  # a fork has none: its parent's ends with the parent
            _own = os.getpid(), _start()
        return _own[1]


def _start() -> tuple[str, str]:
    if not is_installed():
        step = "Set SANDPOD_URL and SANDPOD_KEY, or run `sandpod login`; or install one here: pip install sandpod."
        raise UnreachableError("unreachable", "There is no server to use.", step)
    command = [sys.executable, "-P", "-c", f"from {__name__} import serve; serve()", *_FLAGS]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    said: list[str] = []
    for line in server.stderr or ():
        said = [*said[-_SAID:], line.rstrip()]
        if _READY in line:
            key = json.loads(server.stdout.readline())["key"] if server.stdout is not None else ""
            drains = [
                threading.Thread(target=_drain, args=[each], daemon=True) for each in (server.stdout, server.stderr)
            ]
            for drain in drains:
                drain.start()
            atexit.register(_end, server, drains, os.getpid())
            return line.rpartition(_READY)[2].strip().removesuffix("/mcp"), key
    server.wait()
    cause = " ".join(said).removeprefix("sandpod: ") or f"it ended with exit code {server.returncode}"
    raise SandpodError("backend_unavailable", "The local server did not start.", cause=cause)


def _drain(stream: IO[str]) -> None:
    """Read on, so that a full pipe never stops the server."""
    with stream:
        for _ in stream:
            pass


def _end(server: "subprocess.Popen[str]", drains: list[threading.Thread], owner: int) -> None:
    if os.getpid() != owner:
        return  # a fork of the program
    if server.stdin is not None:
        server.stdin.close()
    try:
        server.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()
    for drain in drains:
        drain.join(_END_SECONDS)


def serve() -> None:
    """Make a key and become the server, by two commands of the command line, until the program's pipe is closed."""

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
    flags = sys.argv[1:]
    with tempfile.TemporaryDirectory(prefix="sandpod-keys-") as folder:
        file = f"{folder}/keys.yaml"
        sys.argv = ["sandpod", "keys", "create", "--user", "local", "--file", file, "--output", "json"]
        try:
            main()
        except SystemExit as done:
            if done.code:
                raise
        sys.stdout.flush()
        sys.argv = ["sandpod", "serve", "--auth.keys-file", file, *flags]
        main()
