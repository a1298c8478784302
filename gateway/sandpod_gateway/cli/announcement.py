"""A file of the user's that says where this server is, so that `sandpod` and the client find it.

It holds an address and nothing secret. The server holds a lock on it, which the kernel lets go when the server ends in
whatever way: a file without one is of a server that was killed, whose port may be somebody else's by now.
"""

import contextlib
import fcntl
import json
import logging
import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from sandpod_gateway.auth.verifier import RESOURCE_PATH
from sandpod_gateway.settings import Settings

logger = logging.getLogger(__name__)

_ENDING: Final = ".json"


def folder() -> Path:
    """Return where the files of this user's servers are."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "sandpod/servers"


@contextmanager
def announced(settings: Settings) -> Iterator[None]:
    """Say where the server is until the end of the block, if every program of this machine may use it as it is."""
    is_open = settings.backend == "local" and not settings.has_keys and not settings.auth.allow_anonymous
    if not is_open or settings.tls.cert is not None:
        yield
        return
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(_file({"url": settings.url.removesuffix(RESOURCE_PATH), "host": socket.gethostname()}))
        except (OSError, RuntimeError) as error:  # the latter: there is no home
            logger.info("The command line will not find this server by itself: %s", error)
        yield


@contextmanager
def _file(content: dict[str, str]) -> Iterator[None]:
    place = folder()
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    for left in place.iterdir():
        _remove_unused(left)
    with tempfile.NamedTemporaryFile("w", dir=place, prefix=".", delete=False) as file:  # of mode 0600
        path = Path(file.name).with_name(f"{os.getpid()}{_ENDING}")
        fcntl.flock(file.fileno(), fcntl.LOCK_EX)
        json.dump(content, file)
        file.flush()
        # Named only now: whoever reads it finds it whole and locked.
        Path(file.name).rename(path)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def _remove_unused(path: Path) -> None:
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()
        finally:
            os.close(descriptor)
