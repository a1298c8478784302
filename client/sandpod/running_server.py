"""A server of this user's that runs on this machine already, as `sandpod serve` says in a file.

It holds a lock on the file as long as it lives: a file without one says nothing, since its port may be a stranger's by
now. Such a server needs no key, and none is sent to it.
"""

import json
import os
import socket
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

try:
    import fcntl
except ImportError:  # pragma: no cover - Windows, which has no local server either
    fcntl = None  # type: ignore[assignment]

_MAX_FILES: Final = 100
_MAX_BYTES: Final = 4096
_LOOPBACK: Final = {"127.0.0.1", "::1", "localhost"}


def is_loopback(url: str) -> bool:
    """Return whether an address is of this machine alone."""
    return urlsplit(url).hostname in _LOOPBACK


def folder() -> Path:
    """Return where servers say that they run."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "sandpod/servers"


def find() -> str | None:
    """Return the address of the server that was started last, or None: none runs."""
    if fcntl is None:
        return None
    with suppress(OSError, RuntimeError):  # the latter: there is no home
        place = folder()
        if not _is_own(place.lstat(), stat.S_ISDIR):
            return None
        files = sorted(place.glob("*.json"), key=lambda path: path.lstat().st_mtime, reverse=True)
        for path in files[:_MAX_FILES]:
            if (url := _read(path)) is not None:
                return url
    return None


def _read(path: Path) -> str | None:
    """Return the address in a file that a server of this user's holds."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    with open(descriptor, "rb") as file:  # noqa: PTH123 - it is open already
        if not _is_own(os.fstat(descriptor), stat.S_ISREG):
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:  # its server lives
            return _address(file.read(_MAX_BYTES))
        except OSError:
            return None
    return None


def _address(text: bytes) -> str | None:
    try:
        found = json.loads(text)
        url, host = str(found["url"]), found["host"]
        return url if host == socket.gethostname() and is_loopback(url) else None
    except (ValueError, KeyError, TypeError):
        return None


def _is_own(status: os.stat_result, is_kind: Any) -> bool:
    """Whether it is this user's, and nobody else can change it."""
    return bool(is_kind(status.st_mode)) and status.st_uid == os.getuid() and not status.st_mode & 0o022
