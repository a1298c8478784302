"""What pip's failures mean, as coded errors. Pure.

Its output may hold addresses with passwords: only names and versions are passed on.
"""

import re
from typing import Final

from packaging.utils import canonicalize_name

from sandpod_gateway.errors import SandpodError
from sandpod_gateway.packages.errors import ConflictError, Failure

_NO_MATCH: Final = re.compile(r"No matching distribution found for ([A-Za-z0-9][\w.\-\[\],<>=!~*+ ]{0,200})")
_VERSIONS: Final = re.compile(
    r"Could not find a version that satisfies the requirement .*\(from versions: (?!none)(.{0,2000})\)"
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
# What is searched for in the output, and what goes into the message; the first match counts.
_MEANINGS: Final = (
    (
        re.compile(r"required by address: ([A-Za-z0-9._-]{1,128});"),
        Failure.BLOCKED,
        "{} is required by an address; only packages of the index are installed.",
    ),
    (
        re.compile(r"too much metadata: ([A-Za-z0-9._-]{1,128});|^MemoryError", re.MULTILINE),
        Failure.BLOCKED,
        "The metadata of {} is too large to be read.",
    ),
    (re.compile("refused address"), Failure.REFUSED_ADDRESS, ""),
    (_UNREACHABLE, Failure.UNREACHABLE, "package index"),
    (re.compile(r"No space left on device|Disk quota exceeded"), Failure.NO_ROOM, ""),
)


def failure_of(output: str, max_bytes: int) -> SandpodError:
    """Return the error for the end of a failed pip's output, where an installation may take `max_bytes`."""
    if _CONFLICT.search(output):
        return ConflictError("; ".join(_ASKED.findall(output)[:4])[:500] or None)
    for pattern, failure, value in _MEANINGS:
        if found := pattern.search(output):
            return failure.error(value.format(*(group or "a package" for group in found.groups())))
    if "File too large" in output:
        return Failure.TOO_LARGE.error(max_bytes)
    if found := _NO_MATCH.search(output):
        return _no_match(found[1].strip(), output)
    return Failure.UNKNOWN.error("pip")


def _no_match(name: str, output: str) -> SandpodError:
    if versions := _VERSIONS.search(output):
        newest = [version.strip() for version in versions[1].split(",")][-5:]
        return Failure.NO_VERSION.error(name, cause=f"The newest that fit this sandbox are {', '.join(newest)}.")
    project = canonicalize_name(re.split(r"[\[<>=!~ ]", name, maxsplit=1)[0])
    if re.search(rf"Fetched page \S+/{re.escape(project)}/? as ", output):
        return Failure.UNFIT.error(
            f"There is no wheel of {name} for this sandbox's Python and platform; source packages are not built."
        )
    return Failure.NO_PACKAGE.error("package index", name)
