"""What calls about runs return: the run result, background runs, contexts.

MCP tools, REST and CLI return these same models.
"""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from sandpod_gateway.api.results import Artifact, ResultModel


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
    """The languages that every sandbox image of ours runs."""

    PYTHON = "python"
    JAVASCRIPT = "javascript"
    SHELL = "shell"


class Rich(ResultModel):
    """A form of something that a program showed: a picture goes beside the result, other forms are here as text."""

    index: Annotated[int, Field(ge=0, description="What it is a form of: the first thing that was shown is 0.")] = 0
    mime_type: Annotated[str, Field(description="Its type.")]
    size: Annotated[int, Field(ge=0, description="Bytes.")]
    text: Annotated[str | None, Field(description="It itself, unless it is a picture.")] = None


class RunResult(ResultModel):
    """What a run did. A failed run is a result too: both streams survive it."""

    sandbox: Annotated[str, Field(description="The handle of the sandbox it ran in.")]
    run_id: Annotated[str, Field(description="The run's own name.")]
    outcome: Annotated[Outcome, Field(description="How it ended; ok means exit code 0.")]
    exit_code: Annotated[int | None, Field(description="The exit code, where the program left one.")] = None
    signal: Annotated[str | None, Field(description="The signal that ended it, as SIGKILL.")] = None
    stdout: Annotated[str, Field(description="Standard output; head and tail where it was cut.")] = ""
    stdout_bytes: Annotated[int, Field(ge=0, description="Bytes that the program wrote there in all.")] = 0
    stdout_truncated: Annotated[bool, Field(description="Whether stdout is only a part of it.")] = False
    stderr: Annotated[str, Field(description="Standard error; head and tail where it was cut.")] = ""
    stderr_bytes: Annotated[int, Field(ge=0, description="Bytes that the program wrote there in all.")] = 0
    stderr_truncated: Annotated[bool, Field(description="Whether stderr is only a part of it.")] = False
    result: Annotated[dict[str, str] | None, Field(description="The last value by MIME type (contexts only).")] = None
    displays: Annotated[list[Rich], Field(description="What the program showed, in order.")] = Field(
        default_factory=list
    )
    displays_dropped: Annotated[
        int, Field(ge=0, description="How many of these, or forms of the last value, were too much to come back.")
    ] = 0
    context: Annotated[str | None, Field(description="The context it ran in; none is a fresh process.")] = None
    context_state: Annotated[
        Literal["kept", "lost"] | None, Field(description="Whether the context's variables are still there.")
    ] = None
    artifacts: Annotated[list[Artifact], Field(description="Files that the run created or changed.")] = Field(
        default_factory=list
    )
    artifacts_omitted: Annotated[int, Field(ge=0, description="How many more; list_artifacts tells more of them.")] = 0
    duration_ms: Annotated[float, Field(ge=0, description="Wall time in the sandbox, milliseconds.")] = 0
    cpu_ms: Annotated[float, Field(ge=0, description="Processor time of it and its children, milliseconds.")] = 0
    max_rss_bytes: Annotated[int, Field(ge=0, description="Peak memory of its largest process, bytes.")] = 0
    progress_dropped_bytes: Annotated[
        int, Field(ge=0, description="Output bytes not sent as progress because the client read slowly.")
    ] = 0
    hint: Annotated[
        str | None, Field(description="What to do about a failure, or about what is missing here, where it is known.")
    ] = None


class RunStarted(ResultModel):
    """A background run that was begun."""

    run_id: Annotated[str, Field(description="The run's name; pass it to read_run and stop_run.")]
    sandbox: Annotated[str, Field(description="The handle of the sandbox it runs in.")]
    state: Annotated[Literal["running", "ended"], Field(description="Whether it still runs.")]


class RunOutput(ResultModel):
    """What a run has written since the cursor, and its result once it has ended."""

    run_id: str
    sandbox: str
    state: Annotated[Literal["running", "ended"], Field(description="Whether it still runs.")]
    stdout: Annotated[str, Field(description="Standard output since the cursor.")] = ""
    stderr: Annotated[str, Field(description="Standard error since the cursor.")] = ""
    cursor: Annotated[int, Field(ge=0, description="Pass it to the next read_run to get what comes after this.")] = 0
    dropped_bytes: Annotated[
        int, Field(ge=0, description="Bytes of output between the cursor and this that are no longer kept.")
    ] = 0
    result: Annotated[
        RunResult | None, Field(description="How it ended, once it has and all was read, with all of its output.")
    ] = None


class RunInfo(ResultModel):
    """A run in a listing."""

    run_id: str
    language: str
    state: Annotated[Literal["running", "ended"], Field(description="Whether it still runs.")]
    background: Annotated[bool, Field(description="Whether it was begun by start_run.")] = False
    context: Annotated[str | None, Field(description="The context it runs in.")] = None
    started_at: Annotated[str, Field(description="When it was begun.")]
    outcome: Annotated[Outcome | None, Field(description="How it ended, once it has.")] = None


class RunList(ResultModel):
    """The runs of a sandbox: those that go on, and ended ones that are still remembered."""

    sandbox: str
    runs: list[RunInfo]


class ContextInfo(ResultModel):
    """A context in a listing."""

    name: Annotated[str, Field(description="Pass it as `context` to run in it.")]
    language: str
    state: Annotated[
        Literal["idle", "busy", "lost"],
        Field(description="Whether something runs in it now; lost means that its process and variables are gone."),
    ]
    started_at: Annotated[str, Field(description="When it was made.")]


class ContextList(ResultModel):
    """The contexts of a sandbox."""

    sandbox: str
    contexts: list[ContextInfo]


class ContextRestarted(ResultModel):
    """A context whose variables are gone; it is made anew at its next use."""

    sandbox: str
    context: str
