"""How the end of a run is described. Pure."""

import os
import re
import signal
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, Literal

from sandpod_runner.ipc.jobs import Exit
from sandpod_runner.limits.memory import MIB

Outcome = Literal["ok", "error", "timeout", "cancelled", "out_of_memory", "output_limit", "sandbox_lost"]

_SHELL_KILLED: Final = 128 + signal.SIGKILL
_MEMORY_ERROR: Final = re.compile(rb"[\w.]*MemoryError(:|$)")
_NODE_MEMORY_ERROR: Final = re.compile(
    rb"JavaScript heap out of memory|'ERR_MEMORY_ALLOCATION_FAILED'|^RangeError: Array buffer allocation failed",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Stop:
    """Why a run is ended before its program ends."""

    outcome: Outcome
    detail: str | None = None  # a sentence for the caller
    gentle: bool = True  # whether the program may clean up first


def out_of_memory(limit: int | None, contexts: Iterable[str] = ()) -> Stop:
    """Return the end of a run that took too much memory.

    `contexts` are the states of those that have a process: idle ones hold a part of it and do nothing.
    """
    if limit is None:
        return Stop("out_of_memory", "It asked for more memory than it can have.", gentle=False)
    idle = sum(state == "idle" for state in contexts)
    others = f", of which idle contexts hold a part ({idle}; restart_context ends one)" if idle else ""
    detail = f"It used more than the sandbox's {limit // MIB} MiB of memory{others}."
    return Stop("out_of_memory", detail, gentle=False)


def ran_out(language: str, how: Exit, last_words: bytes) -> bool:
    """Return whether a language's own runtime gave up for lack of memory."""
    if how.status == 0:
        return False
    if language == "javascript":
        return _NODE_MEMORY_ERROR.search(last_words) is not None
    lines = last_words.strip().rsplit(b"\n", 1)
    return language == "python" and _MEMORY_ERROR.match(lines[-1]) is not None


def killed(how: Exit) -> bool:
    """Return whether the program, or the last one that a shell ran, was killed outright."""
    if how.status is None:
        return False
    if os.WIFSIGNALED(how.status):
        return os.WTERMSIG(how.status) == signal.SIGKILL
    return os.WEXITSTATUS(how.status) == _SHELL_KILLED


def describe_end(how: Exit, stop: Stop | None, fault: str | None) -> dict[str, Any]:
    """Return the fields of an `end` that say how it came."""
    exit_code = signal_name = None
    if how.status is None:
        fault = fault or "How it ended is not known: the process that had started it was killed."
    elif os.WIFSIGNALED(how.status):
        number = os.WTERMSIG(how.status)
        signal_name = next((known.name for known in signal.Signals if known == number), f"SIG{number}")
    else:
        exit_code = os.WEXITSTATUS(how.status)
    return {
        "outcome": stop.outcome if stop else ("ok" if exit_code == 0 else "error"),
        "exit_code": exit_code,
        "signal": signal_name,
        "cpu_ms": round(how.cpu * 1000, 3),
        "max_rss_bytes": how.max_rss,
        "detail": (stop.detail if stop else None) or fault,
    }
