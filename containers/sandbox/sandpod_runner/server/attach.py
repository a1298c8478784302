"""Hands its own standard streams to the runner, and the check that the runner answers.

The gateway starts it in the pod by `exec` and keeps it; the pod's startup probe runs `ready`. It starts with every
stream and stays as long, so it imports next to nothing, and what waits in the end is a shell, a tenth of its size.
"""

import _socket
import os
import sys
import time

from sandpod_runner.protocol import messages

READY_WAIT = 4.0  # seconds; less than the startup probe's timeout
_ANSWER_WAIT = 0.5
_LOOK = 0.02
_WAIT = "read -r _; exit 0"
_SHELL = "/bin/sh"


def attach() -> int:
    """Pass the streams to the runner, and wait until it is done with them."""
    try:
        stream = _connect()
        rights = b"".join(fd.to_bytes(4, sys.byteorder) for fd in (0, 1))
        stream.sendmsg([messages.HANDED_OVER], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights)])
    except OSError as error:
        os.write(2, f"The runner can't be reached: {error.strerror}.\n".encode())
        return 1
    # They are the runner's alone from here on: the exec has ended for its caller when the runner closes them.
    for fd in (0, 1):
        os.dup2(stream.fileno(), fd)
    try:
        os.execve(_SHELL, ["sh", "-c", _WAIT], {})  # noqa: S606 - a fixed command
    except OSError:
        stream.recv(1)  # an image without a shell
    return 0


def ready() -> int:
    """Return whether the runner answers, which may just be starting: 0 if it does."""
    try:
        deadline = time.monotonic() + READY_WAIT
        stream = _connect(READY_WAIT)
        stream.settimeout(max(_ANSWER_WAIT, deadline - time.monotonic()))  # on a busy machine an answer takes a while
        stream.sendall(messages.READY)
        return 0 if stream.recv(len(messages.READY)) == messages.READY else 1
    except OSError:
        return 1


def _connect(wait: float = 0.0) -> "_socket.socket":
    deadline = time.monotonic() + wait
    while True:
        stream = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        try:
            stream.connect(messages.SOCKET)
        except ConnectionRefusedError:
            stream.close()
            if time.monotonic() >= deadline:
                raise
            time.sleep(_LOOK)
        else:
            return stream
