"""Whether a claim may have a sandbox made for it, where no warm one is ready: the caller's choice within the server's.

Pure, and one for all backends, so that the argument means the same in each.
"""

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.backends.base import ClaimRequest
from sandpod_gateway.errors import SandpodError


def may_make(request: ClaimRequest, *, allowed: bool) -> bool:
    """Return whether a sandbox may be made for the claim.

    A claim that does not say gets what the server allows. What can't be had is refused even while a warm one is ready:
    a caller should not learn of it from a drained pool.

    Raises:
        SandpodError: invalid_argument, for a cold start on a server that makes none, or a claim that no warm sandbox
            meets and that rules one out.
    """
    if request.cold_start and not allowed:
        raise SandpodError(
            ErrorCode.INVALID_ARGUMENT,
            "This server makes no sandbox on demand: it hands out warm ones alone.",
            next_step="Leave cold_start out. While none is warm the answer is pool_exhausted: try again then.",
        )
    may = allowed if request.cold_start is None else request.cold_start
    if request.workspace is not None and not may:
        raise SandpodError(
            ErrorCode.INVALID_ARGUMENT,
            "A workspace other than the template's takes a new sandbox, and none may be made for this claim.",
            next_step="Leave workspace out." if not allowed else "Leave workspace or cold_start out.",
        )
    return may


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
