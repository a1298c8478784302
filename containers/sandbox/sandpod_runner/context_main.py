"""A context in its own process: it runs one cell after the other, and variables stay.

Called by `child.py` in a forked process. `contexts.py` sends each cell over a socket, with the descriptors that become
0, 1, 2 and the channel for what the cell shows; back go one message when the cell begins and one when it has ended.
Interrupts reach the code of a cell and nothing else.
"""

import _ast
import ast
import asyncio
import linecache
import os
import resource
import signal
import socket
import sys
import traceback
from types import CodeType, TracebackType
from typing import Any, Final

from sandpod_runner import displays, python_main, rich
from sandpod_runner.jobs import MAX_FDS, REQUEST, Job, Kind, Message, read_job

_CO_COROUTINE: Final = 0x80
_STREAMS: Final = (0, 1, 2)
_NESTED: Final = "asyncio.run() cannot be called from a running event loop"
_HINT: Final = "This cell awaits at its top level: await the coroutine there, in place of asyncio.run()."


def serve(job: Job, fd: int) -> int:
    """Run cells until the runner closes its end of the socket."""
    python_main.set_up(job)
    sys.path[0] = ""
    sys.excepthook = _tell
    _hold_interrupts()
    context = _Context(socket.socket(fileno=fd))
    while context.take():
        pass
    return 0


class _Context:
    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._pid = os.getpid()
        self._cells = 0
        self._loop: asyncio.Runner | None = None
        self._names = vars(python_main.main_module(""))
        del self._names["__file__"], self._names["__loader__"]

    def take(self) -> bool:
        """Run the next cell, and tell whether there was one."""
        self._wait()
        data, fds, _, _ = socket.recv_fds(self._sock, REQUEST.size, MAX_FDS)
        if not data:
            return False
        (number,) = REQUEST.unpack(data)
        cell = read_job(fds[0])
        _place(fds[1:-1])
        channel = displays.Channel(displays.move_away(fds[-1]))
        displays.use(channel)
        before = _used()
        status = self._interruptible(number, cell, channel)
        channel.close()
        cpu, max_rss = _used()
        _place([os.open(os.devnull, os.O_RDWR)] * len(_STREAMS))
        _flush()  # what could not be written must not come in the next cell
        self._sock.send(Message(Kind.EXITED, number, 0, (status & 0xFF) << 8, cpu - before[0], max_rss).pack())
        return True

    def _wait(self) -> None:
        """Wait for the next cell; what was left to the event loop goes on meanwhile."""
        if self._loop is not None and not self._loop.get_loop().is_closed():
            self._loop.run(self._readable())

    async def _readable(self) -> None:
        loop = asyncio.get_running_loop()
        ready = loop.create_future()
        loop.add_reader(self._sock, _set, ready)
        try:
            await ready
        finally:
            loop.remove_reader(self._sock)

    def _interruptible(self, number: int, cell: Job, channel: displays.Channel) -> int:
        status = 1
        try:
            try:
                signal.signal(signal.SIGINT, signal.default_int_handler)
                self._sock.send(Message(Kind.READY, number).pack())
                status = self._run(cell, channel)
                python_main.show_figures()
            finally:
                _hold_interrupts()
        except BaseException:  # noqa: BLE001 - an interrupt after the cell's code, or its standard error is gone
            _hold_interrupts()
        if os.getpid() != self._pid:
            _flush()
            os._exit(status & 0xFF)  # forked by the cell, and through with it
        figures = sys.modules.get("sandpod_runner.figures")
        if figures is not None:
            figures.forget_open()
        _flush()
        return status

    def _run(self, cell: Job, channel: displays.Channel) -> int:
        self._cells += 1
        file = f"<cell {self._cells}>"
        try:
            _apply(cell)
            value = self._evaluate(cell.code, file)
            if value is not None:
                for mime, data in rich.forms(value):
                    channel.result(mime, data)
        except SystemExit as error:
            return python_main.exit_status(error)
        except BaseException as error:  # noqa: BLE001 - it is the cell's, and is told as the interpreter tells it
            if _NESTED in str(error) and isinstance(error, RuntimeError):
                error.add_note(_HINT)
            return abs(python_main.report(error, file)) and 1
        return 0

    def _evaluate(self, source: bytes, file: str) -> Any:
        """Run a cell and return the value of its last line, where that is an expression."""
        text = source.decode("utf-8", "replace")
        # An entry without a time is never looked up on the disk.
        linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
        tree = _compile(source, file, _ast.PyCF_ONLY_AST)
        quiet = text.rstrip().endswith(";")
        last = tree.body.pop() if not quiet and tree.body and isinstance(tree.body[-1], ast.Expr) else None
        parts = [_compile(tree, file)]
        if last is not None:
            parts.append(_compile(ast.Expression(last.value), file, mode="eval"))
        if any(part.co_flags & _CO_COROUTINE for part in parts):
            return self._event_loop().run(self._await(parts))
        return [eval(part, self._names) for part in parts][-1]  # noqa: S307 - running it is the task

    async def _await(self, parts: list[CodeType]) -> Any:
        value = None
        for part in parts:
            value = eval(part, self._names)  # noqa: S307 - as above
            if part.co_flags & _CO_COROUTINE:
                value = await value
        return value

    def _event_loop(self) -> asyncio.Runner:
        if self._loop is None or self._loop.get_loop().is_closed():
            self._loop = asyncio.Runner()
        return self._loop


def _tell(kind: type[BaseException], error: BaseException, where: TracebackType | None) -> None:
    # The interpreter's own hook may look for the lines in files, and a cell is none.
    traceback.print_exception(kind, error, where)


def _set(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


def _apply(cell: Job) -> None:
    """Change what the cell brings: variables of the environment, arguments, working directory."""
    os.environ.update(cell.env)
    if cell.args:
        sys.argv[1:] = cell.args
    if cell.cwd:
        os.chdir(cell.cwd)
    sys.stdin = sys.__stdin__ = python_main.standard_input()  # type: ignore[misc]  # as the interpreter sets it


def _compile(source: Any, file: str, flags: int = 0, mode: str = "exec") -> Any:
    return compile(source, file, mode, flags | _ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)


def _place(fds: list[int]) -> None:
    for number, fd in zip(_STREAMS, fds, strict=True):
        os.dup2(fd, number, inheritable=True)
    for fd in set(fds):
        os.close(fd)


def _hold_interrupts() -> None:
    while True:
        try:
            # Not ignored, which the programs that a thread starts would inherit.
            signal.signal(signal.SIGINT, lambda *_: None)
        except KeyboardInterrupt:
            continue
        return


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:  # noqa: BLE001, S112 - any object may stand in for a stream
            continue


def _used() -> tuple[float, int]:
    """Return the processor time so far, children included, in seconds, and the peak of memory in bytes."""
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime, own.ru_maxrss * 1024
