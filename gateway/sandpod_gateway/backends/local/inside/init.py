"""The first lines that run as PID 1 of a local sandbox: limits that can't be raised again, then the runner.

A script of the sandbox's own Python: it uses the standard library alone and must not import the gateway. Limits are set
here, and not by the gateway, because only processes of the sandbox's own user namespace are counted from here on.
"""

import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import sys
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_RESERVE = 16
"""Processes that the runner keeps for itself over what runs may have: it must answer beside a fork bomb."""


def _limit(kind: int, value: int) -> None:
    _, hard = resource.getrlimit(kind)
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (value, value))


def _set_limits(limits: dict[str, int]) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if limits["processes"]:
        _limit(resource.RLIMIT_NPROC, limits["processes"] + _RESERVE)
    if limits["data"]:
        _limit(resource.RLIMIT_DATA, limits["data"])
    _limit(resource.RLIMIT_NOFILE, limits["open_files"])
    _limit(resource.RLIMIT_FSIZE, limits["file_size"])
    # Interactive work of the machine goes first; when memory runs out, sandboxes go first.
    os.nice(5)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("500", encoding="ascii")


def _gateway_is_there(lifeline: int) -> bool:
    """Return whether the gateway still holds its end of a pipe.

    What kills this process when the gateway dies was set just before it began: a death before that is seen here.
    """
    poll = select.poll()
    poll.register(lifeline, 0)
    ended = poll.poll(0)
    os.close(lifeline)
    return not ended


def main() -> int:
    """Set the limits, then be the runner: `init.py '{"path": …, "limits": {…}, …}' serve …`."""
    options = json.loads(sys.argv[1])
    if options["end_with_gateway"] and sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if not _gateway_is_there(options["lifeline"]):
        return 0
    _set_limits(options["limits"])
    sys.path.insert(0, options["path"])
    # Found only now, on the path that was just set.
    from sandpod_runner.__main__ import main as run  # noqa: PLC0415

    return run(sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
