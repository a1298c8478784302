"""The protocol between the gateway and a program in a sandbox.

The first line of the input says whether packages may follow. If so, the program waits for its turn in this sandbox.
It writes a report, and reads a line of JSON: the order, or null. After an order come the
bytes of all packages. The program writes a dot for every PART bytes that it has read, so that the gateway never sends
more than the sandbox takes, and then another report. Unless that tells of a failure, the last line of the input is the
result, which the program writes as it is. So its last line says how the installation went, to any gateway that asks.

Reports and the result are lines of JSON in base64.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import fcntl
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from typing import IO, Any

PART = 256 * 1024  # bytes

BASE = os.path.join(os.path.expanduser("~"), ".local")
STAGE = os.path.join(BASE, ".stage")
BLOCK = 4096  # bytes, the least that a file or a folder takes
_UNIT = 512  # bytes, of `st_blocks`
_MIB = 2**20
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class PackageError(Exception):
    """The content of a package is at fault."""


class Room:
    """What packages may still take of BASE, which has `limit` bytes, or all of its file system for None."""

    def __init__(self, limit: int | None) -> None:
        status = os.statvfs(BASE)
        self._free = status.f_bavail * status.f_frsize
        if limit is not None:
            self._free = max(0, min(self._free, limit - _used()))

    def take(self, name: str, files: Mapping[str, int]) -> None:
        """Set aside what a package takes, whose files have these sizes by path. Raises OSError: it does not fit."""
        folders = {os.path.dirname(path) for path in files}
        # Python compiles its modules once they are used, to files of about their size.
        sizes = [size * 2 if path.endswith(".py") else size for path, size in files.items()]
        need = sum(-(-size // BLOCK) for size in sizes) * BLOCK + len(folders) * BLOCK
        if need > self._free:
            detail = f"{name} needs {-(-need // _MIB)} MiB, and {self._free // _MIB} MiB are free"
            raise OSError(errno.ENOSPC, detail)
        self._free -= need


def _used() -> int:
    total = 0
    for folder, _, names in os.walk(BASE):
        for path in (folder, *(os.path.join(folder, name) for name in names)):
            with contextlib.suppress(OSError):
                total += max(os.lstat(path).st_blocks * _UNIT, BLOCK)
    return total


def run(program: Any) -> None:
    """Report, and carry out the order in the input, if any.

    `program.state()` is what is reported; `program.unpack(package, file, folder, room)` writes one of the order's
    packages, if there is room for it, and `program.install(order, folders)` puts all of them in place after that, so
    that all are installed or none.
    """
    raw = sys.stdin.buffer
    if not json.loads(raw.readline()):
        _report(program)
        return
    try:
        os.makedirs(BASE, exist_ok=True)
        with open(os.path.join(BASE, ".lock"), "w") as lock:  # one program at a time
            fcntl.flock(lock, fcntl.LOCK_EX)
            _report(program)
            order = json.loads(raw.readline())
            if order:
                _install(order, raw, program)
                _report(program)
    except Exception as error:  # noqa: BLE001 - it is reported to the gateway, whatever it is
        _report(program, _described(error))
    else:
        _write(raw.readline())


def _report(program: Any, failure: dict[str, str] | None = None) -> None:
    _write(base64.b64encode(json.dumps({"failure": failure, **program.state()}).encode()))


def _write(line: bytes) -> None:
    sys.stdout.buffer.write(b"\n%b\n" % line.strip())
    sys.stdout.buffer.flush()


def _install(order: Any, raw: IO[bytes], program: Any) -> None:
    shutil.rmtree(STAGE, ignore_errors=True)
    try:
        folders: list[str] = []
        room = Room(order.get("room"))
        for package, memory in _received(order["packages"], raw):
            folders.append(os.path.join(STAGE, str(len(folders))))
            try:
                program.unpack(package, memory, folders[-1], room)
            except OSError:
                raise
            except Exception as error:
                raise PackageError(f"{package['name']}: {error}") from error
        program.install(order, folders)
    finally:
        shutil.rmtree(STAGE, ignore_errors=True)


def _received(packages: list[Any], raw: IO[bytes]) -> Iterator[tuple[Any, IO[bytes]]]:
    """Yield packages, each with its bytes as a file in memory, which takes no disk space."""
    total = 0
    for package in packages:
        with os.fdopen(os.memfd_create("package"), "w+b") as memory:
            digest, end = hashlib.sha256(), total + package["size"]
            while total < end:
                piece = raw.read(min(PART, end - total))
                if not piece:
                    raise EOFError("the input ended early")
                digest.update(piece)
                memory.write(piece)
                os.write(1, b"." * ((total + len(piece)) // PART - total // PART))
                total += len(piece)
            if digest.hexdigest() != package["sha256"]:
                raise EOFError("a package was damaged on its way")
            memory.seek(0)
            yield package, memory


def _described(error: Exception) -> dict[str, str]:
    full = isinstance(error, OSError) and error.errno in _NO_ROOM
    reason = "package" if isinstance(error, PackageError) else "room" if full else "sandbox"
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return {"reason": reason, "detail": text[:200]}
