"""The words of Kubernetes' exec protocol: names, channels, where to open a stream, how a program ends. Pure.

`v5.channel.k8s.io`, and `v4` with older API servers: the first byte of each message is its channel.
"""

import json
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

V5: Final = "v5.channel.k8s.io"
V4: Final = "v4.channel.k8s.io"

STDIN, STDOUT, STDERR, STATUS = range(4)

STDERR_TAIL: Final = 4096
"""Bytes kept of what the program wrote to standard error, for the log."""


@dataclass(frozen=True, slots=True)
class ExecTarget:
    """Where and how to open an exec stream. Made anew for each, since tokens are renewed."""

    url: str
    params: Sequence[tuple[str, str]]
    headers: Mapping[str, str]
    ssl: ssl.SSLContext | bool
    server_hostname: str | None = None
    proxy: str | None = None


@dataclass(frozen=True, slots=True)
class ExecEnd:
    """How the program ended. `exit_code` is None where it never started or its end was not reported."""

    exit_code: int | None
    message: str


def parse_status(raw: bytes) -> ExecEnd:
    """Return what the status channel says of the program's end. Success is said in words, never assumed."""
    try:
        status = json.loads(raw)
        if status["status"] == "Success":
            return ExecEnd(0, "")
        causes = (status.get("details") or {}).get("causes") or []
        codes = [cause["message"] for cause in causes if cause.get("reason") == "ExitCode"]
        return ExecEnd(int(codes[0]) if codes else None, str(status.get("message", ""))[:STDERR_TAIL])
    except (ValueError, KeyError, TypeError, AttributeError):
        return ExecEnd(None, "the end was told in a way that makes no sense")


def printable(text: str) -> str:
    """Return the text on one line that no terminal takes for orders."""
    return "".join(c if c.isprintable() else " " for c in text).strip()
