"""Joins its own standard streams to the runner's socket, and the check that the runner answers.

The gateway starts it in the pod by `exec` and keeps it; the pod's startup probe runs `ready`. It starts with every
stream, so it imports next to nothing; it understands nothing of what passes.
"""

import _socket
import _thread
import os

from sandpod_runner import protocol

_PIECE = 64 * 1024
_READY_WAIT = 5.0


def attach() -> int:
    """Pass bytes both ways until one side ends. Each direction waits for its reader, so nothing piles up here."""
    try:
        stream = _connect()
    except OSError as error:
        os.write(2, f"The runner can't be reached: {error.strerror}.\n".encode())
        return 1
    _thread.start_new_thread(_to_stdout, (stream,))
    try:
        while data := os.read(0, _PIECE):
            stream.sendall(data)
        stream.shutdown(_socket.SHUT_WR)
    except OSError:
        return 0
    # What the runner still has to say comes out until it closes; the other direction then ends this process.
    never = _thread.allocate_lock()
    with never:
        never.acquire()
    return 0


def ready() -> int:
    """Tell whether the runner answers: 0 if it does."""
    try:
        stream = _connect()
        stream.settimeout(_READY_WAIT)
        return 0 if stream.recv(_PIECE) else 1
    except OSError:
        return 1


def _connect() -> "_socket.socket":
    stream = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    stream.connect(protocol.SOCKET)
    return stream


def _to_stdout(stream: "_socket.socket") -> None:
    try:
        while data := stream.recv(_PIECE):
            view = memoryview(data)
            while view:
                view = view[os.write(1, view) :]
    except OSError:
        pass
    os._exit(0)
