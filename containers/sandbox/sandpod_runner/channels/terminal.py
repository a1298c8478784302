"""A terminal: a run of the shell, or of a command, whose streams are a pseudo-terminal on a channel."""

import os
import time
from dataclasses import replace
from typing import Final

from sandpod_runner.channels.pseudo_terminal import PseudoTerminal
from sandpod_runner.ipc.jobs import Job
from sandpod_runner.processes.environment import Languages
from sandpod_runner.processes.program import LostError, Program
from sandpod_runner.runs.delivery import Delivery
from sandpod_runner.runs.request import RunRequest, Stop
from sandpod_runner.runs.run import Run, Toolbox

_HUNG_UP: Final = Stop("cancelled", "Its terminal was closed.")
_PROMPTS: Final = {"bash": r"\w\$ "}  # where the image says none


class TerminalRun(Run):
    """The run. What it writes is the channel's, and never in the run's log."""

    def __init__(
        self, request: RunRequest, delivery: Delivery, toolbox: Toolbox, cwd: str, *, terminal: PseudoTerminal
    ) -> None:
        super().__init__(request, delivery, toolbox, cwd)
        self._terminal = terminal
        self._begin = time.monotonic()
        terminal.hang_up = lambda: self.stop(_HUNG_UP)
        job = _build_job(request, toolbox.languages, toolbox.base, cwd)
        try:
            self._program = toolbox.launcher.start(job, terminal.hand_over())
        except (LostError, OSError) as error:
            self._program = Program([])
            self._program.fail(str(error))

    def feed(self, data: bytes, offset: int | None, *, last: bool) -> None:
        """Type it in, beside what comes over the channel: of such input there are no offsets and no end."""
        del offset, last
        self._terminal.type_in(data)

    async def follow(self) -> None:
        """See the program through to its end, of which nothing is left alive."""
        try:
            self.pid = await self.started(self._program)
            self.how = await self.until_ended(self._program, self._terminal.disconnect)
        except LostError as error:
            self.fault = f"The terminal could not be opened: {error}."
        finally:
            self.seconds = time.monotonic() - self._begin
            await self.toolbox.launcher.sweep()
            self._terminal.finish()


def _build_job(request: RunRequest, languages: Languages, base: Job, cwd: str) -> Job:
    shell = languages.shell or ""
    name = os.path.basename(shell)
    command = [shell, "-c", os.fsdecode(request.code), name] if request.code else [shell]
    env = {"TERM": "xterm-256color", "PS1": _PROMPTS.get(name, "$ ")}
    return replace(base, cwd=cwd, command=command, env=base.env | env | request.env, terminal=True)
