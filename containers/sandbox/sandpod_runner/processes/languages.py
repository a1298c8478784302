"""The languages of this sandbox: Python, JavaScript, shell where the image has them, and those of its template.

What can be run is found out once, at the start. A template's language is a command line with the code's file in it.
"""

import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from sandpod_runner.processes.environment import find_program
from sandpod_runner.protocol.messages import LANGUAGE, LANGUAGES

PATIENCE: Final = 10.0  # seconds in which a program must have said its version: the sandbox is not ready before
_MOST: Final = 64  # bytes of it
FILE: Final = "{file}"  # what stands in a command line for the code's file
MAX_LANGUAGES: Final = 16
_EXTENSION: Final = re.compile(r"(\.[A-Za-z0-9_]{1,15})?", re.ASCII)

PACKAGES: Final = os.path.realpath(os.path.join(os.path.dirname(__file__), "..", ".."))
"""The folder that the runner's own package lies in."""
_TRY: Final = (
    "import sys; sys.path[0] = sys.argv[1]; "
    "from sandpod_runner.python import context; from sandpod_runner.zygote import server; "
    "print('.'.join(map(str, sys.version_info[:3])))"
)


@dataclass(frozen=True, slots=True)
class CommandLanguage:
    """A language that a command line runs."""

    name: str
    command: tuple[str, ...]
    extension: str = ""

    def command_for(self, file: str) -> list[str]:
        """Return the command line that runs a file."""
        return [word.replace(FILE, file) for word in self.command]


@dataclass(frozen=True, slots=True)
class Python:
    """The interpreter that starts programs. `version` is empty if users' Python code can't run here."""

    program: str
    version: str


@dataclass(frozen=True, slots=True)
class Languages:
    """What runs code here; None where there is none."""

    node: str | None
    shell: str | None
    commands: Mapping[str, CommandLanguage]
    versions: Mapping[str, str]  # all that can be run, by name; the version is empty where it is not known


def read_languages(text: str) -> tuple[CommandLanguage, ...]:
    """Return what a template adds: a JSON list of objects with name, command and extension. Raises ValueError."""
    rows = json.loads(text or "[]")
    if not isinstance(rows, list) or len(rows) > MAX_LANGUAGES:
        raise ValueError(f"it is a list of at most {MAX_LANGUAGES} languages")
    return tuple(_language(row) for row in rows)


def _language(row: Any) -> CommandLanguage:
    known: dict[str, Any] = row if isinstance(row, dict) else {}
    name, command, extension = (known.get(key, "") for key in ("name", "command", "extension"))
    is_command = isinstance(command, list) and all(map(_is_word, command)) and any(FILE in word for word in command[1:])
    is_name = isinstance(name, str) and LANGUAGE.fullmatch(name) and name not in LANGUAGES
    if not (is_command and is_name and isinstance(extension, str) and _EXTENSION.fullmatch(extension)):
        raise ValueError("a language is a name, a command with {file} in it, and an extension")
    return CommandLanguage(name, tuple(command), extension)


def _is_word(value: Any) -> bool:
    return isinstance(value, str) and bool(value) and "\0" not in value


def find_python(name: str | None, env: Mapping[str, str]) -> Python:
    """Return the interpreter of programs: the one of this name in the image, or the runner's own."""
    if name is None:
        return Python(sys.executable, ".".join(map(str, sys.version_info[:3])))
    program = find_program((name,), env["PATH"])
    version = _ask(env, program, "-s", "-c", _TRY, PACKAGES) if program is not None else ""
    return Python(program, version) if program is not None and version else Python(sys.executable, "")


def find_languages(python: Python, wanted: tuple[CommandLanguage, ...], env: Mapping[str, str]) -> Languages:
    """Return what can be run here. A language of the template whose program is not there is left out."""
    path = env["PATH"]
    node, shell = find_program(("node",), path), find_program(("bash", "sh"), path)
    commands = {}
    for language in wanted:
        program = find_program(language.command[:1], path)
        if program is None:
            sys.stderr.write(f"there is no {language.name}: {language.command[0]} is not in this image\n")
        else:
            commands[language.name] = replace(language, command=(program, *language.command[1:]))
    versions = dict.fromkeys(commands, "")
    if python.version:
        versions["python"] = python.version
    if node is not None:
        versions["javascript"] = _ask(env, node, "--version").removeprefix("v")
        if not versions["javascript"]:
            sys.stderr.write(f"there is no javascript: {node} does not say its version\n")
            del versions["javascript"]
            node = None
    if shell is not None:
        versions["shell"] = _ask(env, shell, "-c", "echo $BASH_VERSION") or "POSIX"
    return Languages(node, shell, commands, versions)


def _ask(env: Mapping[str, str], program: str, *args: str) -> str:
    """Return what a program says first; nothing if it fails, or takes so long that it is killed."""
    deadline, answer = time.monotonic() + PATIENCE, b""
    try:
        process = subprocess.Popen(
            [program, *args], env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, bufsize=0, process_group=0
        )
    except OSError:
        return ""
    assert process.stdout is not None  # noqa: S101 - it is a pipe
    with process.stdout as pipe:
        while len(answer) < _MOST and select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))[0]:
            piece = pipe.read(_MOST - len(answer))
            if not piece:
                break
            answer += piece
    try:
        status = process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        status = process.wait()
    return answer.decode(errors="replace").strip() if status == 0 else ""
