"""E2B's terminals: processes with a `pty`, which are terminals as others are.

One stream has a terminal at a time; what is typed, and its size, come in requests of their own, at any gateway.
"""

import asyncio
import base64
import shlex
from collections.abc import AsyncGenerator
from typing import Any, Final

from starlette.requests import Request

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.auth.current import current_owner
from sandpod_gateway.e2b.calls import SANDBOX, Calls
from sandpod_gateway.e2b.envd.process_forms import SHELLS, end_event, process_id
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.runs.follow import WAIT_SECONDS, Check
from sandpod_gateway.terminals.service import TOOL, TerminalRequest
from sandpod_gateway.terminals.terminal import Terminal
from sandpod_runner.protocol.messages import MAX_TERMINAL

Messages = AsyncGenerator[dict[str, Any], None]

_ITSELF: Final = frozenset(f"{shell}{flags}" for shell in SHELLS for flags in ("", " -i", " -l", " -i -l"))
_SHELL: Final = 'exec "$0"'  # as it is named to a command that it runs


class Ptys:
    """What is done with terminals."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    async def start(self, request: Request, wanted: TerminalRequest, check: Check) -> Messages:
        """Open a terminal, and stream what it shows; it waits for a minute when its stream ends."""
        async with self._calls.act(request, "open_terminal", like=TOOL, code=wanted.command):
            terminal = await self._calls.terminals.open(current_owner(), wanted, sandbox=request.scope[SANDBOX])
        async for message in self._events(terminal, check):
            yield message

    async def connect(self, request: Request, name: str, check: Check) -> Messages:
        """Go on with a terminal: whoever has it loses it."""
        async with self._calls.act(request, "open_terminal", like=TOOL):
            sandbox = request.scope[SANDBOX]
            terminal = await self._calls.terminals.attach(current_owner(), name, sandbox=sandbox, received=None)
        async for message in self._events(terminal, check):
            yield message

    async def resize(self, request: Request, name: str, message: dict[str, Any]) -> None:
        """Change a terminal's size."""
        cols, rows = size_of(message)
        async with self._calls.act(request, "resize_terminal", like=TOOL):
            await self._calls.terminals.resize(current_owner(), name, cols, rows)

    async def _events(self, terminal: Terminal, check: Check) -> Messages:
        over, reading = False, asyncio.ensure_future(terminal.read())
        try:
            with self._calls.requests.metrics.open_terminals.track_inprogress():
                yield {"event": {"start": {"pid": process_id(terminal.name)}}}
                while True:
                    await check()
                    if not (await asyncio.wait((reading,), timeout=WAIT_SECONDS))[0]:
                        yield {"event": {"keepalive": {}}}
                        continue
                    if data := reading.result():
                        yield {"event": {"data": {"pty": base64.b64encode(data).decode("ascii")}}}
                        terminal.got(terminal.output.sent)  # what is sent by then is not sent again
                    elif terminal.channel.ended:
                        break
                    reading = asyncio.ensure_future(terminal.read())
                over = True
                yield {"event": {"end": end_event(await terminal.end())}}
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            await terminal.close(stay=not over)


def terminal_command(command: str, beside: str) -> str:
    """Return what a terminal is to run; empty for the shell itself, where it begins in the workspace."""
    command = "" if command in _ITSELF else command
    return f"cd -- {shlex.quote(beside)} || exit 1\n{command or _SHELL}" if beside else command


def size_of(message: dict[str, Any]) -> tuple[int, int]:
    """Return columns and rows. Raises SandpodError: invalid_argument."""
    pty = message.get("pty")
    size = pty.get("size") if isinstance(pty, dict) else None
    found = [size.get(name) if isinstance(size, dict) else None for name in ("cols", "rows")]
    if any(type(each) is not int or not 1 <= each <= MAX_TERMINAL for each in found):
        wrong, step = f"A terminal has from 1 to {MAX_TERMINAL} `cols` and `rows`.", "Send its size."
        raise SandpodError(ErrorCode.INVALID_ARGUMENT, wrong, next_step=step)
    return int(found[0] or 0), int(found[1] or 0)
