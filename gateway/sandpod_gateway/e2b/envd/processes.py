"""E2B's process service: commands are background runs of the shell, which go on without their client.

A process id stands for a run's name, so that any gateway finds the run again; nothing is kept here.
"""

import base64
import binascii
import shlex
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, Final

from starlette.requests import Request

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.api.run_results import Language
from sandpod_gateway.auth.current import current_owner
from sandpod_gateway.e2b.calls import SANDBOX, Calls
from sandpod_gateway.e2b.envd.process_forms import command, end_event, process_id
from sandpod_gateway.e2b.envd.pty import Ptys, size_of, terminal_command
from sandpod_gateway.e2b.paths import folder
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.limits import RunLimits
from sandpod_gateway.runs.follow import Check
from sandpod_gateway.runs.request import RunRequest
from sandpod_gateway.terminals.service import TerminalRequest, is_terminal

Messages = AsyncGenerator[dict[str, Any], None]

TIMEOUT: Final = "connect-timeout-ms"
MAX_DIGITS: Final = 12


class Processes:
    """The methods, by their names."""

    def __init__(self, calls: Calls, limits: RunLimits) -> None:
        self._calls = calls
        self._limits = limits
        self._ptys = Ptys(calls)

    async def start(self, request: Request, message: dict[str, Any], check: Check) -> Messages:
        """Start a command, and stream what it writes, or what the terminal shows that it has."""
        config = _object(message, "process")
        where, beside = folder(_text(config, "cwd"))
        code = command(_text(config, "cmd"), config.get("args") or [])
        env, timeout = _texts(config.get("envs") or {}), self._timeout(request)
        if message.get("pty") is not None:
            cols, rows = size_of(message)
            wanted = TerminalRequest(
                command=terminal_command(code, beside), cwd=where, env=env, cols=cols, rows=rows, timeout=timeout
            )
            return self._ptys.start(request, wanted, check)
        run = RunRequest(
            language=Language.SHELL,
            code=f"cd -- {shlex.quote(beside)} || exit 1\n{code}" if beside else code,
            cwd=where,
            env=env,
            timeout=timeout,
            # Without the field an older client means to send some.
            open_stdin=message.get("stdin", True) is True,
        )
        async with self._calls.act(request, "start_run", like="start_run", code=run.code):
            begun = await self._calls.parts.background.start(current_owner(), run, sandbox=request.scope[SANDBOX])
        return self._events(begun.run_id, check)

    async def connect(self, request: Request, message: dict[str, Any], check: Check) -> Messages:
        """Stream what a command has written and goes on writing."""
        run_id = await self._find(request, message)
        if is_terminal(run_id):
            return self._ptys.connect(request, run_id, check)
        await self._calls.tool(request, "read_run", run_id=run_id, max_output=100)
        return self._events(run_id, check)

    async def running(self, request: Request, _: dict[str, Any]) -> dict[str, Any]:
        """List the commands that run."""
        found = [
            {"pid": process_id(run_id), "config": {"cmd": "/bin/bash", "args": [], "envs": {}}}
            for run_id in await self._live(request)
        ]
        return {"processes": found}

    async def send_input(self, request: Request, message: dict[str, Any]) -> dict[str, Any]:
        """Send input to a command, or a terminal."""
        run_id = await self._find(request, message)
        await self._write(request, run_id, _input(_object(message, "input"), run_id))
        return {}

    async def stream_input(self, request: Request, messages: AsyncIterator[dict[str, Any]]) -> dict[str, Any]:
        """Send a command the input that comes."""
        run_id: str | None = None
        async for message in messages:
            if "start" in message:
                run_id = await self._find(request, _object(message, "start"))
            elif "data" in message and run_id is not None:
                await self._write(request, run_id, _input(_object(_object(message, "data"), "input"), run_id))
        if run_id is None:
            raise _invalid("The stream names no process.")
        return {}

    async def close_stdin(self, request: Request, message: dict[str, Any]) -> dict[str, Any]:
        """End a command's input."""
        run_id = await self._find(request, message)
        if is_terminal(run_id):
            raise _invalid("The input of a terminal has no end: Ctrl-D is what its program takes for one.")
        await self._write(request, run_id, b"", last=True)
        return {}

    async def send_signal(self, request: Request, message: dict[str, Any]) -> dict[str, Any]:
        """End a command: TERM first, then KILL, whichever was asked for."""
        await self._calls.tool(request, "stop_run", run_id=await self._find(request, message))
        return {}

    async def update(self, request: Request, message: dict[str, Any]) -> dict[str, Any]:
        """Resize a terminal."""
        run_id = await self._find(request, message)
        if not is_terminal(run_id):
            raise _invalid("The process has no terminal.")
        await self._ptys.resize(request, run_id, message)
        return {}

    async def _write(self, request: Request, run_id: str, data: bytes, *, last: bool = False) -> None:
        async with self._calls.act(request, "send_input", like="stop_run"):
            await self._calls.parts.background.write(current_owner(), run_id, data, last=last)

    async def _events(self, run_id: str, check: Check) -> Messages:
        yield {"event": {"start": {"pid": process_id(run_id)}}}
        async for found in self._calls.follow(run_id, check):
            if found is None:
                yield {"event": {"keepalive": {}}}
                continue
            output = found.result
            for name in ("stdout", "stderr"):
                if text := getattr(output, name):
                    data = base64.b64encode(text.encode("utf-8", "replace")).decode("ascii")
                    yield {"event": {"data": {name: data}}}
            if output.result is not None:
                yield {"event": {"end": end_event(output.result)}}

    async def _live(self, request: Request) -> list[str]:
        listed, _ = await self._calls.tool(request, "list_runs", sandbox=request.scope[SANDBOX])
        return [
            run["run_id"]
            for run in listed["runs"]
            if run["state"] == "running" and run["background"] and run["context"] is None
        ]

    async def _find(self, request: Request, message: dict[str, Any]) -> str:
        """Return the run that a message means. Raises SandpodError: not_found."""
        wanted = _object(message, "process").get("pid")
        running = await self._live(request)
        found = next((run_id for run_id in running if process_id(run_id) == wanted), None)
        if found is None:
            step = "List the commands that run."
            raise SandpodError(ErrorCode.NOT_FOUND, "There is no running process of that id.", next_step=step)
        return found

    def _timeout(self, request: Request) -> float:
        given, most = request.headers.get(TIMEOUT, ""), self._limits.max_run_timeout
        return min(most, max(0.001, int(given) / 1e3)) if given.isdecimal() and len(given) <= MAX_DIGITS else most


def _input(given: dict[str, Any], run_id: str) -> bytes:
    name, other = ("pty", "stdin") if is_terminal(run_id) else ("stdin", "pty")
    if other in given:
        raise _invalid(f"The process takes `{name}`, not `{other}`.")
    try:
        return base64.b64decode(_text(given, name) or "", validate=True)
    except (binascii.Error, ValueError) as error:
        raise _invalid("Input is base64.") from error


def _object(message: dict[str, Any], name: str) -> dict[str, Any]:
    found = message.get(name, {})
    if not isinstance(found, dict):
        raise _invalid(f"`{name}` is no object.")
    return found


def _text(message: dict[str, Any], name: str) -> str | None:
    found = message.get(name)
    if found is not None and not isinstance(found, str):
        raise _invalid(f"`{name}` is no text.")
    return found


def _texts(given: Any) -> dict[str, str]:
    if not isinstance(given, dict) or not all(isinstance(value, str) for value in given.values()):
        raise _invalid("`envs` is names with texts.")
    return given


def _invalid(message: str) -> SandpodError:
    return SandpodError(ErrorCode.INVALID_ARGUMENT, message, next_step="Send it as E2B's clients do.")
