"""Opens terminals for callers, and finds those that are there again.

Nothing of them is kept here: a terminal's name says in which sandbox it is, and that keeps what was not acknowledged.
So any gateway can go on where another one left off.
"""

from dataclasses import dataclass, field
from functools import partial
from typing import Final

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.auth.current import current_caller
from sandpod_gateway.backends.base import SandboxRecord
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.limits import MAX_ARGUMENTS_BYTES, MAX_PATH, RunLimits, check_text, text_size
from sandpod_gateway.runner.channel import Channel
from sandpod_gateway.runner.run_ids import new_run, run_id, split_run_id
from sandpod_gateway.sandboxes.requests import ask_runner
from sandpod_gateway.sandboxes.service import Sandboxes
from sandpod_gateway.terminals.output import Output, Place
from sandpod_gateway.terminals.terminal import Terminal
from sandpod_gateway.usage.amounts import account_of

KIND: Final = "term"  # what the names of their runs begin with
TOOL: Final = "run_shell_command"  # the tool that gets the same secrets
MAX_REPEATED: Final = 4 * 2**20  # bytes that a client may have got and not acknowledged, in any case


@dataclass(frozen=True, kw_only=True, slots=True)
class TerminalRequest:
    """A terminal to open."""

    command: str = ""  # empty for the shell itself
    cwd: str = "."
    env: dict[str, str] = field(default_factory=dict)
    cols: int = 80
    rows: int = 24
    timeout: float | None = None  # seconds; None for as long as any run may take


class Terminals:
    """The terminals of callers' sandboxes."""

    def __init__(self, sandboxes: Sandboxes, limits: RunLimits) -> None:
        self.sandboxes = sandboxes
        self._limits = limits

    async def open(self, owner: str, request: TerminalRequest, *, sandbox: str | None) -> Terminal:
        """Open a terminal, which counts as a run of its caller until it ends. Raises SandpodError: it was refused."""
        _check_scope()
        _check(request)
        account, meter = account_of(current_caller()), self.sandboxes.meter
        # The place is passed on to the terminal once that is open, with nothing awaited in between.
        with meter.running(account):
            record = await self.sandboxes.resolve(owner, sandbox)
            secrets = await self.sandboxes.secrets.of(record)
            opening = {
                "kind": "terminal",
                "env": secrets.env(TOOL, "shell") | request.env,
                "cwd": request.cwd,
                "cols": request.cols,
                "rows": request.rows,
                "timeout": self._seconds(request),
            }
            await self.sandboxes.touch(record)
            channel = self._channel(record, new_run(KIND), opening, request.command)
            await channel.open()
            name, sent = run_id(record.name, channel.name), text_size(request.command)
            meter.ongoing.background_began(account, record.name, name, sent=sent, seconds=self._seconds(request))
        return Terminal(
            sandboxes=self.sandboxes,
            record=record,
            account=account,
            channel=channel,
            output=Output(Place(channel.mark, channel.offset), secrets.masker),
        )

    async def attach(self, owner: str, name: str, *, sandbox: str | None, received: int | None) -> Terminal:
        """Go on with a terminal after so many bytes of what it shows; with None, after what was acknowledged.

        Raises SandpodError: not_found, or invalid_argument (what comes after these bytes is not kept).
        """
        _check_scope()
        try:
            home, run = split_run_id(name)
            record = await self.sandboxes.resolve(owner, sandbox, make=False)
            if record.name != home or not is_terminal(name):
                raise _no_such_terminal()
            secrets = await self.sandboxes.secrets.of(record)
            channel = self._channel(record, run, {}, "")
            await channel.open()
        except SandpodError as error:
            if error.code in {ErrorCode.SESSION_NOT_FOUND, ErrorCode.NOT_FOUND}:
                raise _no_such_terminal() from error
            raise
        if received is not None and not channel.mark <= received <= channel.mark + MAX_REPEATED:
            await channel.close(stay=True)
            message = "What the terminal showed after so many bytes was acknowledged, or never sent."
            raise SandpodError(ErrorCode.INVALID_ARGUMENT, message, next_step="Come back without `received=`.")
        return Terminal(
            sandboxes=self.sandboxes,
            record=record,
            account=account_of(current_caller()),
            channel=channel,
            output=Output(Place(channel.mark, channel.offset), secrets.masker, received),
        )

    async def resize(self, owner: str, name: str, cols: int, rows: int) -> None:
        """Change the size of a terminal, whoever has it. Raises SandpodError: not_found, sandbox_lost."""
        sandbox, run = split_run_id(name)
        record = await self.sandboxes.resolve(owner, sandbox, make=False)
        size = {"cols": cols, "rows": rows}
        await ask_runner(self.sandboxes, record, lambda runner: runner.send_of_channel("resize", run, size), again=True)

    def _seconds(self, request: TerminalRequest) -> float:
        most = self._limits.max_run_timeout
        return most if request.timeout is None else min(most, request.timeout)

    def _channel(self, record: SandboxRecord, name: str, opening: dict[str, object], command: str) -> Channel:
        # To have it open is no use of the sandbox: one that was forgotten would keep it for as long as it lives.
        connect = partial(self.sandboxes.connection, record, use=False)
        return Channel(name, connect, opening, command.encode())


def is_terminal(name: str) -> bool:
    """Whether a run of that name is a terminal's."""
    return split_run_id(name)[1].startswith(f"{KIND}-")


def _check_scope() -> None:
    if current_caller().read_only:
        message, step = "Your key is read-only, and a terminal changes something.", "Ask for another key."
        raise SandpodError(ErrorCode.FORBIDDEN, message, next_step=step)


def _check(request: TerminalRequest) -> None:
    for text in (request.command, request.cwd, *request.env, *request.env.values()):
        check_text(text, "argument")
        if "\0" in text:
            message = "An argument has a NUL character in it."
            raise SandpodError(ErrorCode.INVALID_ARGUMENT, message, next_step="Leave it out.")
    if text_size(request.cwd) > MAX_PATH or text_size(request.command) > MAX_ARGUMENTS_BYTES:
        message, step = "The command or the folder's path is too long.", "Put the command into a file and run that."
        raise SandpodError(ErrorCode.INVALID_ARGUMENT, message, next_step=step)


def _no_such_terminal() -> SandpodError:
    message = "There is no such terminal: it has ended, or nobody came back to it in time."
    return SandpodError(ErrorCode.NOT_FOUND, message, next_step="Open a new one.")
