"""What a sandbox says of its Node.js and npm packages, checked: it is untrusted. Pure."""

import json
import re
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from sandpod_gateway.packages.npm.requirements import NAME
from sandpod_gateway.packages.report import MAX_PACKAGES, Report

LOCATION: Final = rf"^node_modules/{NAME}(/node_modules/{NAME}){{0,20}}$"

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
_Version = Annotated[str, Field(pattern=r"^[0-9A-Za-z.+-]{1,128}$")]
_Text = Annotated[str, Field(max_length=300)]


class NpmTarget(BaseModel):
    """A Node.js to install for."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    node: Annotated[str, Field(pattern=r"^v\d{1,3}\.\d{1,3}\.\d{1,3}(-[a-z0-9.]{1,40})?$")]
    os: Annotated[str, Field(pattern=r"^[a-z0-9]{1,16}$")]
    cpu: Annotated[str, Field(pattern=r"^[a-z0-9]{1,16}$")]
    libc: Literal["glibc", "musl"]


class Locked(BaseModel):
    """A package that was installed, as npm's lock file has it."""

    model_config = ConfigDict(extra="allow", frozen=True)

    version: _Version
    sha256: Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")] = ""


class NpmRecord(BaseModel):
    """What was asked for in a sandbox, and what was installed therefore, by place.

    Attributes:
        asked: What was asked for, as it was written.
        dependencies: The same as npm has it, by name.
        packages: What is there.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    asked: Annotated[dict[_Name, _Text], Field(max_length=MAX_PACKAGES)] = {}
    dependencies: Annotated[dict[_Name, _Text], Field(max_length=MAX_PACKAGES)] = {}
    packages: Annotated[dict[Annotated[str, Field(pattern=LOCATION)], Locked], Field(max_length=MAX_PACKAGES)] = {}

    def lock(self) -> dict[str, dict[str, Any]]:
        """Return the packages as they stand in a lock file."""
        dumped = {path: locked.model_dump() for path, locked in self.packages.items()}
        return {
            path: {key: value for key, value in entry.items() if key in _LOCKED and value}
            for path, entry in dumped.items()
        }

    def key(self) -> str:
        """Return what tells it from other ones."""
        return json.dumps([self.dependencies, self.lock()], sort_keys=True)

    def top(self, name: str) -> Locked | None:
        """Return the package that programs find by a name."""
        return self.packages.get(f"node_modules/{name}")


class NpmState(Report):
    """What a sandbox says of its Node.js and its npm packages."""

    environment: NpmTarget | None
    record: NpmRecord
    image: Annotated[dict[_Name, _Version], Field(max_length=MAX_PACKAGES)] = Field(default_factory=dict)

    @field_validator("record", mode="wrap")
    @classmethod
    def _usable(cls, value: Any, handler: Any) -> NpmRecord:
        """Begin anew where a program has spoilt the record."""
        try:
            record: NpmRecord = handler(value)
        except ValueError:
            return NpmRecord()
        return record

    @field_validator("image", mode="before")
    @classmethod
    def _only_texts(cls, value: Any) -> Any:
        """Leave out what can't be a package: anything may lie in a folder of packages."""
        if not isinstance(value, dict):
            return value
        return {
            name: version
            for name, version in value.items()
            if re.fullmatch(NAME, str(name)) and re.fullmatch(r"[0-9A-Za-z.+-]{1,128}", str(version))
        }
