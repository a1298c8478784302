"""The folder in which runs' code lies as real files, outside the workspace."""

import contextlib
import os
import stat
from collections.abc import Mapping
from typing import Final

from sandpod_runner.files.workspace import make_usable
from sandpod_runner.processes.languages import CommandLanguage
from sandpod_runner.protocol.errors import refusal_of
from sandpod_runner.runs.request import RunRequest

SUFFIXES: Final = {"python": ".py", "javascript": ".js", "shell": ".sh"}


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
