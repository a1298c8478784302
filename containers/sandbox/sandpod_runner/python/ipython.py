"""Evaluates the cells of a context with IPython: magics, `!command`, `object?`, `_`, extensions and their hooks.

Imported in a context's process alone, and only where the image or the machine has IPython: it is the one module here
that is not of the standard library. Plain Python is evaluated as without IPython, so that values, tracebacks, exits and
interrupts are the same in both; what is no Python is translated by IPython first.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import traceback
from collections.abc import Iterable
from typing import Any, Final

import IPython
from IPython.core.displaypub import DisplayPublisher
from IPython.core.error import UsageError
from IPython.core.formatters import DisplayFormatter
from IPython.core.interactiveshell import ExecutionInfo, ExecutionResult, InteractiveShell
from traitlets.config import Config

from sandpod_runner.python import interpreter, rich

if IPython.version_info < (9, 0):
    # As if it were missing: an older one is no fault that somebody who runs a cell could mend.
    raise ModuleNotFoundError("IPython 9 or later is needed", name="IPython")

_INSIDE: Final = os.path.dirname(IPython.__file__) + os.sep
_OWN_NAMES: Final = ("open", "exit", "quit")  # what a shell for people puts in the place of built-ins


def _do_nothing(*_: Any, **__: Any) -> None:
    pass


class _Formatter(DisplayFormatter):
    """Gives what is displayed the forms that a last value has, and those that were registered with IPython."""

    def format(self, obj: Any, include: Any = None, exclude: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        found = rich.shown(obj, self.registered(obj))
        wanted = set(include or found) - set(exclude or ())
        return {mime: data for mime, data in found.items() if mime in wanted}, {}

    def registered(self, obj: Any) -> dict[str, Any]:
        """Return the forms that come of functions which a program has registered for the object's type."""
        found = {}
        for mime, formatter in self.formatters.items():
            if mime != "text/plain":  # which is `repr`, as everywhere
                with contextlib.suppress(Exception):  # there is none, or it can't: that leaves the others
                    found[mime] = formatter.lookup(obj)(obj)
        return found


class _Publisher(DisplayPublisher):
    """Sends what is displayed to the runner."""

    def publish(self, data: Any, *_: Any, **__: Any) -> None:
        rich.display(data, raw=True)

    clear_output = _do_nothing  # what was shown has been sent


class _Shell(InteractiveShell):
    """A shell that keeps no history, asks nobody, and draws nothing on a terminal."""

    init_virtualenv = enable_gui = _do_nothing
    init_completer = init_prompts = _do_nothing  # nobody types, and with prompts libraries would think so

    def init_user_ns(self) -> None:
        super().init_user_ns()
        for name in _OWN_NAMES:
            self.user_ns.pop(name, None)

    def init_display_formatter(self) -> None:
        self.display_formatter = _Formatter(parent=self)

    def enable_matplotlib(self, gui: Any = None) -> tuple[Any, str]:
        """Leave matplotlib as it is: figures come by themselves."""
        return gui, "agg"

    def system(self, cmd: str) -> None:
        """Run `!command` with the cell's own streams; an interrupt ends the cell and not the command alone."""
        self.user_ns["_exit_code"] = subprocess.call(self.var_expand(cmd, depth=1), shell=True)  # noqa: S602 - meant so

    def showtraceback(self, exc_tuple: Any = None, *_: Any, **__: Any) -> None:
        """Report what went wrong inside a magic."""
        kind, error, where = exc_tuple or sys.exc_info()
        if isinstance(error, UsageError):
            self.show_usage_error(error)
        elif kind is not None:
            traceback.print_exception(kind, error, where)

    def showsyntaxerror(self, *_: Any, **__: Any) -> None:
        self.showtraceback()


class IPythonInterpreter(interpreter.Interpreter):
    """Evaluates cells in an IPython shell's namespace."""

    def __init__(self) -> None:
        super().__init__()
        config = Config()
        config.HistoryManager.enabled = False
        config.HistoryManager.hist_file = ":memory:"
        self._shell = _Shell.instance(
            user_module=sys.modules["__main__"],
            config=config,
            display_pub_class=_Publisher,
            colors="nocolor",
            cache_size=0,  # `_` is there; `Out` would keep every value alive
            display_page=True,
            loop_runner=self.wait,
        )
        self._shell.displayhook.cache_size = 1  # or it leaves `_` out too
        self._formatter: Any = self._shell.display_formatter

    def run(self, source: bytes, file: str) -> Any:
        """Run a cell between the events that extensions listen to."""
        shell = self._shell
        text = source.decode("utf-8", "replace")
        info = ExecutionInfo(raw_cell=text, store_history=False, silent=False, shell_futures=True, cell_id=file)
        result = ExecutionResult(info)
        result.execution_count = shell.execution_count
        shell.execution_count += 1
        shell.events.trigger("pre_execute")
        shell.events.trigger("pre_run_cell", info)
        try:
            result.result = super().run(source, file)
            if result.result is not None:
                shell.displayhook.check_for_underscore()
                shell.displayhook.update_user_ns(result.result)
        except BaseException as error:
            result.error_in_exec = error
            raise
        finally:
            shell.events.trigger("post_execute")
            shell.events.trigger("post_run_cell", result)
        return result.result

    def parse(self, source: bytes, file: str) -> tuple[Any, str]:
        """Return the syntax tree of a cell, transformed as extensions ask, and the text that its lines are of."""
        tree, text = None, source.decode("utf-8", "replace")
        try:
            if not self._shell.input_transformers_post:
                tree = interpreter.parse(source, file)
        except SyntaxError:
            if b"\0" in source:
                raise
        if tree is None:
            empty = len(text) - len(text.lstrip("\n"))  # lines that IPython leaves out, and tracebacks count
            text = "\n" * empty + self._shell.transform_cell(text)
            tree = interpreter.parse(text, file)
        return self._shell.transform_ast(tree), text

    def forms(self, value: Any) -> Iterable[tuple[str, bytes]]:
        """Return type and bytes of each form of a last value, plain text first."""
        return rich.forms(value, self._formatter.registered(value))

    def explain(self, error: BaseException) -> str | None:
        """Report the misuse of a magic in one line, and leave what is inside IPython out of a traceback."""
        if isinstance(error, UsageError):
            return f"UsageError: {error}\n"
        _leave_out_inside(error)
        return None


def _leave_out_inside(error: BaseException | None) -> None:
    """Take the frames of IPython and of this module out of an exception's traceback, and of those that it came of."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        before, where, ours = None, error.__traceback__, False
        while where is not None:
            file = where.tb_frame.f_code.co_filename
            if file.startswith("<cell "):
                ours, before = False, where
            elif before is not None:
                ours = ours or file == __file__
                before.tb_next = where.tb_next if ours or file.startswith(_INSIDE) else where
                before = before.tb_next if before.tb_next is where else before
            where = where.tb_next
        error = error.__cause__ or error.__context__
