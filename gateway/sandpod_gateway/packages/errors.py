"""What goes wrong with packages of every kind, as the errors that callers get."""

from enum import Enum

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.errors import SandpodError

_LATER = "Try again later; tell the administrator if it stays."
_AGAIN = "Try again; tell the administrator if it stays."
_OTHER = "Ask for another version, or for another package."
_LESS = "Ask for less, or use a template whose image has them."


class ConflictError(SandpodError):
    """No set of versions satisfies all that was asked for."""

    def __init__(self, cause: str | None) -> None:
        super().__init__(
            ErrorCode.INVALID_ARGUMENT,
            "The packages, or what they depend on, ask for versions that exclude each other.",
            cause=cause,
            next_step="Ask for fewer or other versions.",
        )


class Failure(Enum):
    """A kind of failure: its code, its message with gaps, and what to do about it."""

    BLOCKED = (ErrorCode.PACKAGE_BLOCKED, "{}", _OTHER)
    BLOCKED_NAME = (ErrorCode.PACKAGE_BLOCKED, "The package {} {}.", "Do without it, or ask the administrator.")
    CANCELLED = (ErrorCode.CANCELLED, "The server is ending.", "Call install_packages again.")
    DAMAGED = (ErrorCode.BACKEND_ERROR, "What was downloaded of {} is not what the {} announced.", _AGAIN)
    DISABLED = (ErrorCode.PACKAGE_BLOCKED, "This server installs no packages.", "Use a template whose image has them.")
    NO_ANSWER = (ErrorCode.BACKEND_ERROR, "{}'s answer makes no sense.", "Tell the administrator.")
    NO_OR_TOO_MANY = (
        ErrorCode.INVALID_ARGUMENT,
        "An installation is of 1 to {} packages.",
        "Name them, or install them in several calls.",
    )
    NO_PACKAGE = (ErrorCode.NOT_FOUND, "The {} has no {}.", "Check the name of the package.")
    NO_LANGUAGE = (
        ErrorCode.UNSUPPORTED_LANGUAGE,
        "There are no packages for that language.",
        "Use language python or javascript.",
    )
    NO_HASH = (
        ErrorCode.BACKEND_ERROR,
        "The npm registry announces {} without one sound hash: {}.",
        "Ask for another version; tell the administrator if it stays.",
    )
    NO_INSTALLATION = (
        ErrorCode.NOT_FOUND,
        "There is no such installation, or the server was restarted since.",
        "Call install_packages again: what is there takes no time. list_packages tells what is.",
    )
    NO_PYTHON = (
        ErrorCode.UNSUPPORTED_LANGUAGE,
        "This sandbox's image has no Python, which packages are unpacked with.",
        "Use a template whose image has it.",
    )
    NO_ROOM = (ErrorCode.BACKEND_ERROR, "The server has no room for the download.", _LATER)
    NO_NODE = (ErrorCode.UNSUPPORTED_LANGUAGE, "This sandbox has no Node.js.", "Use a template whose image has it.")
    NO_NPM = (
        ErrorCode.BACKEND_UNAVAILABLE,
        "This server has no npm, which JavaScript packages are resolved with.",
        "Tell the administrator to install sandpod[node], which brings Node.js with it.",
    )
    NO_NPM_REQUIREMENT = (
        ErrorCode.INVALID_ARGUMENT,
        "That is no name of an npm package: options, paths, addresses, repositories and aliases are not taken.",
        "Use a name with a version or range if need be, such as lodash, express@4 or @types/node@^22.",
    )
    NO_REQUIREMENT = (
        ErrorCode.INVALID_ARGUMENT,
        "That is no package name: options, paths, addresses and conditions are not taken.",
        "Use a name with extras or versions if need be, such as numpy, uvicorn[standard] or numpy>=1.26,<3.",
    )
    NO_VERSION = (
        ErrorCode.NOT_FOUND,
        "There is no version of that kind: {}.",
        "Ask for another version, or for any by the name alone.",
    )
    REFUSED_ADDRESS = (
        ErrorCode.PACKAGE_BLOCKED,
        "The files are at a loopback, link-local or metadata address, where nothing is fetched from.",
        "Ask for another package; tell the administrator if it stays.",
    )
    SERVER = (ErrorCode.BACKEND_ERROR, "Something went wrong in the server; its log says what.", _AGAIN)
    TIMEOUT = (
        ErrorCode.TIMEOUT,
        "The packages were not resolved and downloaded in time.",
        "Try again: what was downloaded is kept; or ask for fewer packages.",
    )
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
    UNPACKING = (ErrorCode.EXECUTION_FAILED, "A package can't be unpacked.", "Ask for another version of it.")
    TOO_MANY_AT_ONCE = (
        ErrorCode.RATE_LIMITED,
        "{} installations of yours are going on.",
        "Wait for one with get_installation, and name several packages in one call.",
    )
    TWO_VERSIONS = (
        ErrorCode.INVALID_ARGUMENT,
        "One package is asked for in two versions.",
        "Name it once: a program finds one version of a package.",
    )
    UNFIT = (ErrorCode.NOT_FOUND, "{}", _OTHER)
    UNKNOWN = (ErrorCode.BACKEND_ERROR, "{} failed for a reason that is not known.", "Try other versions.")
    UNREACHABLE = (ErrorCode.BACKEND_UNAVAILABLE, "The {} can't be reached, or does not let this server in.", _LATER)

    def error(self, *values: object, cause: str | None = None) -> SandpodError:
        """Return the error with values in the gaps of its message."""
        code, message, next_step = self.value
        return SandpodError(code, message.format(*values), cause=cause, next_step=next_step)
