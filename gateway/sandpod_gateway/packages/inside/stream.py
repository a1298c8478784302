"""The protocol between the gateway and a program in a sandbox.

The input is one line of JSON, the order, then the bytes of all packages. The program writes a dot for every PART bytes
that it has read, so that the gateway never sends more than the sandbox takes. Then it writes its report: one line of
JSON in base64.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import fcntl
import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from typing import IO, Any

PART = 256 * 1024  # bytes

BASE = os.path.join(os.path.expanduser("~"), ".local")
_MIB = 2**20
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class PackageError(Exception):
    """The content of a package is at fault."""


class Source:
    """The bytes of the packages."""

    def __init__(self, raw: IO[bytes]) -> None:
        self._raw = raw
        self._unreported = 0

    def read(self, most: int) -> bytes:
        """Return the next bytes, at least one and at most `most`.

        Raises:
            EOFError: There are none.
        """
        piece = self._raw.read(min(PART, most))
        if not piece:
            raise EOFError("the input ended early")
        dots, self._unreported = divmod(self._unreported + len(piece), PART)
        os.write(1, b"." * dots)
        return piece


@contextlib.contextmanager
def receive(package: dict[str, Any], source: Source) -> Iterator[IO[bytes]]:
    """Give a package as a file in memory, which takes no room where its content goes.

    Raises:
        PackageError: Whatever is raised meanwhile that is no fault of the file system.
    """
    with os.fdopen(os.memfd_create("package"), "w+b") as memory:
        digest = hashlib.sha256()
        left = package["size"]
        while left:
            piece = source.read(left)
            digest.update(piece)
            memory.write(piece)
            left -= len(piece)
        if digest.hexdigest() != package["sha256"]:
            raise EOFError("a package was damaged on its way")
        memory.seek(0)
        try:
            yield memory
        except OSError:
            raise
        except Exception as error:
            raise PackageError(f"{package['name']}: {error}") from error


def require_room(name: str, size: int) -> None:
    """Check that a package of `size` bytes fits.

    Raises:
        OSError: It does not.
    """
    status = os.statvfs(BASE)
    free = status.f_bavail * status.f_frsize
    if size > free:
        raise OSError(errno.ENOSPC, f"{name} needs {-(-size // _MIB)} MiB, and {free // _MIB} MiB are free")


def run(install: Callable[[Any, Source], None], state: Callable[[], dict[str, Any]]) -> None:
    """Carry out an order, unless there is none, and report why that failed, if it did, and what is installed."""
    raw = sys.stdin.buffer
    order = json.loads(raw.readline())
    report = {"failure": _failure(order, Source(raw), install) if order else None, **state()}
    os.write(1, b"\n")
    sys.stdout.write(base64.b64encode(json.dumps(report).encode()).decode())


def _failure(order: Any, source: Source, install: Callable[[Any, Source], None]) -> dict[str, str] | None:
    """Install packages, one program at a time, and return why that failed, if it did."""
    try:
        os.makedirs(BASE, exist_ok=True)
        with open(os.path.join(BASE, ".lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            install(order, source)
    except Exception as error:  # noqa: BLE001 - whatever it is, the gateway hears of it
        system = error if isinstance(error, OSError) else None
        full = system is not None and system.errno in _NO_ROOM
        reason = "package" if isinstance(error, PackageError) else "room" if full else "sandbox"
        text = system.strerror if system is not None else str(error)
        return {"reason": reason, "detail": (text or type(error).__name__)[:200]}
    return None
