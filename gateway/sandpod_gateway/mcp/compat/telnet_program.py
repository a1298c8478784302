"""Speaks telnet on one connection. Run in contexts of sandboxes by `telnet.py`, as text: the order comes as JSON input.

The connection is the context's own and stays until that ends. What callers say is data here and never code.
"""

import json
import re
import socket
import sys
import time
from typing import Any

IAC, DONT, DO, WONT = b"\xff", b"\xfe", b"\xfd", b"\xfc"
# Text, an escaped IAC, DO or WILL, DONT or WONT, a subnegotiation from SB to SE, another command.
PART = re.compile(
    rb"(?P<text>[^\xff]+)|\xff(?:(?P<escaped>\xff)|(?P<verb>[\xfb\xfd])(?P<option>.)|[\xfc\xfe].|\xfa.*?\xff\xf0|[^\xfa-\xff])",
    re.DOTALL,
)
MAX_COMMAND = 4096  # bytes; a longer one is none
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
        while part := PART.match(self.raw):
            self.raw = self.raw[part.end() :]
            self.text += part["text"] or part["escaped"] or b""
            if part["verb"]:
                verb = WONT if part["verb"] == DO else DONT
                try:
                    self.socket.sendall(IAC + verb + part["option"])
                except OSError:
                    self.ended = True
        if len(self.raw) >= MAX_COMMAND:
            self.raw = b""  # else the rest of the command is still to come


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
