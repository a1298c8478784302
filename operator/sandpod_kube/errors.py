"""What can go wrong with a call to the API server, as one tree.

    ClusterError
    ├── ConfigError          no usable kubeconfig or service account
    ├── UnreachableError     no answer: connection, TLS, time; or one that is not a Kubernetes object
    └── RefusedError         an answer that refuses: HTTP status, Kubernetes' reason
        ├── NotFoundError        404
        ├── ConflictError        409: exists already, or changed meanwhile
        ├── DeniedError          403, 422, a webhook that fails: admission, quota, validation, rights
        └── OverloadedError      429, 5xx: try again later

They hold no credentials and no request bodies.
"""

from http import HTTPStatus
from typing import Final

_MAX_TEXT: Final = 500
_MAX_MESSAGE: Final = 2048
_WEBHOOK: Final = "failed calling webhook"
"""How the API server begins when an admission webhook can't be reached: with status 500, though admission refused."""


class ClusterError(Exception):
    """A call to the API server did not do what it should."""


class ConfigError(ClusterError):
    """No usable configuration for a cluster exists."""


class UnreachableError(ClusterError):
    """The API server gave no answer, or one that is not a Kubernetes object."""


class RefusedError(ClusterError):
    """The API server refused."""

    def __init__(self, status: int, reason: str = "", message: str = "") -> None:
        super().__init__(message[:_MAX_TEXT] or f"HTTP status {status}")
        self.status = status
        self.reason = reason  # Kubernetes' word for it, such as AlreadyExists; may be empty
        self.message = message[:_MAX_MESSAGE]  # the API server's sentence; may be empty

    @property
    def expired(self) -> bool:
        """Whether the resource version or the page asked for is too old."""
        return self.status == HTTPStatus.GONE


class NotFoundError(RefusedError):
    """The object, or the whole resource, does not exist."""


class ConflictError(RefusedError):
    """The object exists already, or is not the one that the precondition names."""


class DeniedError(RefusedError):
    """Quota, admission, validation or missing rights."""


class OverloadedError(RefusedError):
    """The API server can't answer now."""


_KINDS: Final[dict[int, type[RefusedError]]] = {
    HTTPStatus.FORBIDDEN: DeniedError,
    HTTPStatus.NOT_FOUND: NotFoundError,
    HTTPStatus.CONFLICT: ConflictError,
    HTTPStatus.UNPROCESSABLE_ENTITY: DeniedError,
    HTTPStatus.TOO_MANY_REQUESTS: OverloadedError,
}


def refusal(status: int, reason: str, message: str) -> RefusedError:
    """Return the error of an HTTP status of 400 or more."""
    if status == HTTPStatus.INTERNAL_SERVER_ERROR and _WEBHOOK in message:
        return DeniedError(status, reason, message)
    other = OverloadedError if status >= HTTPStatus.INTERNAL_SERVER_ERROR else RefusedError
    return _KINDS.get(status, other)(status, reason, message)
