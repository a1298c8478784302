"""What can go wrong between the operator and the API server, as one tree.

    OperatorError
    ├── AddressError         the address of health and metrics can't be had; main says so and ends with 2
    ├── LeadershipLostError  another replica may be active: the process ends at once
    └── ClusterError
        ├── UnreachableError     no answer, or one that says try later
        └── ApiError             an answer that says no
            ├── NotFoundError        404
            ├── ConflictError        409: exists already, or changed meanwhile
            └── RefusedError         403, 422: admission, quota, validation, rights

`cluster.py` raises the lower ones, `reconcile.py` decides by them. They hold no credentials and no request bodies.
"""


class OperatorError(Exception):
    """Whatever the operator raises by itself."""


class AddressError(OperatorError):
    """The HTTP server can't listen; the text says where and what to do."""


class LeadershipLostError(OperatorError):
    """The Lease is not ours any more, or could not be renewed in time."""


class ClusterError(OperatorError):
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
