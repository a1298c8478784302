"""What the programs share; it is sent with each of them."""

import errno
import json
import os
import sys
from typing import Any, Callable

DONE = "done"
LINES = 200_000  # characters that are read of one file


def attempt(act: Callable[..., Any], *arguments: Any) -> str:
    """Return `done`, or the name of the error by which it was refused."""
    try:
        act(*arguments)
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, type(error).__name__)
    except Exception as error:
        return type(error).__name__
    return DONE


def opened(path: str, flags: int) -> str:
    """Return what comes of opening a file, which is closed at once; it never waits for the other end of a pipe."""
    return attempt(lambda: os.close(os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)))


def text_of(path: str) -> str:
    """Return the beginning of a file; empty where it can't be read."""
    try:
        with open(path, "rb") as file:
            return file.read(LINES).decode("utf-8", "replace")
    except OSError:
        return ""


def in_child(act: Callable[[], str]) -> str:
    """Return what a function says in a process of its own, which may end in any way."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(writer, act().encode()[:1000])
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        said = pipe.read(1000).decode("utf-8", "replace")
    _, status = os.waitpid(pid, 0)
    return said or ("signal %d" % os.WTERMSIG(status) if os.WIFSIGNALED(status) else "nothing")


def arguments() -> Any:
    """Return the program's argument."""
    return json.loads(sys.argv[1]) if len(sys.argv) > 1 else {}


def tell(facts: Any) -> None:
    """Print the facts: the last line of the output."""
    sys.stdout.write("\n" + json.dumps(facts) + "\n")
    sys.stdout.flush()
