"""What a server prints when it has started: its address, how to try it, and what it does not protect against."""

import os
import shlex
import shutil
import sys
from pathlib import Path

from sandpod_gateway.settings import Settings

_LOCAL = """\
  Not isolated here: code shares your machine's kernel, its memory is watched rather than limited by the kernel, and
  its processor time is not limited. For other people's code use the Kubernetes backend.
"""
_UNSAFE = """\
  WARNING: --unsafe-no-isolation is on. Code that runs here can do whatever you can: read your files, use your network.
"""


def text(settings: Settings) -> str:
    """Return the lines to print on standard error, by settings with the port that is in use."""
    lines = [f"Sandpod is ready: {settings.url}\n"]
    if settings.auth.keys_file is None:
        lines.append(f"  Try it: {_program('fastmcp')} call {settings.url} run_python_code code='print(\"hello\")'\n")
        lines.append("  No key is needed: every program on this machine can connect, and nothing else.\n")
    else:
        lines.append("  Callers need an API key, sent as `Authorization: Bearer KEY` or `X-API-Key: KEY`.\n")
    if settings.backend == "local":
        lines.append(_UNSAFE if settings.local.unsafe_no_isolation else _LOCAL)
    return "".join(lines)


def _program(name: str) -> str:
    """Return the command that starts a program of this environment, which need not be on the PATH."""
    own = Path(sys.executable).with_name(name)
    if shutil.which(name) == str(own) or not os.access(own, os.X_OK):
        return name
    return shlex.quote(str(own))
