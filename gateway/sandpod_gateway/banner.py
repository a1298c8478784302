"""What a server says of itself when it has started: where it is, how to try it, what it does not protect from."""

import os
import shlex
import shutil
import sys
from pathlib import Path

from sandpod_gateway.settings import Settings

_LOCAL = """\
  Not protected here: code shares your machine's kernel; its memory is watched, not walled off; its share of the
  processor is not limited. For other people's code use the Kubernetes backend.
"""
_UNSAFE = """\
  WARNING: --unsafe-no-isolation is on. Code that runs here can do all that you can: read your files, use your network.
"""


def text(settings: Settings) -> str:
    """Return the lines to print on standard error.

    Args:
        settings: The settings, with the port that was really taken.
    """
    lines = [f"Sandpod is ready: {settings.url}\n"]
    if settings.auth.keys_file is None:
        lines.append(f"  Try it: {_program('fastmcp')} call {settings.url} run_python_code code='print(\"hello\")'\n")
        lines.append("  No key is needed, and only this machine can connect: every program on it can.\n")
    else:
        lines.append("  Callers need an API key, sent as `Authorization: Bearer KEY`.\n")
    if settings.backend == "local":
        lines.append(_UNSAFE if settings.local.unsafe_no_isolation else _LOCAL)
    return "".join(lines)


def _program(name: str) -> str:
    """Return the command that starts a program of this environment, which need not be on the PATH."""
    own = Path(sys.executable).with_name(name)
    if shutil.which(name) == str(own) or not os.access(own, os.X_OK):
        return name
    return shlex.quote(str(own))
