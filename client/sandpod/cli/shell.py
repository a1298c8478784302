"""`sandpod shell`: a terminal in a sandbox in this terminal, which is restored however it ends."""

import argparse
import asyncio
import os
import signal
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from sandpod.cli.arguments import DEFAULT, api
from sandpod.cli.output import print_json, say
from sandpod.cli.run import exit_code_of
from sandpod.errors import InvalidArgumentError, SandpodError
from sandpod.terminal import Exit, Terminal
from sandpod.transport import finish

_READ: Final = 64 * 1024
_INTERRUPT: Final = b"\x03"
# Colours, a hidden cursor, mouse and paste modes that a program has left.
_RESET: Final = b"\x1b[0m\x1b[?25h\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1006l\x1b[?2004l"


def add_parser(commands: Any, options: argparse.ArgumentParser) -> None:
    """Add the command to the parser's subcommands."""
    shell = commands.add_parser("shell", help="open a terminal in a sandbox", parents=[options])
    shell.add_argument("sandbox", nargs="?", default=DEFAULT, metavar="SANDBOX", help="handle or name")
    shell.add_argument("-c", "--command", dest="program", default="", help="what to run in place of a shell")
    shell.add_argument("--cwd", default=".", help="folder that it begins in, relative to the workspace")
    shell.set_defaults(command=command)


def command(arguments: argparse.Namespace) -> int:
    """Connect this terminal until the program ends; return its exit code."""
    if not sys.stdin.isatty():
        step = "Use `sandpod run --language shell` for programs that no person types into."
        raise InvalidArgumentError("invalid_argument", "A shell needs a terminal as its input.", step)
    server_api = api(arguments)
    try:
        finish(server_api.find())  # which may take seconds, in which Ctrl-C still ends this command
        ended = asyncio.run(_Shell(arguments, server_api).run())
    finally:
        finish(server_api.close())
    if arguments.json:
        print_json(ended)
    elif ended.outcome not in {"ok", "error"}:
        say(f"The terminal ended: {ended.outcome}.")
    return exit_code_of(ended)


class _Shell:
    def __init__(self, arguments: argparse.Namespace, server_api: Any) -> None:
        self._stdin, self._stdout = sys.stdin.fileno(), sys.stdout.fileno()
        how = {"command": arguments.program, "cwd": arguments.cwd}
        self._terminal = Terminal(server_api, arguments.sandbox, self._show, self._lost, size=self._size(), **how)

    async def run(self) -> Exit:
        """Connect this terminal until the program ends."""
        loop = asyncio.get_running_loop()
        work = asyncio.ensure_future(self._terminal.run())
        loop.add_signal_handler(signal.SIGWINCH, lambda: self._terminal.resize(*self._size()))
        for number in (signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, work.cancel)
        try:
            with self._raw():
                loop.add_reader(self._stdin, self._typed, work)
                try:
                    return await work
                finally:
                    loop.remove_reader(self._stdin)
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None

    def _typed(self, work: "asyncio.Future[Exit]") -> None:
        """Pass on what is typed. Without a connection Ctrl-C reaches no program, and ends the command."""
        try:
            data = os.read(self._stdin, _READ)
        except OSError:
            data = b""
        if not data or (not self._terminal.is_connected and _INTERRUPT in data):
            work.cancel()
            return
        self._terminal.type(data)
        if self._terminal.is_full:  # until some of it is taken
            loop = asyncio.get_running_loop()
            loop.remove_reader(self._stdin)
            loop.call_later(0.05, self._typed_again, work)

    def _typed_again(self, work: "asyncio.Future[Exit]") -> None:
        loop = asyncio.get_running_loop()
        if work.done():
            return
        if self._terminal.is_full:
            loop.call_later(0.05, self._typed_again, work)
        else:
            loop.add_reader(self._stdin, self._typed, work)

    async def _show(self, data: bytes) -> None:
        try:
            await asyncio.to_thread(_write, self._stdout, data)
        except OSError as error:
            raise SandpodError("cancelled", "What is shown has nowhere to go.", cause=error.strerror) from error

    def _lost(self) -> None:
        _write(self._stdout, b"\r\nsandpod: The connection is lost. Trying again; Ctrl-C ends this.\r\n")

    def _size(self) -> tuple[int, int]:
        try:
            columns, rows = os.get_terminal_size(self._stdin)
        except OSError:
            return 80, 24
        return min(columns, 1000) or 80, min(rows, 1000) or 24  # a terminal that does not know its size has none

    @contextmanager
    def _raw(self) -> Iterator[None]:
        before = termios.tcgetattr(self._stdin)
        try:
            tty.setraw(self._stdin, termios.TCSANOW)
            yield
        finally:
            if os.isatty(self._stdout):
                _write(self._stdout, _RESET)
            termios.tcsetattr(self._stdin, termios.TCSANOW, before)


def _write(to: int, data: bytes) -> None:
    while data:
        data = data[os.write(to, data) :]
