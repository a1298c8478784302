"""Why local sandboxes can't be had on a machine, in one sentence each, and what to do about it. Pure."""

from typing import Final

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.errors import StartError

_ELSEWHERE: Final = (
    "run the server from its container image in a cluster, or, for code that you trust as your own, with "
    "--unsafe-no-isolation."
)
NO_LINUX: Final = "On Windows run the server in WSL 2, on macOS in a Linux virtual machine or in Docker."

_APPARMOR: Final = (
    "AppArmor keeps programs on this machine from using user namespaces.",
    "Allow them with: sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0",
)
# What bubblewrap says, and what is behind it.
_CAUSES: Final = (
    (
        "max_*_namespaces",
        "This machine allows no (more) user namespaces.",
        "Allow them with: sudo sysctl -w user.max_user_namespaces=15000",
    ),
    (
        "No permissions to create",
        "This machine does not let this user make user namespaces.",
        "Allow them with: sudo sysctl -w kernel.unprivileged_userns_clone=1",
    ),
    ("uid map", *_APPARMOR),
    ("RTM_NEWADDR", *_APPARMOR),
    (
        "mount proc",
        "This container does not let its programs mount /proc anew.",
        "Start the container with: --security-opt systempaths=unconfined --security-opt seccomp=unconfined",
    ),
)


def no_isolation(message: str, next_step: str | None = None, cause: str | None = None) -> StartError:
    """Return the error that keeps the server from starting; without a next step, that is to go elsewhere."""
    step = f"{next_step} Or {_ELSEWHERE}" if next_step else _ELSEWHERE.capitalize()
    return StartError(ErrorCode.BACKEND_UNAVAILABLE, message, next_step=step, cause=cause)


def bubblewrap_failed(words: str) -> StartError:
    """Return the error for what bubblewrap, or the program that prepares for it, said before it gave up."""
    for mark, message, next_step in _CAUSES:
        if mark in words:
            return no_isolation(message, next_step, words)
    return no_isolation("A sandbox can't be started on this machine.", cause=words or None)
