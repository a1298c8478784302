"""As much Python as tests of the gateway need, interpreted without running any.

Called by `fake_runner.py`: `print` of constants and names (also to `sys.stderr`), `name = input()`, assignments of
constants, `for name in range(n)`, `time.sleep(n)`, `sys.exit(n)` and `raise SystemExit(n)`; imports do nothing.
Everything else ends the program with a message on standard error and exit code 1, as a program with a mistake does.
"""

import ast
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

Write = Callable[[str, bytes], Awaitable[None]]


class _Exit(Exception):  # noqa: N818 - it is no error but the end of the program
    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class _UnknownError(Exception):
    """The program uses something that is not interpreted."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Surroundings:
    """What a program can reach.

    Attributes:
        write: Takes a stream's name and bytes.
        readline: Returns the next line of input without its end; empty at the end of input.
        sleep: Waits for seconds.
    """

    write: Write
    readline: Callable[[], Awaitable[str]]
    sleep: Callable[[float], Awaitable[None]]


@dataclass
class Interpreter:
    """Runs one program."""

    around: Surroundings
    names: dict[str, object] = field(default_factory=dict)

    async def run(self, code: str) -> int:
        """Return the program's exit code."""
        try:
            await self._block(ast.parse(code).body)
        except _Exit as end:
            return end.code
        except (SyntaxError, ValueError, _UnknownError) as error:
            await self.around.write("stderr", f"{type(error).__name__}: {error}\n".encode())
            return 1
        return 0

    async def _block(self, statements: list[ast.stmt]) -> None:
        for statement in statements:
            await self._statement(statement)

    async def _statement(self, statement: ast.stmt) -> None:
        match statement:
            case ast.Import() | ast.ImportFrom() | ast.Pass():
                pass
            case ast.Expr(value=ast.Call() as call):
                await self._call(call)
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                self.names[name] = await self._value(value)
            case ast.For(target=ast.Name(id=name), iter=ast.Call(func=ast.Name(id="range"), args=[end]), body=body):
                for number in range(_integer(await self._value(end))):
                    self.names[name] = number
                    await self._block(body)
            case ast.Raise(exc=ast.Call(func=ast.Name(id="SystemExit"), args=[code])):
                raise _Exit(_integer(await self._value(code)))
            case _:
                raise _UnknownError(ast.unparse(statement))

    async def _call(self, call: ast.Call) -> object:
        arguments = [await self._value(argument) for argument in call.args]
        match ast.unparse(call.func), arguments:
            case "print", _:
                text = " ".join(map(str, arguments)) + "\n"
                await self.around.write(_destination(call), text.encode())
            case "time.sleep" | "sleep", [int() | float() as seconds]:
                await self.around.sleep(seconds)
            case "sys.exit" | "exit", [int() as code]:
                raise _Exit(code)
            case "input", []:
                return await self.around.readline()
            case name, _:
                raise _UnknownError(name)
        return None

    async def _value(self, expression: ast.expr) -> object:
        match expression:
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name) if name in self.names:
                return self.names[name]
            case ast.Call():
                return await self._call(expression)
            case _:
                raise _UnknownError(ast.unparse(expression))


def _destination(call: ast.Call) -> str:
    to_stderr = any(keyword.arg == "file" and ast.unparse(keyword.value) == "sys.stderr" for keyword in call.keywords)
    return "stderr" if to_stderr else "stdout"


def _integer(value: object) -> int:
    if not isinstance(value, int):
        raise _UnknownError(f"{value!r} as a number")
    return value
