"""The folder with the code of programs, outside the workspace."""

import contextlib
import os
import stat
from collections.abc import Mapping

from sandpod_runner.files.workspace import make_usable
from sandpod_runner.processes.languages import CommandLanguage
from sandpod_runner.protocol.errors import refusal_of

_SUFFIXES = {"python": ".py", "javascript": ".js", "shell": ".sh"}


class CodeFolder:
    """Writes the code of programs for tracebacks and `multiprocessing` to read, into a folder outside the workspace."""

    def __init__(self, tmp: str, commands: Mapping[str, CommandLanguage]) -> None:
        self._suffixes = {**{name: language.extension for name, language in commands.items()}, **_SUFFIXES}
        self.path = f"{tmp}/.sandpod-{os.urandom(4).hex()}"
        os.makedirs(self.path, mode=0o700, exist_ok=True)

    def write(self, name: str, language: str, code: bytes) -> str:
        """Write a program's code and return the file's path. Raises Refusal: The system does not let it."""
        path = f"{self.path}/{name}{self._suffixes[language]}"
        try:
            try:
                _write(path, code)
            except (FileNotFoundError, NotADirectoryError, PermissionError):
                self._repair()
                _write(path, code)
        except OSError as error:
            self.remove(path)
            raise refusal_of(error) from error
        return path

    def remove(self, path: str) -> None:
        """Remove a program's file; Node may have renamed it to say that it is a module."""
        for name in (path, f"{path.removesuffix('.js')}.mjs") if path.endswith(".js") else (path,):
            with contextlib.suppress(OSError):
                os.unlink(name)

    def _repair(self) -> None:
        """Make the folder anew: it belongs to the programs' user, so a program may have removed it."""
        make_usable(os.path.dirname(self.path))
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISDIR(os.lstat(self.path).st_mode):
                os.unlink(self.path)
        os.makedirs(self.path, mode=0o700, exist_ok=True)
        make_usable(self.path)


def _write(path: str, code: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with open(fd, "wb", buffering=0) as file:
        file.write(code)
