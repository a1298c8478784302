"""Runs one program through the runner, as `kubectl sandpod run` does: its code comes on standard input.

It is a stream like the gateway's, so the program has the same limits and counts as use of the sandbox.
"""

import os
import secrets
import signal
import socket
import sys

from sandpod_runner.ipc.descriptors import write_all
from sandpod_runner.protocol import messages
from sandpod_runner.protocol.frames import MAX_PAYLOAD, Decoder, Frame, FrameError, encode

_REFUSED = 2
_OUTPUT_LIMIT = 2**31
_PIECE = 256 * 1024
_TIMEOUT = 3600
_STREAMS = {"stdout": 1, "stderr": 2}


def run(language: str, args: list[str]) -> int:
    """Run what standard input says, and return the exit code: the program's, 128 and a signal's number, or 2."""
    code = sys.stdin.buffer.read(MAX_PAYLOAD + 1)
    what = {"t": "run", "run": f"run-{secrets.token_hex(8)}", "language": language, "args": args}
    limits = {"timeout": _TIMEOUT, "output_limit": _OUTPUT_LIMIT}
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as control:  # the stream lasts as long as this is open
            control.connect(messages.SOCKET)
            (read, write_fd), (read_fd, write) = os.pipe(), os.pipe()
            socket.send_fds(control, [messages.HANDED_OVER], [read, write])
            os.close(read)
            os.close(write)
            write_all(write_fd, encode({"t": "hello", "version": messages.VERSION}) + encode({**what, **limits}, code))
            decoder = Decoder()
            while data := os.read(read_fd, _PIECE):
                for frame in decoder.feed(data):
                    status = _take(frame)
                    if status is not None:
                        return status
    except FrameError as error:
        return _say(f"The code can't be sent: {error}.")
    except OSError as error:
        return _say(f"The runner can't be reached: {error.strerror}.")
    return _say("The runner has ended.")


def _take(frame: Frame) -> int | None:
    """Pass output on; return the exit code with the end."""
    if frame.kind == "out":
        write_all(_STREAMS[frame.header["stream"]], frame.payload)
    if frame.kind == "error":
        return _say(frame.header["message"])
    if frame.kind != "end":
        return None
    if frame.header["outcome"] not in {"ok", "error"}:
        _say(f"The run has ended: {frame.header['outcome']}. {frame.header['detail'] or ''}".rstrip())
    if frame.header["exit_code"] is not None:
        return int(frame.header["exit_code"])
    return 128 + getattr(signal, frame.header["signal"] or "SIGKILL", signal.SIGKILL)


def _say(sentence: str) -> int:
    sys.stderr.write(f"{sentence}\n")
    return _REFUSED
