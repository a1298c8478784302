"""Why a claim can't be met, in words and codes: limits, unknown templates, sandboxes that don't start. Pure.

What a condition's reason means for a caller is decided here alone.
"""

from dataclasses import dataclass
from typing import Final

from sandpod_api.conditions import SENTENCES, Condition, Reason
from sandpod_api.types import Sandbox
from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.backends.kubernetes.cache.records import blocking, status_of
from sandpod_gateway.backends.kubernetes.settings import KubernetesSettings
from sandpod_gateway.errors import SandpodError

ROOM_PATIENCE: Final = 10.0
"""Seconds that nodes or quota may be full before a claim gives up: another sandbox may be on its way out, as a warm one
that the operator gives up for it."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a sandbox does not start. It counts once it has lasted for `patience` seconds."""

    error: SandpodError
    patience: float = 0.0


def over_limit(owned: int, total: int, settings: KubernetesSettings) -> SandpodError | None:
    """Return the refusal when one more sandbox would be too many for its caller, or for all callers together.

    Both counts are of live sandboxes, with claims in progress.
    """
    if owned >= settings.max_sandboxes_per_owner:
        message = f"You have {owned} sandboxes; the limit is {settings.max_sandboxes_per_owner}."
        return SandpodError(ErrorCode.MAX_SESSIONS, message, next_step="Close one with close_sandbox, then try again.")
    return server_full(settings.max_sandboxes) if total >= settings.max_sandboxes else None


def server_full(limit: int) -> SandpodError:
    """Return the refusal when all callers together have as many sandboxes as there may be."""
    return SandpodError(
        ErrorCode.MAX_SESSIONS,
        f"All {limit} sandboxes of this server are in use.",
        next_step="Try again when others have closed theirs, or ask the administrator to raise the limit.",
    )


def unknown_template(template: str) -> SandpodError:
    """Return the refusal of a template that does not exist."""
    step = "Use a template that the server offers, or leave it out for the default one."
    return invalid(f"There is no template {template!r:.70}.", step)


def unknown_profile(network: str, template: str) -> SandpodError:
    """Return the refusal of a network profile that the template does not have."""
    message = f"The template {template!r:.70} has no network profile {network!r:.70}."
    return invalid(message, "Use one of the template's profiles, or leave it out for no network.")


def invalid(message: str, next_step: str) -> SandpodError:
    """Return the refusal of an argument."""
    return SandpodError(ErrorCode.INVALID_ARGUMENT, message, next_step=next_step)


_ASK: Final = "Tell the administrator; `kubectl describe sandbox` shows it too."
_CODES: Final[dict[Reason, tuple[ErrorCode, float, str]]] = {
    Reason.IMAGE_PULL_FAILED: (
        ErrorCode.IMAGE_PULL_FAILED,
        0.0,
        "Use another template, or tell the administrator: the image's name or the pull secret is wrong.",
    ),
    Reason.UNSCHEDULABLE: (
        ErrorCode.UNSCHEDULABLE,
        ROOM_PATIENCE,
        "Try again later, or ask the administrator for more or larger nodes.",
    ),
    Reason.QUOTA_EXCEEDED: (
        ErrorCode.QUOTA_EXCEEDED,
        ROOM_PATIENCE,
        "Close a sandbox that is not needed, or ask the administrator for more quota.",
    ),
    Reason.WORKSPACE_LOST: (ErrorCode.SANDBOX_LOST, 0.0, "Call create_sandbox for a new one."),
    Reason.TEMPLATE_NOT_FOUND: (ErrorCode.INVALID_ARGUMENT, 0.0, "Use a template that the server offers."),
    Reason.PROFILE_NOT_FOUND: (ErrorCode.INVALID_ARGUMENT, 0.0, "Use one of the template's network profiles."),
    Reason.PROFILE_REFUSED: (
        ErrorCode.INVALID_ARGUMENT,
        0.0,
        "Use another of the template's network profiles, or ask the administrator to narrow this one.",
    ),
}
# What the scheduler says of a pod whose workspace has no volume, and the API server of one more claim than the quota.
_NO_VOLUME: Final = "persistentvolumeclaim"
_ASK_FOR_VOLUME: Final = (
    "Ask the administrator: the volume of the persistent workspace can't be made, for want of a StorageClass, of room "
    "or of quota. Or create a sandbox without one."
)
_FATAL: Final = frozenset({Reason.ADMISSION_REFUSED, Reason.START_FAILED, Reason.NETWORK_OPEN, Reason.KERNEL_SHARED})


def start_failure(sandbox: Sandbox) -> Failure | None:
    """Return why a claimed sandbox will not become ready; None while it may."""
    why = blocking(sandbox)
    if why is not None and why.reason in _CODES:
        code, patience, next_step = _CODES[Reason(why.reason)]
        if code != ErrorCode.SANDBOX_LOST and _NO_VOLUME in why.message.lower():
            next_step = _ASK_FOR_VOLUME
        return Failure(SandpodError(code, sentence(why), cause=why.message or None, next_step=next_step), patience)
    status = status_of(sandbox)
    if status in {"Failed", "Expired", "Suspended"} or (why is not None and why.reason in _FATAL):
        message = sentence(why) if why else f"It is {status.lower()}."
        return Failure(_no_start(message, why.message or None if why else None))
    return None


def start_timeout(sandbox: Sandbox | None, seconds: float) -> SandpodError:
    """Return the error of a sandbox that did not become ready in time, with what it was waiting for."""
    if sandbox is not None and (failure := start_failure(sandbox)) is not None:
        return failure.error
    why = blocking(sandbox) if sandbox is not None else None
    cause = why.message or sentence(why) if why else "The operator has not said anything of it; is it running?"
    return _no_start(f"It was not ready within {seconds:.0f} seconds.", cause)


def start_deleted() -> SandpodError:
    """Return the error of a sandbox that someone deleted while it started."""
    return _no_start("Someone deleted it meanwhile.", None)


def sentence(condition: Condition) -> str:
    """Return a condition's reason in words."""
    try:
        return SENTENCES[Reason(condition.reason)]
    except ValueError:
        return condition.message or "It is not ready."


def _no_start(message: str, cause: str | None) -> SandpodError:
    return SandpodError(
        ErrorCode.BACKEND_ERROR, f"The sandbox did not start. {message}", cause=cause, next_step=f"Try again. {_ASK}"
    )
