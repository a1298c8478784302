"""How the code of each language is run: its command, its job, and the folder outside the workspace with its file."""

import contextlib
import os
import stat
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from sandpod_runner.files.workspace import make_usable
from sandpod_runner.ipc.jobs import Job
from sandpod_runner.processes.languages import CommandLanguage, Languages
from sandpod_runner.processes.node_pool import BOOTSTRAP
from sandpod_runner.protocol.errors import refusal_of
from sandpod_runner.runs.request import MAX_TEXT, RunRequest

CELLS: Final = os.path.join(os.path.dirname(BOOTSTRAP), "context.cjs")
SUFFIXES: Final = {"python": ".py", "javascript": ".js", "shell": ".sh"}


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


class CodeFolder:
    """Writes runs' code for tracebacks and `multiprocessing` to read."""

    def __init__(self, tmp: str, commands: Mapping[str, CommandLanguage]) -> None:
        self._suffixes = {**{name: language.extension for name, language in commands.items()}, **SUFFIXES}
        self.path = f"{tmp}/.sandpod-{os.urandom(4).hex()}"
        os.makedirs(self.path, mode=0o700, exist_ok=True)

    def write(self, request: RunRequest) -> str:
        """Write a run's code and return the file's path. Raises Refusal: quota_exceeded, or what the system says."""
        try:
            try:
                return self._write(request)
            except (FileNotFoundError, NotADirectoryError, PermissionError):
                self._repair()
                return self._write(request)
        except OSError as error:
            self.remove(request)
            raise refusal_of(error) from error

    def _write(self, request: RunRequest) -> str:
        path = self._file(request)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with open(fd, "wb", buffering=0) as file:
            file.write(request.code)
        return path

    def _repair(self) -> None:
        """Make the folder anew: it is the programs' user's, and one may have cleaned up thoroughly."""
        make_usable(os.path.dirname(self.path))
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISDIR(os.lstat(self.path).st_mode):
                os.unlink(self.path)
        os.makedirs(self.path, mode=0o700, exist_ok=True)
        make_usable(self.path)

    def remove(self, request: RunRequest) -> None:
        """Remove a run's file; Node may have renamed it to say that it is a module."""
        path = self._file(request)
        for name in (path, f"{path.removesuffix('.js')}.mjs") if request.language == "javascript" else (path,):
            try:
                os.unlink(name)
            except OSError:
                continue

    def _file(self, request: RunRequest) -> str:
        return f"{self.path}/{request.run}{self._suffixes[request.language]}"
