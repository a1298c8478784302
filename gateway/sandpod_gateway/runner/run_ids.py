"""How runs are named: to the runner by a name of their own, to callers by that and their sandbox. Pure.

The sandbox stands in the name so that any gateway finds a run again with no list of its own.
"""

import secrets
from typing import Final

from sandpod_api.names import is_dns_label
from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.backends.tenants import SEPARATOR
from sandpod_gateway.errors import SandpodError
from sandpod_runner.protocol import messages as protocol

INSTALLATION: Final = "inst"
LOOK: Final = "look"
_OWN: Final = (f"{INSTALLATION}-", f"{LOOK}-")


def new_run(kind: str = "run") -> str:
    """Return a name for a run, as the runner knows it."""
    return f"{kind}-{secrets.token_hex(8)}"


def is_own(run: str) -> bool:
    """Return whether a run's program is the gateway's own, such as one that installs packages."""
    return run.startswith(_OWN)


def run_id(sandbox: str, run: str) -> str:
    """Return a run's name as callers know it."""
    return f"{sandbox}.{run}"


def split_run_id(text: str) -> tuple[str, str]:
    """Return the sandbox and the runner's name of a run. Raises not_found, for what can't be a run's name."""
    sandbox, _, run = text.rpartition(".")
    if not all(map(is_dns_label, sandbox.split(SEPARATOR, 1))) or protocol.RUN_ID.fullmatch(run) is None:
        raise no_such_run()
    return sandbox, run


def no_such_run(cause: str | None = None) -> SandpodError:
    """Return the error for a run that is not there."""
    message, step = (
        "There is no such run, or it is no longer remembered.",
        "Call list_runs to see the runs of a sandbox.",
    )
    return SandpodError(ErrorCode.NOT_FOUND, message, cause=cause, next_step=step)
