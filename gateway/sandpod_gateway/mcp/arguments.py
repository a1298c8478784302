"""The tools' arguments that several of them share, each described once for the model that calls them."""

from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field

from sandpod_api.types import MAX_LIFETIME

Sandbox = Annotated[
    str | None,
    Field(
        description="Handle that create_sandbox returned; without it, your default one, which runs and written files "
        "make."
    ),
]
RequiredSandbox = Annotated[str, Field(description="Handle that create_sandbox returned.")]
Fresh = Annotated[
    bool, Field(description="Use a new sandbox for this call alone and throw it away afterwards, with all its files.")
]
ColdStart = Annotated[
    bool | None,
    Field(
        description="What to do while no warm sandbox is ready: true waits some seconds for a new one, false answers "
        "pool_exhausted at once. Without it, as the capabilities say under cold_start."
    ),
]
FreshColdStart = Annotated[
    bool | None,
    Field(
        description="With fresh, what to do while no warm sandbox is ready: true waits some seconds for a new one, "
        "false answers pool_exhausted at once. Without it, as the capabilities say under cold_start."
    ),
]
Timeout = Annotated[
    float | None, Field(description="Seconds after which the program is stopped; the capabilities tell the default.")
]
Stdin = Annotated[str | None, Field(description="Text for standard input; without it, input is at its end at once.")]
Args = Annotated[list[str] | None, Field(description="Command-line arguments of the program.")]
Env = Annotated[dict[str, str] | None, Field(description="Environment variables to add.")]
Cwd = Annotated[str, Field(description="Working directory, relative to /workspace.")]
Context = Annotated[
    str | None,
    Field(
        description="Name of a context of yours, of Python or JavaScript: a process that stays, so that variables stay "
        "between calls and the last expression's value comes back as `result`. Without it, each call is a new process."
    ),
]
Key = Annotated[
    str | None,
    Field(
        description="Idempotency key: a second call with the same key and the same code starts nothing and gets the "
        "first one's outcome."
    ),
]
RequiredPackages = Annotated[
    list[str],
    Field(
        description="Names, with versions or extras if need be: numpy, numpy>=1.26,<3, uvicorn[standard]; for "
        "JavaScript as lodash or @types/node."
    ),
]
Packages = Annotated[
    list[str] | None,
    Field(description="Packages to install first unless they are there, as install_packages takes them."),
]
StripAnsi = Annotated[bool, Field(description="Take colours and other terminal control sequences out of the output.")]
RunId = Annotated[str, Field(description="The run's name, as start_run or a run's result tells it.")]
Path = Annotated[str, Field(description="Path relative to /workspace, or absolute inside it.")]


MIN_WORKSPACE: Final = 2**20
MAX_WORKSPACE: Final = 2**50


class WorkspaceArgument(BaseModel):
    """What its folder /workspace is to be."""

    model_config = ConfigDict(extra="forbid")

    size: Annotated[
        int | None,
        Field(ge=MIN_WORKSPACE, le=MAX_WORKSPACE, description="The most it can hold, bytes; else the template's size."),
    ] = None
    persistent: Annotated[
        bool,
        Field(
            description="Keep the files while the sandbox is suspended: instead of ending when idle it is suspended, "
            "and the next call that names it resumes it. Contexts and processes do not survive that."
        ),
    ] = False


class LifetimeArgument(BaseModel):
    """How long a sandbox lives."""

    model_config = ConfigDict(extra="forbid")

    ttl: Annotated[int | None, Field(ge=1, le=MAX_LIFETIME, description="Seconds to its end, used or not.")] = None
    idle_timeout: Annotated[int | None, Field(ge=1, le=MAX_LIFETIME, description="Seconds without use to its end.")] = (
        None
    )
