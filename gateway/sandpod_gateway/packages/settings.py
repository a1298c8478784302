"""Settings of package installations. Read once by the gateway's settings and passed on by keyword."""

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

PackagePattern = Annotated[str, Field(pattern=r"^[A-Za-z0-9*?][A-Za-z0-9*?._-]{0,127}$")]


NpmPattern = Annotated[
    str, Field(pattern=r"^(@[A-Za-z0-9*?~-][A-Za-z0-9*?._~-]*/)?[A-Za-z0-9*?~-][A-Za-z0-9*?._~-]*$", max_length=214)
]


class NpmSettings(BaseModel):
    """npm packages for sandboxes."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    registry_url: Annotated[
        str, Field(pattern=r"^https?://\S+$", description="npm registry or mirror; user:password@ is sent to it alone.")
    ] = "https://registry.npmjs.org/"
    allow: Annotated[
        list[NpmPattern],
        Field(description="Names that callers may ask for, as @types/*; empty allows all."),
    ] = []
    deny: Annotated[
        list[NpmPattern], Field(description="Names that are never installed, as a dependency neither.")
    ] = []
    max_packages: Annotated[
        int,
        Field(
            ge=1, le=2000, description="Most packages of a sandbox, dependencies included; npm's are many and small."
        ),
    ] = 500


class PackageSettings(BaseModel):
    """Packages for sandboxes. Sizes in bytes, times in seconds."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    enabled: Annotated[bool, Field(description="Whether packages can be installed.")] = True
    index_url: Annotated[
        str, Field(pattern=r"^https?://\S+$", description="Package index or mirror, in PyPI's simple form.")
    ] = "https://pypi.org/simple"
    ca_file: Annotated[
        Path | None, Field(description="PEM file of authorities for the index and the registry; default: the system's.")
    ] = None
    allow: Annotated[
        list[PackagePattern],
        Field(description="Names that callers may ask for, * and ? as in files; empty allows all."),
    ] = []
    deny: Annotated[
        list[PackagePattern], Field(description="Names that are never installed, as a dependency neither.")
    ] = []
    npm: Annotated[NpmSettings, Field(description="npm packages.")] = NpmSettings()
    timeout: Annotated[float, Field(gt=0, le=3600, description="Most time of one installation.")] = 180
    max_bytes: Annotated[int, Field(ge=1024, description="Most bytes of one installation's files.")] = 256 * 2**20
    max_packages: Annotated[int, Field(ge=1, le=1000, description="Most packages of one, dependencies included.")] = 100
    cache_dir: Annotated[
        Path | None, Field(description="Folder for downloaded packages; default: a temporary one.")
    ] = None
    cache_bytes: Annotated[int, Field(ge=0, description="Most bytes that the cache keeps.")] = 512 * 2**20
    concurrency: Annotated[int, Field(ge=1, le=64, description="Installations that resolve or download at once.")] = 2
