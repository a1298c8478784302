"""Speaks telnet on one connection. Run in contexts of sandboxes by `telnet.py`, as text: the order comes as JSON input.

The connection is the context's own and stays until that ends. What callers say is data here and never code.
"""

import json
import socket
import sys
import time
from typing import Any

IAC, DONT, DO, WONT, WILL, SB, SE = 255, 254, 253, 252, 251, 250, 240
QUIET = 0.2  # seconds without a byte after which an answer is taken to be whole


class Line:
    """A connection: text in and out, every option of the protocol declined."""

    def __init__(self, host: str, port: int, seconds: float) -> None:
        self.socket = socket.create_connection((host, port), seconds)
        self.raw = b""
        self.text = b""
        self.ended = False

    def send(self, command: str, seconds: float) -> None:
        """Send a line."""
        self.socket.settimeout(seconds)
        self.socket.sendall(command.encode() + b"\r\n")

    def read(self, limit: int, seconds: float) -> str:
        """Return what comes until it is quiet, at most `limit` bytes; empty when nothing does in that time."""
        end = time.monotonic() + seconds
        while len(self.text) < limit and not self.ended:
            left = end - time.monotonic()
            if left <= 0:
                break
            self.socket.settimeout(min(left, QUIET) if self.text else left)
            try:
                data = self.socket.recv(4096)
            except TimeoutError:
                break
            except ConnectionError:
                data = b""
            self.ended = not data
            self.raw += data
            self.decline()
        part, self.text = self.text[:limit], self.text[limit:]
        return part.decode("utf-8", "replace")

    def decline(self) -> None:
        """Move text from what came, and answer what the other side offers or asks for."""
        while self.raw:
            at = self.raw.find(IAC)
            if at:
                end = at if at > 0 else len(self.raw)
                self.text, self.raw = self.text + self.raw[:end], self.raw[end:]
                continue
            length = self.command()
            if length is None:
                return  # the rest of it is still to come
            self.raw = self.raw[length:]

    def command(self) -> "int | None":
        """Answer the command that `raw` begins with; return its length, or None when it is not there in whole."""
        raw = self.raw
        if len(raw) < 2 or (raw[1] in (DO, DONT, WILL, WONT) and len(raw) < 3):  # noqa: PLR2004
            return None
        if raw[1] == IAC:
            self.text += raw[:1]
        elif raw[1] in (DO, WILL):
            answer = bytes([IAC, WONT if raw[1] == DO else DONT, raw[2]])
            try:
                self.socket.sendall(answer)
            except OSError:
                self.ended = True
        elif raw[1] == SB:
            end = raw.find(bytes([IAC, SE]))
            if end < 0 and len(raw) < 4096:  # noqa: PLR2004 - longer than any; then it is none
                return None
            return len(raw) if end < 0 else end + 2
        return 3 if raw[1] in (DO, DONT, WILL, WONT) else 2


def obey(order: "dict[str, Any]") -> str:
    """Connect, or send a command; and return what came."""
    line: Any = globals().get("line")
    seconds, limit = order["timeout"], order["limit"]
    if order["command"] is None:
        line = globals()["line"] = Line(order["host"], order["port"], seconds)
        return str(line.read(limit, min(seconds, order["greeting"])))
    if line is None:
        raise ConnectionResetError
    line.send(order["command"], seconds)
    text = str(line.read(limit, seconds))
    if not text:
        raise ConnectionResetError if line.ended else TimeoutError
    return text


def reply() -> "dict[str, Any]":
    """Do what is asked for, and return what came of it."""
    try:
        return {"text": obey(json.load(sys.stdin))}
    except TimeoutError:
        return {"problem": "timeout"}
    except ConnectionRefusedError:
        return {"problem": "refused"}
    except ConnectionError:
        return {"problem": "closed"}
    except (OSError, UnicodeError) as error:  # a name that can't be one is a UnicodeError
        return {"problem": "unreachable", "detail": str(error)[:500]}


sys.stdout.write(json.dumps(reply()))
