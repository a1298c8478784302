"""What can go wrong: each error has the server's code, a sentence, and what to do.

SandpodError
├── InvalidArgumentError   what was asked for can't be, such as a path or a language
├── UnauthorizedError      the key is missing or wrong
├── ForbiddenError         the key may not do that
├── NotFoundError          there is no such sandbox, run or file, or it is not yours
├── ConflictError          something is in the way, such as an existing file
├── LimitError             too much or too many; `retry_after` says when to try again, where that is known
├── SandboxLostError       the sandbox has ended
└── UnreachableError       the server can't be reached
"""

from collections.abc import Mapping
from typing import Any, Final


class SandpodError(Exception):
    """A request that was refused or failed; a program that fails is a result."""

    def __init__(
        self, code: str, message: str, next_step: str = "", *, cause: str | None = None, retry_after: int | None = None
    ) -> None:
        because = f" ({cause.rstrip('.')})" if cause else ""
        super().__init__(f"{message.rstrip('.')}{because}. {next_step}".rstrip())
        self.code = code
        self.message = message
        self.next_step = next_step
        self.cause = cause
        self.retry_after = retry_after


class InvalidArgumentError(SandpodError):
    """What was asked for can't be."""


class UnauthorizedError(SandpodError):
    """The key is missing or wrong."""


class ForbiddenError(SandpodError):
    """The key may not do that."""


class NotFoundError(SandpodError):
    """There is nothing of that name, or it is another caller's."""


class ConflictError(SandpodError):
    """Something is in the way."""


class LimitError(SandpodError):
    """It is too much, or there are too many."""


class SandboxLostError(SandpodError):
    """The sandbox has ended."""


class UnreachableError(SandpodError):
    """The server can't be reached, or what answers is none."""


_STATUS: Final[Mapping[int, type[SandpodError]]] = {
    400: InvalidArgumentError,
    401: UnauthorizedError,
    403: ForbiddenError,
    404: NotFoundError,
    409: ConflictError,
    410: SandboxLostError,
    413: LimitError,
    429: LimitError,
    507: LimitError,
}
# In a stream there is no status, only the code.
_CODES: Final[Mapping[str, type[SandpodError]]] = {
    "unauthorized": UnauthorizedError,
    "forbidden": ForbiddenError,
    "not_found": NotFoundError,
    "session_not_found": NotFoundError,
    "sandbox_lost": SandboxLostError,
    "rate_limited": LimitError,
    "session_busy": ConflictError,
    "invalid_argument": InvalidArgumentError,
}


def refused(body: Mapping[str, Any], status: int | None = None) -> SandpodError:
    """Return the error that a server's refusal stands for."""
    code, after = str(body["error"]), body.get("retry_after_seconds")
    kind = _CODES.get(code) if status is None else _STATUS.get(status)
    return (kind or SandpodError)(
        code,
        str(body.get("message", "The server refused.")),
        str(body.get("next", "")),
        cause=body.get("cause"),
        retry_after=after if isinstance(after, int) else None,
    )


def unreachable(url: str, cause: str) -> UnreachableError:
    """Return the error of a server that can't be reached."""
    step = "See whether the address is right and the server is up."
    return UnreachableError("unreachable", f"The server at {url} can't be reached.", step, cause=cause)
