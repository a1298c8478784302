"""What can go wrong between the gateway and the API server, and its translation for callers.

    ClusterError            a sentence about it
    ├── ConfigError         no usable kubeconfig or service account
    ├── UnreachableError    no answer: connection, TLS, time
    └── RefusedError        an answer that is a refusal: HTTP status, Kubernetes' reason

`cluster.py` and `exec_stream.py` raise these, and nothing else, so that the modules above them need no Kubernetes
client. They never leave the backend: `translate` makes the coded error of them.
"""

import logging
from http import HTTPStatus
from typing import Final

from sandpod_api.results import ErrorCode
from sandpod_gateway.errors import SandpodError

logger = logging.getLogger(__name__)

MAX_MESSAGE: Final = 500
"""Characters kept of an API server's message."""


class ClusterError(Exception):
    """The API server did not do what it was asked to."""


class ConfigError(ClusterError):
    """There is no usable configuration for a cluster."""


class UnreachableError(ClusterError):
    """The API server gave no answer."""


class RefusedError(ClusterError):
    """The API server refused.

    Attributes:
        status: The HTTP status.
        reason: Kubernetes' word for it, as NotFound; may be empty.
    """

    def __init__(self, status: int, reason: str = "", message: str = "") -> None:
        super().__init__(message[:MAX_MESSAGE] or f"HTTP status {status}")
        self.status = status
        self.reason = reason

    @property
    def not_found(self) -> bool:
        """Whether there is no such object."""
        return self.status == HTTPStatus.NOT_FOUND

    @property
    def conflict(self) -> bool:
        """Whether the object was changed since the version that the request named."""
        return self.status == HTTPStatus.CONFLICT

    @property
    def expired(self) -> bool:
        """Whether the resource version or page asked for is too old."""
        return self.status == HTTPStatus.GONE


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
