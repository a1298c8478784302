"""A port for a server that must know it before it listens."""

import socket
import time


def free_port(address: str = "127.0.0.1") -> int:
    """Return a port of this machine's address that nobody listens on."""
    with socket.create_server((address, 0)) as listener:
        port: int = listener.getsockname()[1]
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
