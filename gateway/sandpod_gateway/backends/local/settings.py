"""What an administrator or a laptop's user can choose about local sandboxes.

Read once by the gateway's settings and passed to `LocalBackend`. It holds no decision of its own; what can't be chosen
(no network, read-only system, no capabilities, the system-call filter) is in `bwrap.py` and `seccomp.py`.
"""

from pathlib import Path
from typing import Annotated, Final, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from sandpod_api.fields import MAX_LIFETIME, Name, Quantity, parse_quantity
from sandpod_api.templates import ModuleName, TemplateLanguage

_DATA_FACTOR: Final = 2
"""Private memory of one process over the sandbox's limit: room for what a program reserves and does not touch."""
_DATA_LEAST: Final = 2**32
"""Bytes. Node.js 24 reserves about 550 MiB when it starts and as many for each worker thread, and needs few of them."""


class LocalSettings(BaseModel):
    """Settings of the local backend."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    python: Annotated[
        str | None,
        Field(
            description="Python that sandboxes run, as a path; its packages are theirs. Default: the environment that "
            "`sandpod setup` makes; without it, the Python that the gateway's own environment was made from."
        ),
    ] = None
    libraries: Annotated[
        bool, Field(description="Whether sandboxes have the libraries that `sandpod setup` installs.")
    ] = True
    requirements: Annotated[
        Path | None,
        Field(description="List of those libraries, with versions and hashes, for pip. Default: the sandbox image's."),
    ] = None
    node: Annotated[
        str | None,
        Field(description="Node.js of version 20 or later, as a path. Default: the later of PATH's and PyPI's."),
    ] = None
    memory: Annotated[
        Quantity, Field(description="Memory of a sandbox's processes together; passing it ends the run.")
    ] = "512Mi"
    workspace_size: Annotated[Quantity, Field(description="The most that /workspace can hold; it is in memory.")] = (
        "256Mi"
    )
    tmp_size: Annotated[
        Quantity, Field(description="The most that /tmp can hold, added packages too, and /dev/shm; in memory.")
    ] = "256Mi"
    processes: Annotated[int, Field(ge=16, le=32_768, description="Processes and threads at once in a sandbox.")] = 128
    open_files: Annotated[int, Field(ge=64, le=1_048_576, description="Open files of one process.")] = 1024
    ttl: Annotated[int, Field(ge=1, le=MAX_LIFETIME, description="Seconds from claim to end, used or not.")] = 14_400
    idle_timeout: Annotated[int, Field(ge=1, le=MAX_LIFETIME, description="Seconds without use to the end.")] = 1800
    warm: Annotated[int, Field(ge=0, le=64, description="Started sandboxes that wait for a claim.")] = 1
    cold_start: Annotated[
        bool,
        Field(
            description="Whether a sandbox is started when none of those that wait is ready, unless the caller chose "
            "`cold_start=false`. Off, the answer is `pool_exhausted` at once, and callers can't ask for more."
        ),
    ] = True
    max_sandboxes_per_owner: Annotated[int, Field(ge=1, le=10_000, description="Live sandboxes of one caller.")] = 20
    max_sandboxes: Annotated[int, Field(ge=1, le=10_000, description="Live sandboxes of all callers together.")] = 50
    preimport: Annotated[
        list[ModuleName], Field(max_length=32, description="Python modules imported before the first run.")
    ] = Field(default_factory=list)
    languages: Annotated[
        list[TemplateLanguage],
        Field(
            max_length=16,
            description="Languages beside python, javascript and shell: name, command and extension of each. One whose "
            "program is not on this machine is left out.",
        ),
    ] = Field(default_factory=list)
    template: Annotated[Name, Field(description="Name by which callers may ask for this kind of sandbox.")] = "default"
    unsafe_no_isolation: Annotated[
        bool, Field(description="Run code as a plain process with the gateway's own rights. Nothing protects the user.")
    ] = False

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
