"""What can go wrong with a call to the API server, as one tree.

    ClusterError
    ├── UnreachableError     no answer, or one that says try later
    └── ApiError             an answer that says no
        ├── NotFoundError        404
        ├── ConflictError        409: exists already, or changed meanwhile
        └── RefusedError         403, 422: admission, quota, validation, rights

They hold no credentials and no request bodies.
"""


class ClusterError(Exception):
    """A call to the API server did not do what it should."""


class UnreachableError(ClusterError):
    """No answer, or one that says try later (429, 5xx)."""


class ApiError(ClusterError):
    """The API server said no.

    Attributes:
        status: HTTP status code.
        reason: Kubernetes' word for it, as AlreadyExists.
        message: Its sentence.
    """

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message


class NotFoundError(ApiError):
    """There is no such object, or no such resource."""


class ConflictError(ApiError):
    """The object exists already, or is not the one that the precondition names."""


class RefusedError(ApiError):
    """Quota, admission, validation or missing rights."""
