"""A program with a terminal of its own, as a person has it."""

import asyncio
import fcntl
import os
import pty
import re
import struct
import termios
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

PATIENCE = 8.0
"""Seconds after which a test that waits has failed."""


class PtyProgram:
    """A running program; `shown` is all that its terminal has shown."""

    def __init__(self, terminal: int, own: int) -> None:
        self.shown = bytearray()
        self.process: asyncio.subprocess.Process
        self._terminal = terminal
        self._own = own  # the program's end
        self._came = asyncio.Event()
        self._looked = 0

    def modes(self) -> list[Any]:
        """Return what the terminal is set to."""
        return termios.tcgetattr(self._own)

    def resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    def read(self) -> None:
        try:
            self.shown += os.read(self._terminal, 65536)
        except OSError:  # nobody has the other end open
            asyncio.get_running_loop().remove_reader(self._terminal)
        self._came.set()

    async def until(self, pattern: str) -> str:
        """Return what is shown up to a text that matches."""
        while (found := re.compile(pattern.encode()).search(self.shown, self._looked)) is None:
            self._came.clear()
            try:
                await asyncio.wait_for(self._came.wait(), PATIENCE)
            except TimeoutError:
                raise AssertionError(f"{pattern!r} does not come: {bytes(self.shown[self._looked :])!r}") from None
        start, self._looked = self._looked, found.end()
        return self.shown[start : found.end()].decode(errors="replace")


@asynccontextmanager
async def in_terminal(*command: str, columns: int = 100, rows: int = 30) -> AsyncIterator[PtyProgram]:
    """Start a program in a terminal of its own."""
    terminal, own = pty.openpty()
    program = PtyProgram(terminal, own)
    program.resize(columns, rows)
    asyncio.get_running_loop().add_reader(terminal, program.read)
    try:
        # The terminal is the one of its session, which signals go to.
        program.process = await asyncio.create_subprocess_exec(
            "setsid", "--ctty", *command, stdin=own, stdout=own, stderr=own
        )
        yield program
    finally:
        if program.process.returncode is None:
            program.process.kill()
            await program.process.wait()
        asyncio.get_running_loop().remove_reader(terminal)
        os.close(terminal)
        os.close(own)
