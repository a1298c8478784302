"""What a sandbox says of its Node.js and npm packages, checked: it is untrusted. Pure."""

from contextlib import suppress
from functools import cached_property
from typing import Annotated, Any, Final, Literal

from pydantic import ConfigDict, Field, OnErrorOmit, field_validator

from sandpod_gateway.packages.errors import Failure
from sandpod_gateway.packages.sandbox import MAX_PACKAGES, InstalledPackage, Report, Sha256, Untrusted

NAME: Final = r"(?:@[A-Za-z0-9~-][A-Za-z0-9._~-]*/)?[A-Za-z0-9~-][A-Za-z0-9._~-]*"
_LOCATION: Final = rf"^node_modules/{NAME}(/node_modules/{NAME}){{0,20}}$"

# What npm's lock file has for each package that matters when another one is added. Neither hashes nor addresses: those
# are the registry's to say.
_LOCKED: Final = frozenset(
    {
        *("name", "version", "optional", "peer", "hasInstallScript", "inBundle"),
        *("dependencies", "optionalDependencies", "peerDependencies", "peerDependenciesMeta"),
        *("engines", "os", "cpu", "libc"),
    }
)

_Name = Annotated[str, Field(pattern=rf"^{NAME}$", max_length=214)]
Location = Annotated[str, Field(pattern=_LOCATION)]
NpmVersion = Annotated[str, Field(pattern=r"^[0-9A-Za-z.+-]{1,128}$")]
_Text = Annotated[str, Field(max_length=300)]


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
    sha256: Sha256 = ""


class NpmRecord(Untrusted):
    """What was asked for in a sandbox, by name, and what was installed therefore, by place.

    `asked` has it as it was written, `dependencies` as npm has it.
    """

    asked: dict[_Name, _Text] = Field(default_factory=dict, max_length=MAX_PACKAGES)
    dependencies: dict[_Name, _Text] = Field(default_factory=dict, max_length=MAX_PACKAGES)
    packages: dict[Location, Locked] = Field(default_factory=dict, max_length=MAX_PACKAGES)

    def lock(self) -> dict[str, dict[str, Any]]:
        """Return the packages as they stand in a lock file."""
        return {
            path: {key: value for key, value in locked.model_dump().items() if key in _LOCKED and value}
            for path, locked in self.packages.items()
        }


class NpmState(Report):
    """What a sandbox says of its Node.js and its npm packages."""

    environment: NpmTarget | None
    record: NpmRecord
    image: Annotated[dict[OnErrorOmit[_Name], OnErrorOmit[NpmVersion]], Field(max_length=MAX_PACKAGES)]

    def require_node(self) -> NpmTarget:
        """Return the Node.js to install for. Raises unsupported_language."""
        if self.environment is None:
            raise Failure.NO_NODE.error()
        return self.environment

    @cached_property
    def packages(self) -> dict[str, InstalledPackage]:
        """What programs find: packages that were asked for or are beside those, and the image's own."""
        return {name: InstalledPackage(version=version) for name, version in self.image.items()} | {
            path.removeprefix("node_modules/"): InstalledPackage(version=each.version, sha256=each.sha256, added=True)
            for path, each in self.record.packages.items()
            if path.count("node_modules/") == 1
        }

    @field_validator("record", mode="wrap")
    @classmethod
    def _usable(cls, value: Any, handler: Any) -> Any:
        """Begin anew where a program has spoilt the record."""
        with suppress(ValueError):
            return handler(value)
        return NpmRecord()
