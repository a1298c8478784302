"""What callers read about a sandbox that can't be used, and about what a resume has lost. Pure."""

from typing import Final

from sandpod_api.base import rfc3339
from sandpod_api.conditions import Reason
from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.backends.base import SandboxRecord
from sandpod_gateway.errors import SandpodError

_ENDED: Final = {
    Reason.TTL_EXPIRED: "The sandbox has expired: its lifetime (ttl) was over.",
    Reason.IDLE_TIMEOUT: "The sandbox has expired: it was not used for its idle timeout.",
}


def require_usable(record: SandboxRecord) -> None:
    """Return when the sandbox takes calls. Raises session_not_found, sandbox_lost or session_busy."""
    if record.status == "Ready":
        return
    if record.status == "Expired":
        message = next((text for reason, text in _ENDED.items() if record.reason == reason), "The sandbox has expired.")
        raise SandpodError(ErrorCode.SESSION_NOT_FOUND, message, next_step="Call create_sandbox for a new one.")
    if record.status == "Failed":
        raise SandpodError(
            ErrorCode.SANDBOX_LOST,
            "The sandbox is lost, with the files in it.",
            cause=record.message or record.reason,
            next_step="Call create_sandbox for a new one.",
        )
    raise SandpodError(
        ErrorCode.SESSION_BUSY,
        f"The sandbox is not ready: it is {record.status.lower()}.",
        cause=record.message or record.reason,
        next_step="Try again in a moment.",
    )


def gone(record: SandboxRecord | None) -> str | None:
    """Return in a sentence what became of a default sandbox that has ended; None where there was none."""
    if record is None:
        return None
    why = _ENDED.get(Reason(record.reason)) if record.reason in _ENDED else record.message
    return f"Your previous default sandbox is gone, with its files: {(why or 'it ended.').removeprefix('The sandbox ')}"


def forgotten(record: SandboxRecord | None) -> str | None:
    """Return in a sentence what the sandbox lost when it was resumed; None where it never was suspended."""
    if record is None or record.resumed is None:
        return None
    return (
        f"The sandbox was suspended and resumed at {rfc3339(record.resumed)}: its workspace's files are kept, but "
        "runs, processes and the variables of contexts from before are gone."
    )
