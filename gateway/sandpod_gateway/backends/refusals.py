"""What callers are told where a backend refuses."""

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.errors import SandpodError


def invalid(message: str, next_step: str) -> SandpodError:
    """Return the refusal of an argument."""
    return SandpodError(ErrorCode.INVALID_ARGUMENT, message, next_step=next_step)


def no_such_pool(name: str) -> SandpodError:
    """Return the refusal where there is no pool of that name."""
    return SandpodError(ErrorCode.NOT_FOUND, f"There is no pool {name[:63]}.", next_step="List the pools to see them.")


def pool_exhausted(template: str, network: str, *, chosen: bool) -> SandpodError:
    """Return the refusal where nothing is warm and nothing may be made, as the caller chose, or as the server does."""
    if chosen:
        why = "cold_start=false rules out waiting for a new one."
        step = "Try again in some seconds, or leave cold_start out and wait for a new one."
    else:
        why = "none is made on demand."
        step = "Try again in some seconds; if it stays so, ask the administrator for a larger pool."
    message = f"No warm sandbox of template {template} with network {network} is ready, and {why}"
    return SandpodError(ErrorCode.POOL_EXHAUSTED, message, next_step=step)


def no_such_sandbox() -> SandpodError:
    """Return the refusal where there is no sandbox of that name, or not any more."""
    step = "Call list_sandboxes, or create_sandbox for a new one."
    return SandpodError(ErrorCode.SESSION_NOT_FOUND, "There is no such sandbox.", next_step=step)


def sandbox_lost(cause: str, *, kept: bool = False) -> SandpodError:
    """Return what is told of a sandbox without a pod, whose files may be kept."""
    if kept:
        message, step = "The sandbox is about to be suspended; its files are kept.", "Try again in a moment."
        return SandpodError(ErrorCode.BACKEND_UNAVAILABLE, message, cause=cause, next_step=step)
    message, step = "The sandbox is lost, with the files in it.", "Call create_sandbox for a new one."
    return SandpodError(ErrorCode.SANDBOX_LOST, message, cause=cause, next_step=step)
