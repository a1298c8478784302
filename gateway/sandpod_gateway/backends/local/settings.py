"""What an administrator or a laptop's user can choose about local sandboxes.

What can't be chosen (no network, read-only system, no capabilities, the system-call filter) is in `bwrap.py` and
`seccomp.py`.
"""

from pathlib import Path
from typing import Annotated, Final, Self

from pydantic import Field, model_validator

from sandpod_api.fields import MAX_LIFETIME, Name, Quantity, parse_quantity
from sandpod_api.templates import (
    LANGUAGE_NAME,
    MAX_SECRETS,
    SECRET_NAME,
    ModuleName,
    TemplateLanguage,
    is_reserved,
)
from sandpod_gateway.api.strict_model import StrictModel

_DATA_FACTOR: Final = 2
"""Private memory of one process over the sandbox's limit: room for what a program reserves and does not touch."""
_DATA_LEAST: Final = 2**32
"""Bytes. Node.js 24 reserves about 550 MiB when it starts and as many for each worker thread, and needs few of them."""
_Language = Annotated[str, Field(pattern=LANGUAGE_NAME)]


class LocalSecret(StrictModel):
    """A secret for programs: where the gateway finds its value."""

    name: Annotated[str, Field(pattern=f"^{SECRET_NAME.pattern}$")]
    """Name of the programs' variable."""
    env: str | None = None
    """Variable of the gateway's environment."""
    file: Path | None = None
    """File with the value; a line break at its end is left out. It is read again within a minute."""
    tools: Annotated[list[str], Field(max_length=16)] = Field(default_factory=list)
    """Tools whose runs get it; empty means all."""
    languages: Annotated[list[_Language], Field(max_length=16)] = Field(default_factory=list)
    """Languages of runs that get it; empty means all."""

    @model_validator(mode="after")
    def _has_a_source(self) -> Self:
        if is_reserved(self.name):
            raise ValueError(f"the name {self.name} is reserved")
        if (self.env is None) == (self.file is None):
            raise ValueError("a secret has either env or file")
        return self


class LocalSettings(StrictModel):
    """Settings of the local backend."""

    python: str | None = None
    """Python that sandboxes run, as a path; its packages are theirs. Default: the environment that `sandpod setup`
    makes; without it, the Python that the gateway's own environment was made from."""
    libraries: bool = True
    """Whether sandboxes have the libraries that `sandpod setup` installs."""
    requirements: Path | None = None
    """List of those libraries, with versions and hashes, for pip. Default: the sandbox image's."""
    node: str | None = None
    """Node.js of version 20 or later, as a path. Default: the later of PATH's and PyPI's."""
    memory: Quantity = "512Mi"
    """Memory of a sandbox's processes together; passing it ends the run."""
    workspace_size: Quantity = "256Mi"
    """The most that /workspace can hold; it is in memory."""
    tmp_size: Quantity = "256Mi"
    """The most that /tmp can hold, and /dev/shm; in memory."""
    packages_size: Quantity = "1Gi"
    """The most that added packages take; in memory, beside that of `memory`."""
    processes: Annotated[int, Field(ge=16, le=32_768)] = 128
    """Processes and threads at once in a sandbox."""
    open_files: Annotated[int, Field(ge=64, le=1_048_576)] = 1024
    """Open files of one process."""
    ttl: Annotated[int, Field(ge=1, le=MAX_LIFETIME)] = 14_400
    """Seconds from claim to end, used or not."""
    idle_timeout: Annotated[int, Field(ge=1, le=MAX_LIFETIME)] = 1800
    """Seconds without use to the end."""
    warm: Annotated[int, Field(ge=0, le=64)] = 1
    """Started sandboxes that wait for a claim."""
    cold_start: bool = True
    """Whether a sandbox is started when none of those that wait is ready, unless the caller chose `cold_start=false`.
    Off, the answer is `pool_exhausted` at once, and callers can't ask for more."""
    max_sandboxes_per_owner: Annotated[int, Field(ge=1, le=10_000)] = 20
    """Live sandboxes of one caller."""
    max_sandboxes: Annotated[int, Field(ge=1, le=10_000)] = 50
    """Live sandboxes of all callers together."""
    preimport: Annotated[list[ModuleName], Field(max_length=32)] = Field(default_factory=list)
    """Python modules imported before the first run."""
    languages: Annotated[list[TemplateLanguage], Field(max_length=16)] = Field(default_factory=list)
    """Languages in addition to python, javascript and shell: name, command and extension of each. One whose program is
    not on this machine is left out."""
    secrets: Annotated[list[LocalSecret], Field(max_length=MAX_SECRETS)] = Field(default_factory=list)
    """Secrets that runs get as environment variables, each with a name and either env or file, where the gateway finds
    the value; tools and languages limit it to some runs."""
    template: Name = "default"
    """Name by which callers may ask for this kind of sandbox."""
    unsafe_no_isolation: bool = False
    """Run code as a plain process with the gateway's own rights. Nothing protects the user."""

    @model_validator(mode="after")
    def _can_be_had(self) -> Self:
        if not (self.cold_start or self.warm):
            raise ValueError("without cold_start, warm must be at least 1: no sandbox could be had")
        return self

    @property
    def memory_bytes(self) -> int:
        """Memory of a sandbox, bytes."""
        return int(parse_quantity(self.memory))

    @property
    def data_bytes(self) -> int:
        """Private writable memory that one process can map, bytes: the net under the runner's own watch."""
        return max(_DATA_LEAST, self.memory_bytes * _DATA_FACTOR)

    @property
    def workspace_bytes(self) -> int:
        """Size of /workspace, bytes."""
        return int(parse_quantity(self.workspace_size))

    @property
    def tmp_bytes(self) -> int:
        """Size of /tmp and of /dev/shm, bytes each."""
        return int(parse_quantity(self.tmp_size))

    @property
    def packages_bytes(self) -> int:
        """Size of the folder for packages, bytes."""
        return int(parse_quantity(self.packages_size))
