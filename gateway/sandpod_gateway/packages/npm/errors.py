"""What npm's failures mean, as coded errors. Pure."""

import re
from typing import Annotated, Any, Final

from pydantic import Field

from sandpod_gateway.errors import SandpodError
from sandpod_gateway.packages.errors import ConflictError, Failure
from sandpod_gateway.packages.sandbox import Untrusted

REGISTRY: Final = "npm registry"

_UNREACHABLE: Final = re.compile(
    r"E40[13]|E5\d\d|E429|ENEEDAUTH|ECONN\w+|ENOTFOUND|EAI_AGAIN|E\w*TIMEDOUT|E\w*TIMEOUT|ERR_SOCKET_TIMEOUT|EHOSTUNREACH"
    r"|ENETUNREACH|EPROTO|ERR_SSL\w*|ERR_TLS\w*|\w*CERT\w*|UNABLE_TO\w*|FETCH_ERROR|EINVALIDPROXY|ERR_\w*PROXY\w*"
)
_Text = Annotated[str, Field(max_length=2000)]


class NpmFailure(Untrusted):
    """What npm's process says of its failure."""

    code: _Text
    spec: _Text = ""
    required: Any = None
    versions: tuple[_Text, ...] = ()
    conflict: _Text = ""

    def error(self, node: str, max_bytes: int) -> SandpodError:
        """Return what it means for a sandbox's version of Node.js, where an installation may take so many bytes."""
        code, wanted = self.code, self.required
        spec = self.spec[:200].removesuffix("@*") or "a package"
        missing = Failure.NO_PACKAGE.error(REGISTRY, spec[0] + spec[1:].partition("@")[0])
        newest = f"The newest are {', '.join(self.versions)}." if self.versions else None
        no_version = Failure.NO_VERSION.error(spec, cause=newest)
        engine = str(wanted.get("node", "another version") if isinstance(wanted, dict) else "another version")[:100]
        errors = {
            "ERESOLVE": ConflictError(self.conflict[:500] or None),
            "E404": missing,
            "E405": missing,
            "ETARGET": no_version,
            "ENOVERSIONS": no_version,
            "EBADENGINE": Failure.UNFIT.error(
                f"{spec} is for Node.js {engine}; this sandbox has {node.removeprefix('v')}."
            ),
            "EBADPLATFORM": Failure.UNFIT.error(f"{spec} is for other systems or processors than this sandbox's."),
            "EFBIG": Failure.TOO_LARGE.error(max_bytes),
            "EREFUSEDADDRESS": Failure.REFUSED_ADDRESS.error(),
            "EINTEGRITY": Failure.DAMAGED.error(spec, REGISTRY),
            "ENOSPC": Failure.NO_ROOM.error(),
            "EDQUOT": Failure.NO_ROOM.error(),
        }
        if code in errors:
            return errors[code]
        if code.startswith("EALLOW"):
            return Failure.BLOCKED.error(
                f"{spec} comes from a repository, an address or a file; only packages of the registry are installed."
            )
        return Failure.UNREACHABLE.error(REGISTRY) if _UNREACHABLE.fullmatch(code) else Failure.UNKNOWN.error("npm")
