"""The master side of a pseudo-terminal as a channel's end: what its programs write, and what is typed."""

import asyncio
import contextlib
import fcntl
import os
import struct
import termios
from collections.abc import Callable
from typing import Any

from sandpod_runner.channels.channel import Channel
from sandpod_runner.protocol.fields import whole
from sandpod_runner.protocol.messages import CHANNEL_PIECE, CHANNEL_WINDOW, MAX_TERMINAL


class PseudoTerminal(Channel):
    """A pseudo-terminal. Raises OSError: None can be had."""

    def __init__(self, name: str, forget: Callable[[str], object]) -> None:
        super().__init__(name, forget)
        self.hang_up: Callable[[], None] = self.disconnect  # what is done where nobody comes back, or wants it any more
        self._loop = asyncio.get_running_loop()
        self._master, self._slave = os.openpty()
        os.set_blocking(self._master, False)
        self._typed = bytearray()
        self._finished = False  # whether the programs have ended: what they wrote is all there
        self._reading = False

    def hand_over(self) -> list[int]:
        """Return the program's standard streams, which are the caller's from now on."""
        slave, self._slave = self._slave, -1
        return [slave] * 3

    def discard(self) -> None:
        """Close what is open: there will be no program."""
        self.disconnect()
        if self._slave >= 0:
            os.close(self.hand_over()[0])

    def resize(self, header: dict[str, Any]) -> None:
        """Tell the programs, by SIGWINCH, how large it is. Raises Refusal: The fields are malformed."""
        rows, columns = whole(header, "rows", 24, MAX_TERMINAL), whole(header, "cols", 80, MAX_TERMINAL)
        if self._master >= 0:
            with contextlib.suppress(OSError):
                fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("=HHHH", max(1, rows), max(1, columns), 0, 0))

    def fill(self) -> None:
        """Read as long as there is room; the programs wait where there is none."""
        wanted = self._master >= 0 and self.sending.room > 0
        if wanted and self._finished:
            self._read()
        elif wanted != self._reading:
            self._reading = wanted
            if wanted:
                self._loop.add_reader(self._master, self._readable)
            elif self._master >= 0:
                self._loop.remove_reader(self._master)

    def arrived(self, data: bytes) -> None:
        """Type it in, as fast as the programs take it."""
        waiting = bool(self._typed)
        self._typed += data
        if not waiting:
            self._write()

    def type_in(self, data: bytes) -> None:
        """Type in what did not come over the channel. What is too much for programs that don't read is not taken."""
        if len(self._typed) + len(data) <= CHANNEL_WINDOW:
            self.arrived(data)

    def finish(self) -> None:
        """Send what the programs wrote, and the end: all of them have ended."""
        self._finished = True
        self._stop_reading()
        self.pump()

    def disconnect(self) -> None:
        """Hang up: the kernel tells the session, by SIGHUP."""
        self._stop_reading()
        if self._master >= 0:
            self._loop.remove_writer(self._master)
            os.close(self._master)
            self._master = -1
        self._typed.clear()
        self.sending.finish()

    def end(self) -> None:
        """Hang up."""
        self.hang_up()
        self.disconnect()

    def _readable(self) -> None:
        self._read()
        self.pump()

    def _read(self) -> None:
        """Read what there is and has room, at most a piece while more may come: the kernel gives little at a time."""
        size = self.sending.room if self._finished else min(CHANNEL_PIECE, self.sending.room)
        while size > 0 and self._master >= 0:
            try:
                data = os.read(self._master, size)
            except BlockingIOError:
                if not self._finished:
                    return
                data = b""
            except OSError:  # nothing has it open any more
                data = b""
            if not data:
                self.disconnect()
            self.sending.put(data)
            size -= len(data)

    def _write(self) -> None:
        try:
            while self._typed and self._master >= 0:
                count = os.write(self._master, memoryview(self._typed)[:CHANNEL_PIECE].tobytes())
                del self._typed[:count]
                if not count:  # as some kernels say that there is no room
                    break
        except BlockingIOError:
            pass
        except OSError:  # nothing has it open any more
            self._typed.clear()
        if self._master < 0:
            self._typed.clear()
        elif self._typed:
            self._loop.add_writer(self._master, self._write)
        else:
            self._loop.remove_writer(self._master)
        self.dealt_with(self.receiving.received - len(self._typed))

    def _stop_reading(self) -> None:
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._master)
