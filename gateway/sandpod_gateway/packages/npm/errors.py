"""What npm's failures mean, as coded errors. Pure."""

import re
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.packages.process import refused_address, too_large
from sandpod_gateway.packages.resolution import ConflictError

_UNREACHABLE: Final = re.compile(
    r"E40[13]|E5\d\d|E429|ENEEDAUTH|ECONN\w+|ENOTFOUND|EAI_AGAIN|E\w*TIMEDOUT|E\w*TIMEOUT|ERR_SOCKET_TIMEOUT|EHOSTUNREACH"
    r"|ENETUNREACH|EPROTO|ERR_SSL\w*|ERR_TLS\w*|\w*CERT\w*|UNABLE_TO\w*|FETCH_ERROR|EINVALIDPROXY|ERR_\w*PROXY\w*"
)

_Text = Annotated[str, Field(max_length=2000)]


class NpmFailure(BaseModel):
    """What npm's process says of its failure."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    code: _Text
    spec: _Text = ""
    required: Any = None
    versions: list[_Text] = []
    conflict: _Text = ""


def failure_of(failure: NpmFailure, node: str, max_bytes: int) -> Exception:
    """Return what a failure means.

    Args:
        failure: What npm says.
        node: The sandbox's version of Node.js.
        max_bytes: The most that an installation may take.
    """
    code = failure.code
    spec = failure.spec[:200].removesuffix("@*") or "a package"
    if code == "ERESOLVE":
        return ConflictError(failure.conflict[:500] or None)
    if code in {"E404", "E405"}:
        name = spec[0] + spec[1:].partition("@")[0]
        return _not_found(f"The npm registry has no {name}.", None, "Check the name of the package.")
    if code in {"ETARGET", "ENOVERSIONS"}:
        cause = f"The newest are {', '.join(failure.versions)}." if failure.versions else None
        return _not_found(
            f"There is no version of that kind: {spec}.",
            cause,
            "Ask for another version, or for any by the name alone.",
        )
    if code in {"EBADENGINE", "EBADPLATFORM"}:
        return _unfit(failure, spec, node)
    if code.startswith("EALLOW"):
        return SandpodError(
            ErrorCode.PACKAGE_BLOCKED,
            f"{spec} comes from a repository, an address or a file; only packages of the registry are installed.",
            next_step="Ask for another version, or for another package.",
        )
    return _of_the_way(code, max_bytes)


def _unfit(failure: NpmFailure, spec: str, node: str) -> SandpodError:
    wanted = failure.required if isinstance(failure.required, dict) else {}
    if failure.code == "EBADENGINE":
        engine = str(wanted.get("node", "another version"))[:100]
        message = f"{spec} is for Node.js {engine}; this sandbox has {node.removeprefix('v')}."
    else:
        message = f"{spec} is for other systems or processors than this sandbox's."
    return _not_found(message, None, "Ask for another version, or for another package.")


def _of_the_way(code: str, max_bytes: int) -> SandpodError:
    if code == "EFBIG":
        return too_large(max_bytes)
    if code == "EREFUSEDADDRESS":
        return refused_address()
    if _UNREACHABLE.fullmatch(code):
        return SandpodError(
            ErrorCode.BACKEND_UNAVAILABLE,
            "The npm registry can't be reached, or does not let this server in.",
            next_step="Try again later; tell the administrator if it stays.",
        )
    if code == "EINTEGRITY":
        return damaged()
    if code in {"ENOSPC", "EDQUOT"}:
        return SandpodError(
            ErrorCode.BACKEND_ERROR,
            "The server has no room for the download.",
            next_step="Try again later; tell the administrator if it stays.",
        )
    return SandpodError(
        ErrorCode.BACKEND_ERROR, "npm failed for a reason that is not known.", next_step="Try other versions."
    )


def damaged() -> SandpodError:
    """Return the error for a package whose bytes have another hash than the registry announced."""
    return SandpodError(
        ErrorCode.BACKEND_ERROR,
        "What was downloaded is not what the npm registry announced.",
        next_step="Try again; tell the administrator if it stays.",
    )


def _not_found(message: str, cause: str | None, next_step: str) -> SandpodError:
    return SandpodError(ErrorCode.NOT_FOUND, message, cause=cause, next_step=next_step)
