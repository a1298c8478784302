"""What callers learn of a sandbox that has ended, can't be used, or was resumed. Pure."""

from typing import Final

from sandpod_api.base import rfc3339
from sandpod_api.conditions import Reason
from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.backends.base import SandboxRecord
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.runner.demux import BrokenProtocolError, ConnectionLostError

_ENDED: Final[dict[str, str]] = {
    Reason.TTL_EXPIRED: "The sandbox has expired: its lifetime (ttl) was over.",
    Reason.IDLE_TIMEOUT: "The sandbox has expired: it was not used for its idle timeout.",
}


def unusable(record: SandboxRecord) -> SandpodError:
    """Return the refusal for a sandbox that is not Ready."""
    cause, another = record.message or record.reason, "Call create_sandbox for a new one."
    if record.status == "Expired":
        message = _ENDED.get(record.reason or "", "The sandbox has expired.")
        return SandpodError(ErrorCode.SESSION_NOT_FOUND, message, next_step=another)
    if record.status == "Failed":
        message = "The sandbox is lost, with the files in it."
        return SandpodError(ErrorCode.SANDBOX_LOST, message, cause=cause, next_step=another)
    message = f"The sandbox is not ready: it is {record.status.lower()}."
    return SandpodError(ErrorCode.SESSION_BUSY, message, cause=cause, next_step="Try again in a moment.")


def unanswered(record: SandboxRecord | None, error: ConnectionLostError) -> SandpodError:
    """Return what is told of a sandbox that does not answer: by its record of now, it is lost or it is not."""
    if record is not None and record.status in {"Failed", "Expired"}:
        return unusable(record)
    cause = str(error) or None
    if record is None or isinstance(error, BrokenProtocolError):
        message, step = "The sandbox can't be used any more.", "Close it and use another one."
        return SandpodError(ErrorCode.SANDBOX_LOST, message, cause=cause, next_step=step)
    message, step = "The sandbox does not answer now.", "Try again in a moment; if it stays so, close it."
    return SandpodError(ErrorCode.BACKEND_UNAVAILABLE, message, cause=cause, next_step=step)


def gone(record: SandboxRecord | None) -> str | None:
    """Return in a sentence what became of a default sandbox that has ended; None where none has."""
    if record is None or record.status not in {"Expired", "Failed"}:
        return None
    why = _ENDED.get(record.reason or "") or record.message or "it ended."
    return f"Your previous default sandbox is gone, with its files: {why.removeprefix('The sandbox ')}"


def forgotten(record: SandboxRecord | None) -> str | None:
    """Return in a sentence what the sandbox lost when it was resumed; None where it never was suspended."""
    if record is None or record.resumed is None:
        return None
    return (
        f"The sandbox was suspended and resumed at {rfc3339(record.resumed)}: its workspace's files are kept, but "
        "runs, processes and the variables of contexts from before are gone."
    )
