"""What a caller is told of a failed call to the API server: a coded error, and nothing of the cluster's inside."""

import logging
from http import HTTPStatus

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.errors import SandpodError
from sandpod_kube.errors import ClusterError, RefusedError

logger = logging.getLogger(__name__)


def translate(error: ClusterError, doing: str) -> SandpodError:
    """Return the caller's error for a request that failed. What the API server said goes to the log only.

    Args:
        error: What happened.
        doing: What was tried, to go after "while".
    """
    logger.warning("the cluster failed while %s: %s", doing, error)
    if not isinstance(error, RefusedError):
        return SandpodError(
            ErrorCode.BACKEND_UNAVAILABLE,
            f"The cluster did not answer while {doing}.",
            next_step="Try again in a moment; if it stays so, tell the administrator.",
        )
    if error.status == HTTPStatus.FORBIDDEN and "exceeded quota" in str(error):
        return SandpodError(
            ErrorCode.QUOTA_EXCEEDED,
            "The namespace's quota leaves no room for another sandbox.",
            next_step="Close a sandbox that is not needed, or ask the administrator for more quota.",
        )
    if error.status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
        return SandpodError(
            ErrorCode.BACKEND_UNAVAILABLE,
            f"The cluster did not allow the gateway what it needs while {doing}.",
            next_step="Tell the administrator: the gateway's Role lacks a right, or its credentials have ended.",
        )
    if error.status >= HTTPStatus.INTERNAL_SERVER_ERROR or error.status == HTTPStatus.TOO_MANY_REQUESTS:
        return SandpodError(
            ErrorCode.BACKEND_UNAVAILABLE,
            f"The cluster was overloaded or failing while {doing}.",
            next_step="Try again in a moment.",
        )
    return SandpodError(
        ErrorCode.BACKEND_ERROR,
        f"The cluster refused while {doing}.",
        next_step="Tell the administrator; the gateway's log has the details.",
    )
