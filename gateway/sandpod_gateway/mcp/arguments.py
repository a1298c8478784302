"""The tools' arguments, each described once for the model that reads it. `$name` stands for a figure of the settings.

What is clear is accepted: a list as JSON text, a language by another name that it has.
"""

import json
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, Field

from sandpod_api.types import MAX_LIFETIME
from sandpod_gateway.api.strict_model import StrictModel
from sandpod_gateway.runs.request import OTHER_NAMES

RUN_TOOLS: Final = ("run_python_code", "run_js_code", "run_shell_command", "start_run")
"""The tools that run something, by which a secret can be limited."""
DEFAULT: Final = "default"  # what clients that fill in every argument call that sandbox; no other has this name


def parsed(value: Any) -> Any:
    """Return what JSON text stands for, where a list or an object is wanted."""
    if isinstance(value, str) and value.lstrip()[:1] in {"[", "{"}:
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value
    return value


def _as_list(value: Any) -> Any:
    value = parsed(value)
    return [value] if isinstance(value, str) and value else value


def _named(value: Any) -> Any:
    """Return a name, or None for one that is empty: clients that must fill in every argument send that."""
    return None if isinstance(value, str) and not value.strip() else value


def _sandbox(value: Any) -> Any:
    return None if isinstance(value, str) and value.strip().lower() == DEFAULT else value


def _language(value: Any) -> Any:
    return value.strip().lower() if isinstance(value, str) else value


def _package_language(value: Any) -> Any:
    name = _language(value)
    return OTHER_NAMES.get(name, name) if isinstance(name, str) else name


Name = Annotated[str | None, BeforeValidator(_named)]
Sandbox = Annotated[
    Name, BeforeValidator(_sandbox), Field(description="A sandbox's handle or name; default: your default sandbox.")
]
RequiredSandbox = Annotated[str, Field(description="The sandbox's handle or name.")]
Fresh = Annotated[bool, Field(description="Use a new sandbox, deleted afterwards.")]
ColdStart = Annotated[
    bool | None,
    Field(
        description="When no warm sandbox is ready: true waits some seconds for a new one, false fails at once with "
        "pool_exhausted."
    ),
]
FreshColdStart = Annotated[bool | None, Field(description="With fresh: as in create_sandbox.")]
Timeout = Annotated[
    float | None, Field(description="Seconds until it is stopped; default $timeout, at most $max_timeout.")
]
# What these are every model knows from their names, and pays for each word: some clients want one all the same.
Stdin = Annotated[str | None, Field(description="Input.")]
Args = Annotated[list[str] | None, BeforeValidator(_as_list), Field(description="Arguments.")]
Env = Annotated[dict[str, str] | None, BeforeValidator(parsed), Field(description="Variables.")]
Cwd = Annotated[str, Field(description="Working directory, relative to /workspace.")]
Context = Annotated[
    Name,
    Field(
        description="Name of a process that keeps variables between calls and returns the last expression's value. "
        "Default: a new process."
    ),
]
Key = Annotated[Name, Field(description="Repeating a call with its key and code returns the first outcome.")]
RequiredPackages = Annotated[
    list[str],
    BeforeValidator(_as_list),
    Field(description='Names, optionally with versions or extras: "numpy", "pandas>=2", "uvicorn[standard]".'),
]
Packages = Annotated[list[str] | None, BeforeValidator(_as_list), Field(description="Packages to install first.")]
StripAnsi = Annotated[bool, Field(description="Remove terminal control sequences.")]
MaxOutput = Annotated[
    int | None, Field(ge=100, description="Most characters of output to return; default $max_output.")
]
Wait = Annotated[float, Field(ge=0, le=300, description="Most seconds to wait.")]
RunId = Annotated[str, Field(description="`run_id` of start_run or of a run's result.")]
Path = Annotated[str, Field(description="Path relative to /workspace.")]
LanguageName = Annotated[
    str, BeforeValidator(_language), Field(description="python, javascript, shell, or one that the template adds.")
]
PackageLanguage = Annotated[
    str, BeforeValidator(_package_language), Field(description="python, or javascript for npm packages.")
]


class WorkspaceArgument(StrictModel):
    """A workspace other than the template's."""

    size: Annotated[int | None, Field(ge=2**20, le=2**50, description="Bytes that it can hold.")] = None
    persistent: bool = False
    """Suspend the sandbox when idle instead of ending it; the next call resumes it with its files, without contexts and
    processes."""


class LifetimeArgument(StrictModel):
    """How long a sandbox lives."""

    ttl: Annotated[int | None, Field(ge=1, le=MAX_LIFETIME)] = None
    """Seconds until it ends, used or not."""
    idle_timeout: Annotated[int | None, Field(ge=1, le=MAX_LIFETIME)] = None
    """Seconds without use until it ends."""
