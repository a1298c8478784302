"""The gateway's one error that callers see, and its translation to a `Problem`.

    SandpodError       code, message, cause, next: public in every word
    └── StartError     the server can't start: one sentence on standard error, exit code 2

Anything else that is raised is a bug: it is logged whole and becomes `backend_error` without its text.
"""

from sandpod_gateway.api.results import ErrorCode, Problem


class SandpodError(Exception):
    """A refusal or failure with a code. Its texts are shown to callers: no secrets, no raw bodies."""

    def __init__(
        self,
        code: ErrorCode,
        message: str,
        *,
        next_step: str,
        cause: str | None = None,
        retry_after: int | None = None,  # seconds after which the same call may be accepted, where that is known
    ) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        self.code = code
        self.message = message
        self.cause = cause
        self.next_step = next_step

    def problem(self) -> Problem:
        """Return the error as the result that takes the call's place."""
        return Problem(
            error=self.code,
            message=self.message,
            cause=self.cause,
            next=self.next_step,
            retry_after_seconds=self.retry_after,
        )


class StartError(SandpodError):
    """The server can't start."""
