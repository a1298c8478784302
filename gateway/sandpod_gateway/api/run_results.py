"""What calls about runs return: the run result, background runs, contexts."""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from sandpod_gateway.api.results import Artifact, Count, OfSandbox, ResultModel


class Outcome(StrEnum):
    """How a run ended."""

    OK = "ok"
    ERROR = "error"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    OUT_OF_MEMORY = "out_of_memory"
    OUTPUT_LIMIT = "output_limit"
    SANDBOX_LOST = "sandbox_lost"


class Language(StrEnum):
    """The languages that every image of Sandpod runs."""

    PYTHON = "python"
    JAVASCRIPT = "javascript"
    SHELL = "shell"


class Rich(ResultModel):
    """One form of what a program showed: a picture is a block of the answer, other forms are here as text."""

    index: Count = 0  # what it is a form of: the first thing that was shown is 0
    mime_type: str
    size: Count
    text: str | None = None  # it itself, unless it is a picture


class RunResult(OfSandbox):
    """What a run did. A failed run is a result too: both streams survive it."""

    run_id: str  # the run's own name
    outcome: Outcome  # how it ended; ok means exit code 0
    exit_code: int | None = None  # the exit code, where the program left one
    signal: str | None = None  # the signal that ended it, as SIGKILL
    stdout: str = ""  # standard output; head and tail where it was cut
    stdout_bytes: Count = 0  # bytes that the program wrote there in all
    stdout_truncated: bool = False  # whether stdout is only a part of it
    stderr: str = ""  # standard error; head and tail where it was cut
    stderr_bytes: Count = 0  # bytes that the program wrote there in all
    stderr_truncated: bool = False  # whether stderr is only a part of it
    result: dict[str, str] | None = None  # the last value by MIME type (contexts only)
    displays: list[Rich] = Field(default_factory=list)  # what the program showed, in order
    displays_dropped: Count = 0  # how many of these, or forms of the last value, were too much to come back
    context: str | None = None  # the context it ran in; none is a fresh process
    context_state: Literal["kept", "lost"] | None = None  # whether the context's variables are still there
    artifacts: list[Artifact] = Field(default_factory=list)  # files that the run created or changed
    artifacts_omitted: Count = 0  # how many more there are
    duration_ms: Annotated[float, Field(ge=0)] = 0  # wall time in the sandbox, milliseconds
    cpu_ms: Annotated[float, Field(ge=0)] = 0  # processor time of it and its children, milliseconds
    max_rss_bytes: Count = 0  # peak memory of its largest process, bytes
    progress_dropped_bytes: Count = 0  # output bytes not sent as progress because the client read slowly
    hint: str | None = None  # what to do about a failure, or about what is missing here, where it is known


class RunStarted(ResultModel):
    """A background run that was begun."""

    run_id: str  # the run's name; pass it to read_run and stop_run
    sandbox: str  # the handle of the sandbox it runs in
    state: Literal["running", "ended"]  # whether it still runs


class RunOutput(RunStarted):
    """What a run has written since the cursor, and its result once it has ended."""

    stdout: str = ""  # standard output since the cursor
    stderr: str = ""  # standard error since the cursor
    cursor: Count = 0  # pass it to the next read_run to get what comes after this
    dropped_bytes: Count = 0  # bytes of output between the cursor and this that are no longer kept
    result: RunResult | None = None  # how it ended, once it has and all was read, with all of its output


class RunInfo(ResultModel):
    """A run in a listing."""

    run_id: str
    language: str
    state: Literal["running", "ended"]  # whether it still runs
    background: bool = False  # whether it was begun by start_run
    context: str | None = None  # the context it runs in
    started_at: str  # when it was begun
    outcome: Outcome | None = None


class RunList(OfSandbox):
    """The runs of a sandbox: those that go on, and ended ones that are still remembered."""

    runs: list[RunInfo]


class ContextInfo(ResultModel):
    """A context in a listing."""

    name: str  # pass it as `context` to run in it
    language: str
    state: Literal["idle", "busy", "lost"]  # lost: its process and variables are gone
    started_at: str  # when it was made


class ContextList(OfSandbox):
    """The contexts of a sandbox."""

    contexts: list[ContextInfo]


class ContextRestarted(OfSandbox):
    """A context whose variables are gone; it is made anew at its next use."""

    context: str
