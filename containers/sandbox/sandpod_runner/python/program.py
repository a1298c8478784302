"""Runs Python code in a forked process as `python3 file` would: the same `__main__`, tracebacks, exit codes and end.

The end is done here and not by the interpreter, which would take apart all imported modules: that takes ten times as
long as a small program does.
"""

from __future__ import annotations

import _ast
import atexit
import contextlib
import gc
import io
import itertools
import os
import resource
import signal
import stat
import sys
import types
from importlib.machinery import SourceFileLoader
from typing import Any

from sandpod_runner.ipc.jobs import Job
from sandpod_runner.python import figures

CO_COROUTINE = 0x80
_FLUSH_FAILED = 120
_STREAMS = ("<stdin>", "<stdout>", "<stderr>")


class _Through(io.BufferedWriter):
    """Standard output that keeps nothing back, so that nothing is lost when the program is killed.

    Not a raw file, as `python3 -u` has it: that loses the rest of a write which a signal cuts short.
    """

    def write(self, data: Any, /) -> int:
        count = super().write(data)
        self.flush()
        return count


def run(job: Job) -> int:
    """Run the code and return the exit code; whatever must happen at a program's end has happened."""
    last_module = next(reversed(sys.modules))
    set_up(job)
    module = main_module(job.file)
    status = _execute(job, module)
    try:
        return _finish(status, module, _own_modules(last_module, job.cwd))
    except BaseException as error:  # noqa: BLE001 - interrupted at its end, by a signal of its own
        sys.__excepthook__(type(error), error, error.__traceback__)
        return status or 1


def reseed() -> None:
    """Give a forked process its own random numbers. `random` sees to that itself, numpy does not."""
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()


def rehearse() -> None:
    """Touch in a forked process what every program touches.

    After a fork each page of memory is copied at its first use, which takes most of the time that a small program
    takes. A process that waits for its program has done that already.
    """
    env = dict(os.environ)
    os.environ.clear()
    os.environ.update(env)
    stream(0)
    stream(1)
    module = main_module("")
    exec(compiled(b"x = 1", ""), vars(module))  # noqa: S102 - the program's own code comes the same way
    _release([module])
    gc.get_objects()


def set_up(job: Job) -> None:
    """Give the process the program's environment, arguments and standard streams."""
    os.environ.clear()
    os.environ.update(job.env)
    if "TZ" in job.env:
        import time  # noqa: PLC0415 - hardly any run needs it

        time.tzset()
    tempfile = sys.modules.get("tempfile")
    if tempfile is not None:
        tempfile.tempdir = None  # type: ignore[attr-defined]  # it may have been found out for another TMPDIR
    sys.argv = [job.file, *job.args]
    sys.orig_argv = [sys.executable, *sys.argv]
    sys.path.insert(0, job.cwd)
    sys.stdin, sys.stdout, sys.stderr = map(stream, range(len(_STREAMS)))
    vars(sys).update(__stdin__=sys.stdin, __stdout__=sys.stdout, __stderr__=sys.stderr)


def stream(fd: int) -> io.TextIOWrapper:
    """Return text that is read from descriptor 0, or written to 1 or 2."""
    raw = io.FileIO(fd, "w" if fd else "r", closefd=False)
    raw.name = _STREAMS[fd]
    buffer: Any = _Through(raw) if fd else io.BufferedReader(raw)
    errors = "backslashreplace" if _STREAMS[fd] == "<stderr>" else "surrogateescape"
    text = io.TextIOWrapper(buffer, encoding="utf-8", errors=errors, write_through=True)
    text.mode = "w" if fd else "r"  # type: ignore[misc]
    return text


def compiled(source: Any, file: str, mode: str = "exec", flags: int = 0) -> Any:
    """Return compiled code that may await at its top level; where it does not, that changes nothing."""
    return compile(source, file, mode, flags | _ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)


def main_module(file: str) -> types.ModuleType:
    """Return a new `__main__`, which is in its place already."""
    module = types.ModuleType("__main__")
    vars(module).update(
        __file__=file,
        __builtins__=sys.modules["builtins"],
        __loader__=SourceFileLoader("__main__", file),
        __annotations__={},
        __cached__=None,
    )
    sys.modules["__main__"] = module
    return module


def usage() -> tuple[float, int]:
    """Return the processor time so far, children included, in seconds, and the peak of memory in bytes."""
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime, own.ru_maxrss * 1024


def _execute(job: Job, module: types.ModuleType) -> int:
    try:
        code = compiled(job.code, job.file)
        if code.co_flags & CO_COROUTINE:
            import asyncio  # noqa: PLC0415 - for programs that await

            asyncio.run(eval(code, vars(module)))  # noqa: S307 - running it is the task
        else:
            exec(code, vars(module))  # noqa: S102 - as above
    except SystemExit as error:
        return exit_status(error)
    except BaseException as error:  # noqa: BLE001 - it is the program's, and is reported as the interpreter does
        return report(error, job.file)
    return 0


def exit_status(error: SystemExit) -> int:
    """Return the exit code that a program asked for; a text is written to standard error as the interpreter does."""
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code & 0xFF
    with contextlib.suppress(Exception):  # its own text may raise; the exit code is what is left
        sys.stderr.write(f"{error.code}\n")
    return 1


def report(error: BaseException, file: str) -> int:
    """Report an exception as the interpreter does, from the first line of this file on, and return the exit code."""
    traceback = error.__traceback__
    # What is above the program's own first line is this module and, with `await`, the event loop.
    while traceback is not None and traceback.tb_frame.f_code.co_filename != file:
        traceback = traceback.tb_next
    kind = type(error)  # not `isinstance`, which may run code of the program
    if issubclass(kind, ValueError) and traceback is None and "null bytes" in str(error):
        error = SyntaxError(str(error))
    error = error.with_traceback(traceback)
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, traceback
    try:
        sys.excepthook(type(error), error, traceback)
    except SystemExit as leave:
        return exit_status(leave)
    except BaseException as second:  # noqa: BLE001 - a hook of the program's own
        sys.stderr.write("Error in sys.excepthook:\n")
        sys.__excepthook__(type(second), second, second.__traceback__)
        sys.stderr.write("\nOriginal exception was:\n")
        sys.__excepthook__(type(error), error, traceback)
    return -signal.SIGINT if issubclass(kind, KeyboardInterrupt) else 1


def _finish(status: int, module: types.ModuleType, own: list[types.ModuleType]) -> int:
    """Do what the interpreter does at its end, in its order, and return the exit code."""
    threading = sys.modules.get("threading")
    if threading is not None:
        threading._shutdown()  # noqa: SLF001 - the interpreter calls it so too
    figures.show_open()
    atexit._run_exitfuncs()  # noqa: SLF001 - as above
    # A daemon thread goes on until the process ends and must find its names.
    if len(sys._current_frames()) == 1:  # noqa: SLF001 - counts threads that `threading` does not know too
        _release([module, *own])
    for file in gc.get_objects():
        if issubclass(type(file), (io.BufferedWriter, io.TextIOWrapper)) and _is_regular(file):
            _flush(file)
    if not flush_streams() and status == 0:
        status = _FLUSH_FAILED
    if status == -signal.SIGINT:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    return status


def flush_streams() -> bool:
    """Write what standard output and standard error hold, and return whether all of it could be."""
    streams = [getattr(sys, name, None) for name in ("stdout", "stderr")]  # a program may have taken them away
    written = [stream is None or _flush(stream) for stream in streams]
    return all(written)


def _is_regular(file: Any) -> bool:
    # Anything else may block, and for ever where a thread holds it.
    with contextlib.suppress(Exception):  # closed, detached, or on top of something without a descriptor
        return stat.S_ISREG(os.fstat(file.fileno()).st_mode)
    return False


def _flush(file: Any) -> bool:
    with contextlib.suppress(Exception):  # any object may stand in for a stream
        file.flush()
        return True
    return False


def _own_modules(last: str, cwd: str) -> list[types.ModuleType]:
    """Return the program's own modules, newest first: what was imported after `last`, from its working directory."""
    # Only that is touched: a page of memory is copied for each object that is looked at, and there are thousands.
    names = itertools.takewhile(lambda name: name != last, reversed(sys.modules))
    found = (sys.modules[name] for name in list(names))
    modules = [module for module in found if issubclass(type(module), types.ModuleType)]
    return [module for module in modules if str(vars(module).get("__file__") or "").startswith(f"{cwd}/")]


def _release(modules: list[types.ModuleType]) -> None:
    """Drop the names of the program and of its own modules, so that open files are written and finalizers run."""
    for each in modules:
        names = vars(each)
        # As the interpreter does: names with one underscore first, and the built-ins stay for finalizers.
        for private in (True, False):
            for name in list(names):
                if name != "__builtins__" and private == (name.startswith("_") and not name.startswith("__")):
                    names[name] = None
    sys.last_value = sys.last_traceback = None
    gc.collect()
