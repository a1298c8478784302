"""Evaluates the cells of a context in plain Python, and is the base of the interpreter that uses IPython."""

from __future__ import annotations

import ast
import contextlib
import linecache
import sys
from collections.abc import Coroutine, Iterable
from types import CodeType
from typing import TYPE_CHECKING, Any

from sandpod_runner.python import rich
from sandpod_runner.python.program import CO_COROUTINE, compiled, main_module

if TYPE_CHECKING:
    import asyncio


class Interpreter:
    """One context's evaluator. The names are those of a new module `__main__`."""

    def __init__(self) -> None:
        self.names = vars(main_module(""))
        del self.names["__file__"], self.names["__loader__"]
        self._loop: asyncio.Runner | OldRunner | None = None

    def run(self, source: bytes, file: str) -> Any:
        """Run a cell, which tracebacks call `file`, and return the value of its last line if that is an expression."""
        tree, text = self.parse(source, file)
        # An entry without a time is never looked up on the disk.
        linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
        last = tree.body.pop() if _has_value(tree, text) else None
        parts = [compiled(tree, file)]
        if last is not None:
            parts.append(compiled(ast.Expression(last.value), file, mode="eval"))
        if any(part.co_flags & CO_COROUTINE for part in parts):
            return self.wait(self._await(parts))
        return [eval(part, self.names) for part in parts][-1]  # noqa: S307 - running it is the task

    def wait(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Return what a coroutine returns, in the context's one event loop."""
        if self._loop is None or self._loop.get_loop().is_closed():
            import asyncio  # noqa: PLC0415 - for contexts that await: it takes a third of the first cell's time

            self._loop = asyncio.Runner() if sys.version_info >= (3, 11) else OldRunner(asyncio.new_event_loop())
        return self._loop.run(coroutine)

    @property
    def has_loop(self) -> bool:
        """Whether there is an event loop, in which something may be going on."""
        return self._loop is not None and not self._loop.get_loop().is_closed()

    def parse(self, source: bytes, file: str) -> tuple[Any, str]:
        """Return the syntax tree of a cell that is to be run, and the text that its lines are of."""
        return parse(source, file), source.decode("utf-8", "replace")

    def forms(self, value: Any) -> Iterable[tuple[str, bytes]]:
        """Return type and bytes of each form of a last value, plain text first."""
        return rich.forms(value)

    def explain(self, error: BaseException) -> str | None:
        """Return what is shown of an exception in place of its traceback, or None."""
        del error
        return None

    async def _await(self, parts: list[CodeType]) -> Any:
        value = None
        for part in parts:
            value = eval(part, self.names)  # noqa: S307 - as above
            if part.co_flags & CO_COROUTINE:
                value = await value
        return value


class OldRunner:
    """What `asyncio.Runner` is from Python 3.11 on: one event loop for one coroutine after the other."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """Return the loop."""
        return self._loop

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine to its end; an interrupt cancels it first."""
        import asyncio  # noqa: PLC0415 - as above

        asyncio.set_event_loop(self._loop)
        task = self._loop.create_task(coroutine)
        try:
            return self._loop.run_until_complete(task)
        except KeyboardInterrupt:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                self._loop.run_until_complete(task)
            raise


def parse(source: bytes | str, file: str) -> Any:
    """Return the syntax tree of Python code that may await at its top level."""
    return compiled(source, file, flags=ast.PyCF_ONLY_AST)


def _has_value(tree: Any, text: str) -> bool:
    """Return whether a cell ends with an expression, and with no semicolon after it, by which it is not wanted."""
    if not tree.body or not isinstance(tree.body[-1], ast.Expr):
        return False
    end = tree.body[-1]
    line = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")[(end.end_lineno or 1) - 1].encode()
    return not line[end.end_col_offset :].lstrip(b" \t)").startswith(b";")
