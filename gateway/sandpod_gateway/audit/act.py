"""One act of a caller, from its beginning to its record.

The way in makes an act; whoever learns something of it on the way notes that, without knowing whether there is an audit
log. What comes from callers is bounded here.
"""

import hashlib
import time
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Literal

from sandpod_telemetry import log_context

MAX_TEXT: Final = 256  # characters of anything that a caller chose
MAX_BODY: Final = 64 * 1024  # bytes of a program that is recorded whole

CodeForm = Literal["hash", "body", "none"]
Mask = Callable[[Any], Any]
Program = tuple[str, Mask | None]  # its text, and what hides secrets where it is shown; without that it is not
Record = dict[str, Any]

current: Final[ContextVar["Act | None"]] = ContextVar("sandpod_act", default=None)


def _as_it_is(value: Any) -> Any:
    return value


def _nobody(_: str, **__: Any) -> None:
    pass


@dataclass(slots=True, eq=False)
class Act:
    """What is known of an act."""

    event: str
    facts: Record
    code: str | None = None
    started: float = field(default_factory=time.perf_counter)
    number: int = 0  # joins the records of one act
    known: bool = True  # whether it is known whose it is; what is not is no act, and has no record
    mask: Mask = _as_it_is  # hides the secrets of the sandboxes that it used
    tell: Callable[..., None] = _nobody  # records an event

    def note(self, **facts: Any) -> None:
        """Add what is known now; what is None is not."""
        self.facts.update({name: bounded(value) for name, value in facts.items() if value is not None})

    def record(self, phase: Literal["begin", "end"]) -> Record:
        """Return the record of its beginning or end as of now.

        Parameters are in that of the end alone: before, it is not known which secrets have to be masked there.
        """
        record = {**self.facts, "time": now(), "event": self.event, "phase": phase, "id": self.number}
        parameters = record.pop("parameters", None)
        if phase == "end":
            if parameters is not None:
                record["parameters"] = self.mask(parameters)
            record["outcome"] = self.facts.get("outcome", "refused" if "error" in self.facts else "ok")
            record["duration_ms"] = round((time.perf_counter() - self.started) * 1000)
        return record

    def program(self, phase: Literal["begin", "end"]) -> Program | None:
        """Return the program of the act, for a record; it is shown at the end alone, too."""
        return None if self.code is None else (self.code, self.mask if phase == "end" else None)


def note(**facts: Any) -> None:
    """Add to what is known of the act that is going on, for audit and log; what is None is not known."""
    log_context.note(sandbox=facts.get("sandbox"), run=facts.get("run_id"))
    if (act := current.get()) is not None:
        act.note(**facts)


def event(name: str, **facts: Any) -> None:
    """Record what the act that is going on has caused, if it is recorded; it may have ended meanwhile."""
    if (act := current.get()) is not None:
        act.tell(name, user=act.facts.get("user"), **facts)


def hide(mask: Mask) -> None:
    """Mask parameters and program in the record of the act that is going on, if it is recorded."""
    if (act := current.get()) is not None:
        act.mask = mask


def now() -> str:
    """Return the time: RFC 3339, milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def bounded(value: Any) -> Any:
    """Return a fact with texts of bounded length."""
    return f"{value[:MAX_TEXT]}…" if isinstance(value, str) and len(value) > MAX_TEXT else value


def code_facts(program: Program, form: CodeForm) -> Record:
    """Return what is recorded of a program."""
    code, mask = program
    if form == "none":
        return {}
    data = code.encode("utf-8", "surrogatepass")
    facts: Record = {"code_sha256": hashlib.sha256(data).hexdigest(), "code_bytes": len(data)}
    if form == "body" and mask is not None:
        facts["code"] = mask(code).encode("utf-8", "surrogatepass")[:MAX_BODY].decode("utf-8", "replace")
    return facts
