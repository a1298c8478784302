"""A context in its own process: it runs one cell after the other, and variables stay.

The runner sends each cell over a socket, with the descriptors that become 0, 1, 2 and the channel for what the cell
shows; back go one message when the cell begins and one when it has ended. Interrupts reach the code of a cell and
nothing else.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import traceback
from typing import Final

from sandpod_runner.ipc.descriptors import move_away, place
from sandpod_runner.ipc.jobs import MAX_FDS, REQUEST, Job, Kind, Message, read_job
from sandpod_runner.python import figures, program
from sandpod_runner.python.display_channel import Channel
from sandpod_runner.python.interpreter import Interpreter

_WITHOUT: Final = "IPython can't be used here, so cells are plain Python: {}\n"
_STREAMS: Final = (0, 1, 2)
_NESTED: Final = "asyncio.run() cannot be called from a running event loop"
_HINT: Final = "This cell awaits at its top level: await the coroutine there, in place of asyncio.run()."


def serve(job: Job, fd: int) -> int:
    """Run cells until the runner closes its end of the socket."""
    kind, notice = _interpreter()  # before the workspace is on the path: nothing there is meant to be imported here
    program.set_up(job)
    sys.path[0] = ""
    sys.excepthook = traceback.print_exception  # the interpreter's own may look for lines in files, and a cell is none
    _hold_interrupts()
    context = _Context(socket.socket(fileno=fd), job.cwd, kind, notice)
    while context.take():
        pass
    return 0


def _interpreter() -> tuple[type[Interpreter], str]:
    """Return the class that evaluates cells, with IPython where that works, and a notice for the first cell."""
    try:
        from sandpod_runner.python.ipython import IPythonInterpreter  # noqa: PLC0415 - for contexts alone, and not everywhere
    except Exception as error:  # noqa: BLE001 - somebody's library may fail in any way
        missing = isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] == "IPython"
        return Interpreter, "" if missing else _WITHOUT.format(f"{type(error).__name__}: {error}")
    return IPythonInterpreter, ""


class _Context:
    def __init__(self, sock: socket.socket, cwd: str, kind: type[Interpreter], notice: str) -> None:
        self._sock = sock
        self._cwd = cwd
        self._pid = os.getpid()
        self._cells = 0
        try:
            self._interpreter = kind()
        except Exception as error:  # noqa: BLE001 - IPython could not be set up: where nothing can be written, for example
            self._interpreter, notice = Interpreter(), _WITHOUT.format(f"{type(error).__name__}: {error}")
        self._notice = notice

    def take(self) -> bool:
        """Run the next cell, and return whether there was one."""
        if self._interpreter.has_loop:
            self._interpreter.wait(self._readable())  # what was left to the event loop goes on meanwhile
        data, fds, _, _ = socket.recv_fds(self._sock, REQUEST.size, MAX_FDS)
        if not data:
            return False
        (number,) = REQUEST.unpack(data)
        cell = read_job(fds[0])
        place(fds[1:-1])
        self._cwd = cell.cwd or self._cwd
        channel = Channel.current = Channel(move_away(fds[-1]), self._cwd)
        before, _ = program.usage()
        status = self._interruptible(number, cell, channel)
        channel.close()
        cpu, max_rss = program.usage()
        place([os.open(os.devnull, os.O_RDWR)] * len(_STREAMS))
        program.flush_streams()  # what could not be written must not come in the next cell
        self._sock.send(Message(Kind.EXITED, number, 0, (status & 0xFF) << 8, cpu - before, max_rss).pack())
        return True

    async def _readable(self) -> None:
        import asyncio  # noqa: PLC0415 - there already, where this runs

        loop, ready = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._sock, ready.set)
        try:
            await ready.wait()
        finally:
            loop.remove_reader(self._sock)

    def _interruptible(self, number: int, cell: Job, channel: Channel) -> int:
        status = 1
        try:
            try:
                signal.signal(signal.SIGINT, signal.default_int_handler)
                self._sock.send(Message(Kind.READY, number).pack())
                status = self._run(cell, channel)
                figures.show_open()
            finally:
                _hold_interrupts()
        except BaseException:  # noqa: BLE001 - an interrupt after the cell's code, or its standard error is gone
            _hold_interrupts()
        if os.getpid() != self._pid:
            program.flush_streams()
            os._exit(status & 0xFF)  # forked by the cell, and through with it
        figures.forget_open()
        program.flush_streams()
        return status

    def _run(self, cell: Job, channel: Channel) -> int:
        self._cells += 1
        file = f"<cell {self._cells}>"
        try:
            _apply(cell)
            notice, self._notice = self._notice, ""
            sys.stderr.write(notice)
            value = self._interpreter.run(cell.code, file)
            if value is not None:
                for mime, data in self._interpreter.forms(value):
                    channel.result(mime, data)
        except SystemExit as error:
            return program.exit_status(error)
        except BaseException as error:  # noqa: BLE001 - it is the cell's, and is reported as the interpreter does
            short = None
            with contextlib.suppress(Exception):  # whatever is asked of it may be code of the cell, which fails as well
                # Notes are there from Python 3.11 on.
                if isinstance(error, RuntimeError) and _NESTED in str(error) and hasattr(error, "add_note"):
                    error.add_note(_HINT)
                short = self._interpreter.explain(error)
            if short is None:
                return abs(program.report(error, file)) and 1
            sys.stderr.write(short)
            return 1
        return 0


def _apply(cell: Job) -> None:
    """Change what the cell brings: variables of the environment, arguments, working directory."""
    os.environ.update(cell.env)
    if cell.args:
        sys.argv[1:] = cell.args
    if cell.cwd:
        os.chdir(cell.cwd)
    for number, name in ((1, "stdout"), (2, "stderr")):
        # With what an earlier cell has closed or taken away, all later ones would fail or say nothing.
        stream = getattr(sys, name, None)
        if stream is None or getattr(stream, "closed", False):
            setattr(sys, name, program.stream(number))
    sys.stdin = sys.__stdin__ = program.stream(0)  # type: ignore[misc]  # as the interpreter sets it


def _hold_interrupts() -> None:
    while True:
        try:
            # Not ignored, which the programs that a thread starts would inherit.
            signal.signal(signal.SIGINT, lambda *_: None)
        except KeyboardInterrupt:
            continue
        return
