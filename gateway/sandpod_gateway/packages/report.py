"""What the programs that run in sandboxes report. A sandbox is untrusted: all of it is checked."""

from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.errors import SandpodError

MAX_PACKAGES: Final = 5000
MAX_DETAIL: Final = 300  # characters

_FAILURES: Final = {
    "room": (
        ErrorCode.QUOTA_EXCEEDED,
        "The packages do not fit into the sandbox's /tmp, where they are installed.",
        "Delete files in /tmp, install fewer packages, or use a template with a larger /tmp.",
    ),
    "package": (
        ErrorCode.EXECUTION_FAILED,
        "A package can't be unpacked.",
        "Ask for another version of it.",
    ),
    "sandbox": (
        ErrorCode.EXECUTION_FAILED,
        "The packages could not be installed in this sandbox.",
        "Try again in a new sandbox.",
    ),
}


class Failure(BaseModel):
    """Why an installation failed, which has left nothing.

    Attributes:
        reason: What is at fault: too little room, the content of a package, or the sandbox.
        detail: More about it.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    reason: Literal["room", "package", "sandbox"]
    detail: Annotated[str, Field(max_length=MAX_DETAIL)]

    def error(self) -> SandpodError:
        """Return the error that callers get."""
        code, message, next_step = _FAILURES[self.reason]
        return SandpodError(code, message, cause=self.detail, next_step=next_step)


class Report(BaseModel):
    """What such a program reports."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    failure: Failure | None = None
