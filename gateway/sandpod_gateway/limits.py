"""Bounds of what callers send, and the checks of text that every service shares. Pure."""

from dataclasses import dataclass
from typing import Final

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.errors import SandpodError

MAX_ARGUMENTS: Final = 1000
MAX_ARGUMENTS_BYTES: Final = 100 * 1024  # below the frame's header limit even when all of it is escaped once
MAX_NAME: Final = 128  # bytes of a context's name or an idempotency key, as in the runner's protocol
MAX_PATH: Final = 4096  # bytes, as in Linux
MAX_SPELLED_PATH: Final = 4 * MAX_PATH  # characters: each byte may take four in the runner's spelling


@dataclass(frozen=True, kw_only=True, slots=True)
class RunLimits:
    """Bounds of single runs. Sizes in bytes, times in seconds."""

    code_bytes: int  # of the longest program
    stdin_bytes: int  # of the longest input
    default_timeout: float  # of a run that names none
    max_timeout: float  # the most that a run may ask for
    output_cap: int  # of each stream that are kept for a result, head and tail
    output_chars: int  # characters that a result has unless its call asks for fewer or more
    output_limit: int  # of output at which a run is ended

    def timeout(self, wanted: float | None) -> float:
        """Return a run's timeout, seconds."""
        return self.default_timeout if wanted is None else float(wanted)


def text_size(text: str) -> int:
    """Return the bytes of a text in UTF-8."""
    return len(text.encode("utf-8", "surrogatepass"))


def check_text(text: str, what: str) -> None:
    """Refuse text that no program can get: lone surrogates have no UTF-8. Raises SandpodError: invalid_content."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        message = f"The {what} is not valid Unicode text."
        step = "Send text that can be written as UTF-8."
        raise SandpodError(ErrorCode.INVALID_CONTENT, message, next_step=step) from error
