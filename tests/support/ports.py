"""A port for a server that must know it before it listens."""

import random
import socket
import time
from typing import Final

_RANGE: Final = (12_000, 30_000)


def free_port(*addresses: str) -> int:
    """Return a port that nobody listens on at these addresses of this machine, by default at 127.0.0.1.

    It is none of those that the kernel gives to connections, which take one at any moment.
    """
    while True:
        port = random.randrange(*_RANGE)  # noqa: S311 - no secret
        try:
            for address in addresses or ("127.0.0.1",):
                socket.create_server((address, port)).close()
        except OSError:
            continue
        return port


def await_open(host: str, port: int, *, within: float = 30.0) -> None:
    """Return once something takes connections there. Raises OSError: nothing does within so many seconds."""
    end = time.monotonic() + within
    while True:
        try:
            with socket.create_connection((host, port), timeout=1):
                return
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.02)
