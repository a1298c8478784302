"""Settings of package installations. Read once by the gateway's settings and passed on by keyword."""

from pathlib import Path
from typing import Annotated

from pydantic import Field

from sandpod_gateway.api.strict_model import StrictModel

PackagePattern = Annotated[str, Field(pattern=r"^[A-Za-z0-9*?][A-Za-z0-9*?._-]{0,127}$")]
NpmPattern = Annotated[
    str, Field(pattern=r"^(@[A-Za-z0-9*?~-][A-Za-z0-9*?._~-]*/)?[A-Za-z0-9*?~-][A-Za-z0-9*?._~-]*$", max_length=214)
]
_Url = Annotated[str, Field(pattern=r"^https?://\S+$")]


class NpmSettings(StrictModel):
    """npm packages for sandboxes."""

    registry_url: _Url = "https://registry.npmjs.org/"
    """npm registry or mirror; user:password@ is sent to it alone."""
    allow: list[NpmPattern] = Field([])
    """Names that callers may ask for, as @types/*; empty allows all."""
    deny: list[NpmPattern] = Field([])
    """Names that are never installed, as a dependency neither."""
    max_packages: Annotated[int, Field(ge=1, le=2000)] = 500
    """Most packages of a sandbox, dependencies included; npm's are many and small."""


class PackageSettings(StrictModel):
    """Packages for sandboxes. Sizes in bytes, times in seconds."""

    enabled: bool = True
    """Whether packages can be installed."""
    index_url: _Url = "https://pypi.org/simple"
    """Package index or mirror, in PyPI's simple form."""
    ca_file: Path | None = None
    """PEM file of authorities for the index and the registry; default: the system's."""
    allow: list[PackagePattern] = Field([])
    """Names that callers may ask for, * and ? as in files; empty allows all."""
    deny: list[PackagePattern] = Field([])
    """Names that are never installed, as a dependency neither."""
    npm: NpmSettings = NpmSettings()
    """npm packages."""
    timeout: Annotated[float, Field(gt=0, le=3600)] = 180
    """Most time of one installation."""
    max_bytes: Annotated[int, Field(ge=1024)] = 256 * 2**20
    """Most bytes of one installation's files."""
    max_packages: Annotated[int, Field(ge=1, le=1000)] = 100
    """Most packages of one, dependencies included."""
    cache_dir: Path | None = None
    """Folder for downloaded packages; default: a temporary one."""
    cache_bytes: Annotated[int, Field(ge=0)] = 512 * 2**20
    """Most bytes that the cache keeps."""
    concurrency: Annotated[int, Field(ge=1, le=64)] = 2
    """Installations that resolve or download at once."""
