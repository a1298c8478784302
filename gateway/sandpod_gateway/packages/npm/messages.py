"""What a sandbox reports of its Node.js and npm packages, and what npm's process answers, checked. Pure."""

import re
from contextlib import suppress
from functools import cached_property
from typing import Annotated, Any, Final, Literal

from pydantic import ConfigDict, Field, OnErrorOmit, field_validator

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.packages.cache import Digest
from sandpod_gateway.packages.channel import Resolution
from sandpod_gateway.packages.errors import ConflictError, Failure
from sandpod_gateway.packages.sandbox import MAX_PACKAGES, InstalledPackage, Report, Sha256, Untrusted

REGISTRY: Final = "npm registry"
NAME: Final = r"(?:@[A-Za-z0-9~-][A-Za-z0-9._~-]*/)?[A-Za-z0-9~-][A-Za-z0-9._~-]*"
_LOCATION: Final = rf"^node_modules/{NAME}(/node_modules/{NAME}){{0,20}}$"

_UNREACHABLE: Final = re.compile(
    r"E40[13]|E5\d\d|E429|ENEEDAUTH|ECONN\w+|ENOTFOUND|EAI_AGAIN|E\w*TIMEDOUT|E\w*TIMEOUT|ERR_SOCKET_TIMEOUT|EHOSTUNREACH"
    r"|ENETUNREACH|EPROTO|ERR_SSL\w*|ERR_TLS\w*|\w*CERT\w*|UNABLE_TO\w*|FETCH_ERROR|EINVALIDPROXY|ERR_\w*PROXY\w*"
)

_Name = Annotated[str, Field(pattern=rf"^{NAME}$", max_length=214)]
Location = Annotated[str, Field(pattern=_LOCATION)]
NpmVersion = Annotated[str, Field(pattern=r"^[0-9A-Za-z.+-]{1,128}$")]
_Text = Annotated[str, Field(max_length=300)]
_Long = Annotated[str, Field(max_length=2000)]


class NpmTarget(Untrusted):
    """A Node.js to install for."""

    node: Annotated[str, Field(pattern=r"^v\d{1,3}\.\d{1,3}\.\d{1,3}(-[a-z0-9.]{1,40})?$")]
    os: Annotated[str, Field(pattern=r"^[a-z0-9]{1,16}$")]
    cpu: Annotated[str, Field(pattern=r"^[a-z0-9]{1,16}$")]
    libc: Literal["glibc", "musl"]


class Locked(Untrusted):
    """A package that was installed, as npm's lock file has it."""

    model_config = ConfigDict(extra="allow")

    version: NpmVersion
    sha256: Sha256 = None


class NpmRecord(Untrusted):
    """What was requested in a sandbox, by name, and what was installed for it, by location.

    `asked` has the requirements as callers wrote them, `dependencies` as npm saved them.
    """

    asked: dict[_Name, _Text] = Field(default_factory=dict, max_length=MAX_PACKAGES)
    dependencies: dict[_Name, _Text] = Field(default_factory=dict, max_length=MAX_PACKAGES)
    packages: dict[Location, Locked] = Field(default_factory=dict, max_length=MAX_PACKAGES)


class NpmState(Report):
    """What a sandbox reports of its Node.js and its npm packages."""

    environment: NpmTarget | None
    record: NpmRecord
    image: Annotated[dict[OnErrorOmit[_Name], OnErrorOmit[NpmVersion]], Field(max_length=MAX_PACKAGES)]

    def require_node(self) -> NpmTarget:
        """Return the Node.js to install for. Raises unsupported_language."""
        if self.environment is None:
            message, step = "This sandbox has no Node.js.", "Use a template whose image has it."
            raise SandpodError(ErrorCode.UNSUPPORTED_LANGUAGE, message, next_step=step)
        return self.environment

    @cached_property
    def packages(self) -> dict[str, InstalledPackage]:
        """The packages at the top level, and the image's own."""
        return {name: InstalledPackage(version=version) for name, version in self.image.items()} | {
            path.removeprefix("node_modules/"): InstalledPackage(
                version=each.version, sha256=each.sha256, source="installed"
            )
            for path, each in self.record.packages.items()
            if path.count("node_modules/") == 1
        }

    @field_validator("record", mode="wrap")
    @classmethod
    def _usable(cls, value: Any, handler: Any) -> Any:
        """Start with an empty record where a program has corrupted it."""
        with suppress(ValueError):
            return handler(value)
        return NpmRecord()


class NpmPackage(Untrusted):
    """A package that the sandbox is to have."""

    path: Location  # below the folder that has `node_modules`
    name: Annotated[str, Field(min_length=1, max_length=214)]
    version: NpmVersion
    integrity: Annotated[str, Field(max_length=500)] = ""  # as the registry announces it; empty if it is installed
    script: bool = False  # whether it has an install script
    needed: bool = False  # whether the request needs it

    @property
    def digest(self) -> Digest:
        """Return its hash. Raises backend_error: the registry announces none, or several."""
        try:
            return Digest.announced(self.integrity)
        except ValueError as error:
            message = f"The npm registry does not announce exactly one valid hash of {self.name}: {error}."
            step = "Ask for another version; tell the administrator if it persists."
            raise SandpodError(ErrorCode.BACKEND_ERROR, message, next_step=step) from error


class Resolved(Resolution):
    """All packages that the sandbox is to have, as npm resolved them."""

    packages: list[NpmPackage]
    dependencies: dict[str, str]
    lock: dict[Location, dict[str, Any]]


class NpmFailure(Untrusted):
    """A failure as npm's process reports it."""

    code: _Long
    spec: _Long = ""
    required: Any = None
    versions: tuple[_Long, ...] = ()
    conflict: _Long = ""

    def error(self, node: str, max_bytes: int) -> SandpodError:
        """Return the coded error, for a sandbox's version of Node.js and the limit of an installation in bytes."""
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
            where = "a repository, an address or a file; only packages of the registry are installed"
            return Failure.BLOCKED.error(f"{spec} comes from {where}.")
        return Failure.UNREACHABLE.error(REGISTRY) if _UNREACHABLE.fullmatch(code) else Failure.UNKNOWN.error("npm")
