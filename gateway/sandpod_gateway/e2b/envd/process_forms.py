"""What E2B says of processes, in our words and back. Pure."""

import hashlib
import shlex
from typing import Any, Final

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.api.run_results import Outcome, RunResult
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.runner.messages import Ended

SHELLS: Final = frozenset({"/bin/bash", "bash", "/bin/sh", "sh"})
_KILLED: Final = -1  # the exit code of what was ended by a signal


def process_id(run_id: str) -> int:
    """Return the number that stands for a run: 31 bits, so that two of one sandbox never meet in practice."""
    return int.from_bytes(hashlib.sha256(run_id.encode()).digest()[:4]) >> 1 or 1


def command(program: str | None, arguments: Any) -> str:
    """Return what a shell is to run. Raises SandpodError: invalid_argument."""
    if not program or not isinstance(arguments, list) or not all(isinstance(each, str) for each in arguments):
        step = "Send it as E2B's clients do."
        raise SandpodError(
            ErrorCode.INVALID_ARGUMENT, "A process has `cmd`, a text, and `args`, texts.", next_step=step
        )
    if program in SHELLS and len(arguments) > 1 and arguments[-2] in {"-c", "-lc"}:
        return str(arguments[-1])
    return shlex.join([program, *arguments])


def end_event(result: RunResult | Ended) -> dict[str, Any]:
    """Return how a command has ended. Raises SandpodError where that is no end of its own: timeout, sandbox_lost."""
    if result.outcome == Outcome.TIMEOUT:
        step = "Set a longer timeout."
        raise SandpodError(ErrorCode.TIMEOUT, "The command ran for longer than its timeout.", next_step=step)
    if result.outcome == Outcome.SANDBOX_LOST:
        raise SandpodError(ErrorCode.SANDBOX_LOST, "The sandbox went away.", next_step="Create another one.")
    exited = result.exit_code is not None
    status = f"exit status {result.exit_code}" if exited else f"signal: {result.signal or 'killed'}"
    end: dict[str, Any] = {"exitCode": result.exit_code if exited else _KILLED, "exited": exited, "status": status}
    if result.outcome != Outcome.OK:
        told = result.outcome in {Outcome.OUT_OF_MEMORY, Outcome.OUTPUT_LIMIT}
        end["error"] = f"{status} ({str(result.outcome).replace('_', ' ')})" if told else status
    return end
