"""Settings of the audit log."""

import socket
from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.api.strict_model import StrictModel
from sandpod_gateway.errors import StartError

HOST: Final = "{host}"


class AuditSettings(StrictModel):
    """The audit log. Sizes in bytes."""

    sink: Literal["stdout", "file", "both"] | None = None
    """Where records are written; default: nowhere."""
    path: Path | None = None
    """File for them. `{host}` in its name stands for the name of the machine or pod."""
    code: Literal["hash", "body", "none"] = "hash"
    """What is recorded of a program: its SHA-256, the first 64 KiB of it as well, or nothing."""
    required: bool = False
    """Whether a call is refused, before anything is done, when it can't be recorded. Each call then has two records,
    one before and one after it, and waits until the first one is on disk."""
    max_bytes: Annotated[int, Field(ge=2**20)] = 100 * 2**20
    """Size at which the file is closed: it gets a number, and a new one is begun."""
    max_files: Annotated[int, Field(ge=1, le=1000)] = 10
    """Closed files that are kept; the oldest are deleted."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.sink in {"file", "both"}) != (self.path is not None):
            raise ValueError("audit.path goes with audit.sink=file or both")
        if self.required and self.sink is None:
            raise ValueError("audit.required needs audit.sink")
        return self

    @property
    def file(self) -> Path | None:
        """The file for records, on this machine."""
        return None if self.path is None else Path(str(self.path).replace(HOST, socket.gethostname()))

    def check_stdio(self) -> None:
        """Raise StartError where records would be written into the protocol's stream."""
        if self.sink in {"stdout", "both"}:
            message = "Over standard input and output there is no room for audit records: the protocol is there."
            raise StartError(ErrorCode.INVALID_ARGUMENT, message, next_step="Set audit.sink=file and audit.path.")
