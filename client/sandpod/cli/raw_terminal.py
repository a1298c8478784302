"""This terminal in raw mode, connected to one in a sandbox, and restored however that ends."""

import asyncio
import os
import signal
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from sandpod.api import Api
from sandpod.errors import SandpodError
from sandpod.terminal import Exit, Terminal

_READ: Final = 64 * 1024
_PAUSE: Final = 0.05  # seconds between two looks whether more can be typed
_INTERRUPT: Final = b"\x03"
# Colours, a hidden cursor, mouse and paste modes that a program has left.
_RESET: Final = b"\x1b[0m\x1b[?25h\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1006l\x1b[?2004l"


class RawTerminal:
    """Standard input and output, and a terminal at a server; see `Terminal`."""

    def __init__(self, server: Api, sandbox: str, *, command: str, cwd: str) -> None:
        self._stdin, self._stdout = sys.stdin.fileno(), sys.stdout.fileno()
        self._terminal = Terminal(server, sandbox, self._show, self._lost, command=command, cwd=cwd, size=self._size())

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
            loop.call_later(_PAUSE, self._typed_again, work)

    def _typed_again(self, work: "asyncio.Future[Exit]") -> None:
        loop = asyncio.get_running_loop()
        if work.done():
            return
        if self._terminal.is_full:
            loop.call_later(_PAUSE, self._typed_again, work)
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
