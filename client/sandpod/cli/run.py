"""`sandpod run`: runs a program in a sandbox; its output, input and exit code are those of the command."""

import argparse
import os
import stat
import sys
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

from sandpod.blocking import Sandbox
from sandpod.cli.arguments import DEFAULT, server
from sandpod.cli.output import print_json, say, write_raw
from sandpod.errors import InvalidArgumentError, SandpodError
from sandpod.results import RunResult

EXIT_REFUSED: Final = 125  # as docker's: the program was not run
_EXIT_TIMEOUT: Final = 124  # as timeout's
_LANGUAGES: Final = {
    **dict.fromkeys((".js", ".mjs", ".cjs", ".ts"), "javascript"),
    **dict.fromkeys((".sh", ".bash"), "shell"),
    ".rb": "ruby",
}
_SIGNALS: Final = {"SIGHUP": 1, "SIGINT": 2, "SIGQUIT": 3, "SIGABRT": 6, "SIGKILL": 9, "SIGSEGV": 11, "SIGTERM": 15}


class Ended(Protocol):
    """How a program ended: a run's result, or the end of a terminal."""

    @property
    def exit_code(self) -> int | None:
        """Its exit code, where it left one."""

    @property
    def signal(self) -> str | None:
        """The signal that ended it."""

    @property
    def outcome(self) -> str:
        """In a word."""


def add_parser(commands: Any, options: argparse.ArgumentParser) -> None:
    """Add the command to the parser's subcommands."""
    run = commands.add_parser("run", help="run a program in a sandbox", parents=[options])
    run.add_argument("-c", "--code", help="the program, in place of a file")
    run.add_argument(
        "--language", help="python, javascript, shell or another; default: by the file's name, else python"
    )
    run.add_argument("--sandbox", default=DEFAULT, help="handle or name of a sandbox; default: your default one")
    run.add_argument("--context", help="process that keeps variables between runs; its last value is printed")
    run.add_argument("--timeout", type=float, help="seconds until the program is stopped")
    run.add_argument("--env", action="append", default=[], metavar="NAME=VALUE", help="environment variable")
    run.add_argument("--cwd", help="folder that it runs in, relative to the workspace")
    run.add_argument("-n", "--no-stdin", action="store_true", help="give the program no input")
    run.add_argument(
        "program", nargs=argparse.REMAINDER, metavar="FILE ARGUMENT ...", help="the program, - for input, and arguments"
    )
    run.set_defaults(command=command, exit_refused=EXIT_REFUSED)


def command(arguments: argparse.Namespace) -> int:
    """Run the program; return its exit code."""
    code, language, args, reads_code = _program(arguments)
    given = None if arguments.no_stdin or reads_code or not _has_input() else sys.stdin.buffer.read().decode()
    show = (
        {}
        if arguments.json
        else {
            "on_stdout": partial(write_raw, sys.stdout),
            "on_stderr": partial(write_raw, sys.stderr),
        }
    )
    with Sandbox.connect(arguments.sandbox, **server(arguments)) as sandbox:
        result = sandbox.run(
            code,
            language=language,
            context=arguments.context,
            timeout=arguments.timeout,
            env=dict(_variable(each) for each in arguments.env),
            input=given,
            args=args,
            cwd=arguments.cwd,
            **show,
        )
    if arguments.json:
        print_json({**_shown(result), "exit": exit_code_of(result)})
    else:
        if result.result is not None:
            write_raw(sys.stdout, f"{result.result}\n")
        if result.dropped_bytes:
            say(f"{result.dropped_bytes} bytes of output came faster than they were read, and are left out.")
        elif result.hint is not None and not (result.stdout_truncated or result.stderr_truncated):
            say(result.hint)  # of output that is cut there is nothing to say: all of it was shown
    return exit_code_of(result)


def exit_code_of(result: Ended) -> int:
    """Return what a shell would say of a program that ended so."""
    if result.outcome == "timeout":
        return _EXIT_TIMEOUT
    if result.exit_code is not None:
        return result.exit_code
    return 128 + _SIGNALS[result.signal] if result.signal in _SIGNALS else 1


def _program(arguments: argparse.Namespace) -> tuple[str, str, list[str], bool]:
    """Return code, language, arguments, and whether the code came from standard input."""
    program = list(arguments.program)
    if arguments.code is not None:
        return arguments.code, arguments.language or "python", program, False
    if not program:
        raise _wrong("There is no program to run.", "Name a file, - for standard input, or give the code with -c.")
    name = program.pop(0)
    try:
        code = (sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()).decode()
    except OSError as error:
        raise _wrong(f"The file {name} can't be read: {error.strerror}.", "Name another one.") from error
    except UnicodeDecodeError as error:
        raise _wrong(f"The file {name} is no text in UTF-8.", "Name a program's source.") from error
    return code, arguments.language or _LANGUAGES.get(Path(name).suffix.lower(), "python"), program, name == "-"


def _has_input() -> bool:
    """Whether standard input is a pipe or a file. A terminal can't be one: input is given whole, before the start."""
    try:
        kind = os.fstat(sys.stdin.fileno()).st_mode
    except (OSError, ValueError, AttributeError):
        return False
    return stat.S_ISFIFO(kind) or stat.S_ISREG(kind)


def _variable(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not name or not separator:
        raise _wrong(f"--env {text} is not NAME=VALUE.", "Write such as --env LEVEL=3.")
    return name, value


def _shown(result: RunResult) -> dict[str, Any]:
    names = ("run_id", "sandbox", "outcome", "exit_code", "signal", "stdout", "stderr", "result", "hint", "duration_ms")
    shown = {name: getattr(result, name) for name in names}
    return {**shown, "artifacts": [each.path for each in result.artifacts]}


def _wrong(message: str, step: str) -> SandpodError:
    return InvalidArgumentError("invalid_argument", message, step)
