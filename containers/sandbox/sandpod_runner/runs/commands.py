"""How each language is started: its command and the job. Pure."""

import os
from dataclasses import replace
from typing import Final

from sandpod_runner.ipc.jobs import Job
from sandpod_runner.processes.languages import Languages
from sandpod_runner.processes.node_pool import BOOTSTRAP
from sandpod_runner.runs.request import MAX_TEXT, RunRequest

CELLS: Final = os.path.join(os.path.dirname(BOOTSTRAP), "context.cjs")


def context_commands(languages: Languages) -> dict[str, list[str]]:
    """Return the command of each language's contexts, which for Python is none: its processes are forked."""
    commands: dict[str, list[str]] = {"python": []} if languages.python.version else {}
    if languages.node is not None:
        # The parser that Node's own REPL uses is internal.
        commands["javascript"] = [languages.node, "--expose-internals", CELLS]
    return commands


def needs_file(request: RunRequest) -> bool:
    """Return whether the code must lie in a file: all but a command that fits into an argument."""
    if request.context is not None:
        return False  # its lines are kept in the context itself, which outlives the run
    return request.language != "shell" or len(request.code) >= MAX_TEXT


def build_job(request: RunRequest, languages: Languages, *, file: str, cwd: str, base: Job) -> Job:
    """Return the job of a run of any language but JavaScript; `file` is empty where its code needs none."""
    job = replace(base, cwd=cwd, file=file, args=request.args, env=base.env | request.env)
    if request.language == "python":
        return replace(job, code=request.code)
    if request.language != "shell":
        command = languages.commands[request.language].command_for(file)
    elif file:
        command = [languages.shell or "", file]
    else:
        command = [languages.shell or "", "-c", os.fsdecode(request.code), os.path.basename(languages.shell or "")]
    return replace(job, command=[*command, *request.args])
