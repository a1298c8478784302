"""Bounds of what callers send, and the checks of text that every service shares. Pure."""

from typing import Annotated, Final

from pydantic import Field

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.api.strict_model import StrictModel
from sandpod_gateway.errors import SandpodError

MAX_ARGUMENTS: Final = 1000
MAX_ARGUMENTS_BYTES: Final = 100 * 1024  # below the frame's header limit even when all of it is escaped once
MAX_NAME: Final = 128  # bytes of a context's name or an idempotency key, as in the runner's protocol
MAX_PATH: Final = 4096  # bytes, as in Linux
MAX_SPELLED_PATH: Final = 4 * MAX_PATH  # characters: each byte may take four in the runner's spelling


class RunLimits(StrictModel):
    """Bounds of single runs and files. Sizes in bytes, times in seconds."""

    code_bytes: Annotated[int, Field(ge=1024, le=3 * 2**20)] = 2**20
    """Longest program."""
    stdin_bytes: Annotated[int, Field(ge=0, le=3 * 2**20)] = 2**20
    """Longest input of a run."""
    upload_bytes: Annotated[int, Field(ge=1024, le=2 * 2**20)] = 2 * 2**20
    """Largest file in one call; as base64 it must fit a 4 MiB request."""
    run_timeout: Annotated[float, Field(gt=0)] = 45
    """Time of a run that names none: clients give up after 60."""
    max_run_timeout: Annotated[float, Field(gt=0, le=86_400)] = 3600
    """Most time a run may ask for."""
    output_cap: Annotated[int, Field(ge=1024, le=256 * 1024)] = 100 * 1024
    """Bytes of each stream in a result, head and tail."""
    output_chars: Annotated[int, Field(ge=100)] = 24_000
    """Characters of output in an answer whose call does not ask for fewer or more; 24,000 are about 8,000 tokens."""
    output_bytes: Annotated[int, Field(ge=1024)] = 2 * 2**30
    """Output of one run at which it is ended; guards the network, not memory."""

    def timeout(self, wanted: float | None) -> float:
        """Return a run's timeout, seconds."""
        return self.run_timeout if wanted is None else float(wanted)


def text_size(text: str) -> int:
    """Return the bytes of a text in UTF-8."""
    return len(text.encode("utf-8", "surrogatepass"))


def check_text(text: str, what: str) -> None:
    """Refuse text that no program can get: lone surrogates have no UTF-8. Raises SandpodError: invalid_content."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        message, step = f"The {what} is not valid Unicode text.", "Send text that can be written as UTF-8."
        raise SandpodError(ErrorCode.INVALID_CONTENT, message, next_step=step) from error
