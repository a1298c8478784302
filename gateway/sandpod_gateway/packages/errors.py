"""What goes wrong with packages of every kind, or in several places, as the errors that callers get."""

from enum import Enum

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.errors import SandpodError

_LATER = "Try again later; tell the administrator if it persists."
_AGAIN = "Try again; tell the administrator if it persists."
_OTHER = "Ask for another version, or for another package."
_LESS = "Ask for less, or use a template whose image has them."


class ConflictError(SandpodError):
    """No set of versions satisfies all that was asked for."""

    def __init__(self, cause: str | None) -> None:
        message = "The packages, or what they depend on, ask for versions that exclude each other."
        step = "Ask for fewer or other versions."
        super().__init__(ErrorCode.INVALID_ARGUMENT, message, cause=cause, next_step=step)


class Failure(Enum):
    """A kind of failure: its code, its message with gaps, and what to do about it."""

    BLOCKED = (ErrorCode.PACKAGE_BLOCKED, "{}", _OTHER)
    BLOCKED_NAME = (ErrorCode.PACKAGE_BLOCKED, "The package {} {}.", "Do without it, or ask the administrator.")
    DAMAGED = (ErrorCode.BACKEND_ERROR, "What was downloaded of {} is not what the {} announced.", _AGAIN)
    INTERRUPTED = (
        ErrorCode.CANCELLED,
        "The installation was interrupted: the server that carried it out is gone, or it was stopped.",
        "Call install_packages again.",
    )
    NO_ANSWER = (ErrorCode.BACKEND_ERROR, "{} returned an answer that is not valid.", "Tell the administrator.")
    NO_PACKAGE = (ErrorCode.NOT_FOUND, "The {} has no {}.", "Check the name of the package.")
    NO_ROOM = (ErrorCode.BACKEND_ERROR, "The server has no room for the download.", _LATER)
    NO_VERSION = (
        ErrorCode.NOT_FOUND,
        "No version matches {}.",
        "Ask for another version, or for any by the name alone.",
    )
    REFUSED_ADDRESS = (
        ErrorCode.PACKAGE_BLOCKED,
        "The files are at a loopback, link-local or metadata address, where nothing is fetched from.",
        "Ask for another package; tell the administrator if it persists.",
    )
    SERVER = (ErrorCode.BACKEND_ERROR, "Something went wrong in the server; its log says what.", _AGAIN)
    TOO_LARGE = (ErrorCode.QUOTA_EXCEEDED, "The packages and what they depend on are over {} bytes.", _LESS)
    TOO_MANY = (
        ErrorCode.QUOTA_EXCEEDED,
        "With what they depend on these are {} packages, over the limit of {}.",
        _LESS,
    )
    SANDBOX_FULL = (
        ErrorCode.QUOTA_EXCEEDED,
        "The packages do not fit into the sandbox's ~/.local, where they are installed.",
        "Delete files there, install less, or ask for a larger packagesSize (template) or local.packages_size.",
    )
    SANDBOX_MEMORY = (
        ErrorCode.QUOTA_EXCEEDED,
        "The sandbox ran out of memory while it unpacked the packages; files in its /tmp count as memory.",
        "Delete files in /tmp, install fewer packages, or use a template with more memory.",
    )
    SANDBOX_BROKEN = (
        ErrorCode.EXECUTION_FAILED,
        "The packages could not be installed in this sandbox.",
        "Try again in a new sandbox.",
    )
    SANDBOX_SLOW = (
        ErrorCode.TIMEOUT,
        "The sandbox did not install the packages in the time that it has.",
        "Try again, or ask for fewer packages; a template's limits.runTimeout bounds installations too.",
    )
    UNPACKING = (ErrorCode.EXECUTION_FAILED, "A package can't be unpacked.", "Ask for another version of it.")
    UNFIT = (ErrorCode.NOT_FOUND, "{}", _OTHER)
    UNKNOWN = (ErrorCode.BACKEND_ERROR, "{} failed for a reason that is not known.", "Try other versions.")
    UNREACHABLE = (ErrorCode.BACKEND_UNAVAILABLE, "The {} can't be reached, or does not let this server in.", _LATER)

    def error(self, *values: object, cause: str | None = None) -> SandpodError:
        """Return the error with values in the gaps of its message."""
        code, message, next_step = self.value
        return SandpodError(code, message.format(*values), cause=cause, next_step=next_step)
