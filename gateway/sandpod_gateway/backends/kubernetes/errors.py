"""What a caller learns of a failed call to the API server: a coded error, and nothing of the cluster's inside."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.errors import SandpodError
from sandpod_kube.errors import ClusterError, RefusedError

logger = logging.getLogger(__name__)


@contextmanager
def translated(doing: str) -> Iterator[None]:
    """Raise the caller's error for a request that fails; see `translate`."""
    try:
        yield
    except ClusterError as error:
        raise translate(error, doing) from error


def translate(error: ClusterError, doing: str) -> SandpodError:
    """Return the caller's error for a request that failed while so was done. The API server's words are only logged."""
    logger.warning("the cluster failed while %s: %s", doing, error)
    code, message, next_step = _meaning(error, doing)
    return SandpodError(code, message, next_step=next_step)


def _meaning(error: ClusterError, doing: str) -> tuple[ErrorCode, str, str]:
    unavailable = ErrorCode.BACKEND_UNAVAILABLE
    if not isinstance(error, RefusedError):
        step = "Try again in a moment; if it stays so, tell the administrator."
        return unavailable, f"The cluster did not answer while {doing}.", step
    if error.status == HTTPStatus.FORBIDDEN and "exceeded quota" in str(error):
        step = "Close a sandbox that is not needed, or ask the administrator for more quota."
        return ErrorCode.QUOTA_EXCEEDED, "The namespace's quota leaves no room for another sandbox.", step
    if error.status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
        step = "Tell the administrator: the gateway's Role lacks a right, or its credentials have ended."
        return unavailable, f"The cluster did not allow the gateway what it needs while {doing}.", step
    if error.status >= HTTPStatus.INTERNAL_SERVER_ERROR or error.status == HTTPStatus.TOO_MANY_REQUESTS:
        return unavailable, f"The cluster was overloaded or failing while {doing}.", "Try again in a moment."
    step = "Tell the administrator; the gateway's log has the details."
    return ErrorCode.BACKEND_ERROR, f"The cluster refused while {doing}.", step
