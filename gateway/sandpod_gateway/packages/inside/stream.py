"""How a program in a sandbox takes packages from the gateway and answers it: `wheels.py` and `npm.py`.

Run inside sandboxes, put there by `sandbox.py`; the gateway never runs it. The input is one line of JSON, the order,
then the bytes of all packages. A dot is written for each PART bytes that were read, so that the gateway never sends
more than the sandbox takes; then one line, JSON in base64, that says how it ended.
"""

import base64
import errno
import fcntl
import hashlib
import json
import os
import sys
from collections.abc import Callable
from typing import IO, Any, BinaryIO, cast

PART = 256 * 1024

BASE = os.path.join(os.path.expanduser("~"), ".local")


class Source:
    """The wheels' bytes, each part of which is told when it was read."""

    def __init__(self, raw: BinaryIO) -> None:
        self._raw = raw
        self._untold = 0

    def read(self, most: int) -> bytes:
        """Return some bytes, at most so many."""
        piece = self._raw.read(min(PART, most))
        if not piece:
            raise EOFError("the packages did not come whole")
        self._untold += len(piece)
        while self._untold >= PART:
            self._untold -= PART
            os.write(1, b".")
        return piece


def receive(package: dict[str, Any], source: Source) -> IO[bytes]:
    """Return a package as a file in memory, which takes no room where its content is to be."""
    memory = os.fdopen(os.memfd_create("package"), "w+b")
    digest = hashlib.sha256()
    left = package["size"]
    while left:
        piece = source.read(left)
        digest.update(piece)
        memory.write(piece)
        left -= len(piece)
    if digest.hexdigest() != package["sha256"]:
        raise ValueError("a package came damaged")
    memory.seek(0)
    return memory


def _carry_out(order: Any, source: Source, install: Callable[[Any, Source], None]) -> str | None:
    """Install packages, one program at a time, and return what went wrong, if anything."""
    try:
        os.makedirs(BASE, exist_ok=True)
        with open(os.path.join(BASE, ".lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            install(order, source)
    except OSError as error:
        full = error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
        return "full" if full else f"{type(error).__name__}: {error.strerror}"
    except Exception as error:  # noqa: BLE001 - whatever a package holds, it is told
        return f"{type(error).__name__}: {error}"[:200]
    return None


def main(install: Callable[[Any, Source], None], state: Callable[[], dict[str, Any]]) -> None:
    """Read what to do, do it, and tell how that went.

    Args:
        install: Carries out an order that is not empty.
        state: Tells what is there afterwards.
    """
    raw = cast("BinaryIO", sys.stdin.buffer)
    order = json.loads(raw.readline())
    failure = _carry_out(order, Source(raw), install) if order else None
    answer = {"failure": failure, **state()}
    os.write(1, b"\n")
    sys.stdout.write(base64.b64encode(json.dumps(answer).encode()).decode())
