"""An address that answers nothing, as behind a network policy. Called by the tests of the runner's probe."""

import contextlib
import socket
from collections.abc import Iterator


@contextlib.contextmanager
def silent() -> Iterator[socket.socket]:
    """Give a listener whose queue is full, so that it drops what comes; it answers once somebody accepts."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        while True:
            waiting = stack.enter_context(socket.socket())
            waiting.settimeout(0.1)
            try:
                waiting.connect(listener.getsockname())
            except TimeoutError:
                break
        yield listener
