"""What a runner says, checked: its hello, a run's end, a refusal, a reply. Pure.

The runner is untrusted: numbers and texts are bounded here, and what makes no sense is refused.
"""

from itertools import groupby
from operator import itemgetter
from typing import Annotated, Final, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sandpod_gateway.api.results import Artifact, ErrorCode
from sandpod_gateway.api.run_results import Outcome
from sandpod_gateway.content import mime_type
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.limits import MAX_SPELLED_PATH
from sandpod_runner.protocol import messages as protocol
from sandpod_runner.protocol.frames import Frame

_Model = TypeVar("_Model", bound=BaseModel)
Count = Annotated[int, Field(ge=0, le=2**63)]
_Language = Annotated[str, Field(pattern=f"^{protocol.LANGUAGE.pattern}$")]
MAX_PIECES: Final = 100_000
MAX_LISTED: Final = 1000
_Name = Annotated[str, Field(min_length=1, max_length=128)]
_Time = Annotated[float, Field(ge=0, le=253_402_300_000)]  # within the year 9999, the last that a datetime has
_Millis = Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)]


class Message(BaseModel):
    """Something that a runner says, checked. What this gateway does not know of it is left out."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class ArtifactEntry(Message):
    """A file that a run created or changed."""

    path: Annotated[str, Field(min_length=1, max_length=MAX_SPELLED_PATH)]
    size: Count = 0

    def artifact(self) -> Artifact:
        """Return it as callers see it."""
        return Artifact(path=self.path, size=self.size, mime_type=mime_type(self.path))


class Ended(Message):
    """A run's end."""

    outcome: Outcome
    exit_code: Annotated[int | None, Field(ge=-(2**31), le=2**32)] = None
    signal: Annotated[str | None, Field(pattern=r"^[A-Z0-9+_]{1,16}$")] = None
    duration_ms: _Millis = 0
    cpu_ms: _Millis = 0
    max_rss_bytes: Count = 0
    stdout_bytes: Count = 0
    stderr_bytes: Count = 0
    displays: Annotated[int, Field(ge=0, le=2**31)] = 0
    displays_dropped: Annotated[int, Field(ge=0, le=2**31)] = 0
    context: Annotated[str | None, Field(min_length=1, max_length=128)] = None
    context_state: Literal["kept", "lost"] | None = None
    detail: Annotated[str | None, Field(max_length=1024)] = None
    artifacts: Annotated[list[ArtifactEntry], Field(max_length=100)] = Field(default_factory=list)
    artifacts_more: Annotated[int, Field(ge=0, le=2**31)] = 0


class Hello(Message):
    """What the runner says of itself."""

    version: int
    languages: Annotated[dict[_Language, Annotated[str, Field(max_length=64)]], Field(max_length=64)]
    packages_bytes: Count | None = None  # what added packages may take, where no file system keeps them to it


class ListedRun(Message):
    """A run, live or remembered."""

    run: _Name
    language: Annotated[str, Field(max_length=32)]
    state: Literal["live", "ended"]
    detached: bool = False
    context: _Name | None = None
    started: _Time
    outcome: Outcome | None = None


class ListedContext(Message):
    """A context."""

    name: _Name
    language: Annotated[str, Field(max_length=32)]
    state: Literal["idle", "busy", "lost"]
    started: _Time


class Listing(Message):
    """The reply to `list`."""

    runs: Annotated[list[ListedRun], Field(max_length=MAX_LISTED)] = Field(default_factory=list)
    contexts: Annotated[list[ListedContext], Field(max_length=MAX_LISTED)] = Field(default_factory=list)


class Tail(Message):
    """The reply to `tail`."""

    state: Literal["live", "ended"]
    cursor: Count
    dropped: Count = 0
    pieces: Annotated[list[tuple[Literal["stdout", "stderr"], Count]], Field(max_length=MAX_PIECES)]
    end: Ended | None = None

    def parts(self, payload: bytes) -> list[tuple[str, bytes]]:
        """Return output as it came: each part of another stream than the one before."""
        parts: list[tuple[str, bytes]] = []
        start = 0
        for stream, sizes in groupby(self.pieces, itemgetter(0)):
            end = start + sum(size for _, size in sizes)
            parts.append((stream, payload[start:end]))
            start = end
        return parts


def checked(model: type[_Model], frame: Frame) -> _Model:
    """Return a reply's header as the model. Raises backend_error, when it makes no sense."""
    try:
        return model.model_validate(frame.header)
    except ValidationError as error:
        raise senseless() from error


def senseless() -> SandpodError:
    """Return the error for an answer that no runner gives."""
    message, step = "The sandbox's answer makes no sense.", "Close it and use another one."
    return SandpodError(ErrorCode.BACKEND_ERROR, message, next_step=step)


# What to do about a refusal: by what was asked for, where that matters, and by its code. These are the codes that a
# runner gives; any other becomes backend_error.
_NEXT: Final[dict[tuple[str, ErrorCode] | ErrorCode, str]] = {
    ("delete", ErrorCode.INVALID_PATH): "Check the path. A folder that is not empty takes recursive=true.",
    ("read", ErrorCode.INVALID_PATH): "Pass the path of a file in the workspace; list_files lists a folder.",
    ("list", ErrorCode.INVALID_PATH): "Pass the path of a folder in the workspace.",
    ("archive", ErrorCode.NOT_FOUND): "Download it again.",
    ("restart", ErrorCode.NOT_FOUND): "Call list_contexts to see the contexts of a sandbox.",
    ("tail", ErrorCode.NOT_FOUND): "Call list_runs to see the runs of a sandbox.",
    ("artifacts", ErrorCode.NOT_FOUND): "Call list_runs to see the runs of a sandbox.",
    **dict.fromkeys(
        ((kind, code) for kind in ("run", "channel") for code in (ErrorCode.INVALID_PATH, ErrorCode.NOT_FOUND)),
        "Pass the path of a folder in the workspace as `cwd`.",
    ),
    ("channel", ErrorCode.SESSION_BUSY): "Close the other one first.",
    ErrorCode.INVALID_PATH: "Use another path in the workspace.",
    ErrorCode.INVALID_FILENAME: "Use another file name.",
    ErrorCode.INVALID_ARGUMENT: "Correct the argument and call again.",
    ErrorCode.INVALID_CONTENT: "Correct the content and call again.",
    ErrorCode.NOT_FOUND: "Call list_files to see what is there.",
    ErrorCode.FORBIDDEN: "Change the permissions with run_shell_command and chmod, or use another path.",
    ErrorCode.FILE_EXISTS: "Choose another name, or allow it to be overwritten.",
    ErrorCode.EXECUTION_FAILED: "Use another path, or look at it with run_shell_command.",
    ErrorCode.QUOTA_EXCEEDED: "Delete files in the workspace to make room.",
    ErrorCode.UPLOAD_TOO_LARGE: "Write it in parts.",
    ErrorCode.UNSUPPORTED_LANGUAGE: "Use a language that this sandbox has.",
    ErrorCode.SESSION_BUSY: "Try again when a run has ended; list_runs and list_contexts tell what is going on.",
    ErrorCode.CODE_TOO_LARGE: "Put the code into a file and run that.",
}


def refusal(frame: Frame, request: str) -> SandpodError:
    """Return the error that an `error` frame stands for; `request` is a file operation, or a kind of frame."""
    message = str(frame.header.get("message") or "The sandbox refused the request.")[:300]
    try:
        code = ErrorCode(str(frame.header.get("code")))
        next_step = _NEXT.get((request, code)) or _NEXT[code]
    except (ValueError, KeyError):
        return SandpodError(ErrorCode.BACKEND_ERROR, message, next_step="Try again with another sandbox.")
    return SandpodError(code, message, next_step=next_step)
