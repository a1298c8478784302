"""What pip's failures mean, as coded errors. Pure; called by `pip.py`.

What pip says may hold addresses with passwords: only names and versions of it are told on.
"""

import re
from typing import Final

from packaging.utils import canonicalize_name

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.packages.process import refused_address, too_large
from sandpod_gateway.packages.resolution import ConflictError

_NO_MATCH: Final = re.compile(r"No matching distribution found for ([A-Za-z0-9][\w.\-\[\],<>=!~*+ ]{0,200})")
_VERSIONS: Final = re.compile(
    r"Could not find a version that satisfies the requirement .*\(from versions: (.{0,2000})\)"
)
_CONFLICT: Final = re.compile(r"ResolutionImpossible|conflicting dependencies")
_ASKED: Final = re.compile(
    r"^ {4}([A-Za-z0-9][\w.\- ]{0,80} depends on [A-Za-z0-9][\w.\-\[\],<>=!~*+ ]{0,100})$", re.MULTILINE
)
_UNREACHABLE: Final = re.compile(
    r"NewConnectionError|ConnectTimeoutError|Connection(?:Reset|Refused)?Error|Name or service not known|SSLError|"
    r"Temporary failure in name resolution|ReadTimeoutError|ProxyError|certificate verify failed|: 5\d\d Server Error|"
    r"40[13] Client Error"
)
_ADDRESS: Final = re.compile(r"required by address: ([A-Za-z0-9._-]{1,128});")
_METADATA: Final = re.compile(r"too much metadata: ([A-Za-z0-9._-]{1,128});|^MemoryError", re.MULTILINE)
_FULL: Final = re.compile(r"No space left on device|Disk quota exceeded")
_TOO_LARGE: Final = re.compile(r"File too large")


def failure_of(output: str, max_bytes: int, more: str = "") -> Exception:
    """Return what pip's end means.

    Args:
        output: The end of what it said.
        max_bytes: The most that an installation may take.
        more: What it said when it was asked why it found nothing.
    """
    if _CONFLICT.search(output):
        return ConflictError("; ".join(_ASKED.findall(output)[:4])[:500] or None)
    in_the_way = _refused(output) or _of_the_way(output, max_bytes)
    if in_the_way is not None:
        return in_the_way
    missing = _NO_MATCH.search(output)
    if missing is not None:
        return _no_match(missing[1].strip(), output, more)
    return SandpodError(
        ErrorCode.BACKEND_ERROR, "pip failed for a reason that is not known.", next_step="Try other versions."
    )


def _refused(output: str) -> SandpodError | None:
    address, metadata = _ADDRESS.search(output), _METADATA.search(output)
    if address is not None:
        message = f"{address[1]} is required by an address; only packages of the index are installed."
    elif metadata is not None:
        message = f"The metadata of {metadata[1] or 'a package'} is too large to be read."
    elif "refused address" in output:
        return refused_address()
    else:
        return None
    return SandpodError(
        ErrorCode.PACKAGE_BLOCKED, message, next_step="Ask for another version, or for another package."
    )


def _of_the_way(output: str, max_bytes: int) -> SandpodError | None:
    if _UNREACHABLE.search(output):
        return SandpodError(
            ErrorCode.BACKEND_UNAVAILABLE,
            "The package index can't be reached, or does not let this server in.",
            next_step="Try again later; tell the administrator if it stays.",
        )
    if _TOO_LARGE.search(output):
        return too_large(max_bytes)
    if _FULL.search(output):
        return SandpodError(
            ErrorCode.BACKEND_ERROR,
            "The server has no room for the download.",
            next_step="Try again later; tell the administrator if it stays.",
        )
    return None


def has_nothing(output: str) -> bool:
    """Tell whether pip found no file at all of a package that fits."""
    return "(from versions: none)" in output


def _no_match(name: str, output: str, more: str) -> SandpodError:
    versions = _VERSIONS.search(output)
    if versions is not None and versions[1] != "none":
        known = [version.strip() for version in versions[1].split(",")]
        return SandpodError(
            ErrorCode.NOT_FOUND,
            f"There is no version of that kind: {name}.",
            cause=f"The newest that fit this sandbox are {', '.join(known[-5:])}.",
            next_step="Ask for another version, or for any by the name alone.",
        )
    project = canonicalize_name(re.split(r"[\[<>=!~ ]", name, maxsplit=1)[0])
    if re.search(rf"Fetched page \S+/{re.escape(project)}/? as ", more):
        return SandpodError(
            ErrorCode.NOT_FOUND,
            f"There is no wheel of {name} for this sandbox's Python and platform; source packages are not built.",
            next_step="Ask for another version, or for another package.",
        )
    return SandpodError(
        ErrorCode.NOT_FOUND, f"The package index has no {name}.", next_step="Check the name of the package."
    )
