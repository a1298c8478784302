"""What the log lines of a piece of work say besides their message: whose it is, and which sandbox and run it is about.

A scope's facts are shared by all tasks that are begun in it, so that a line knows what was learnt after its task began.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, TypedDict, Unpack

from sandpod_telemetry import tracing

MAX_TEXT: Final = 256  # characters of one fact


class Facts(TypedDict, total=False):
    """What there is to know."""

    owner: str | None
    namespace: str | None
    sandbox: str | None
    run: str | None


_current: Final[ContextVar[dict[str, str] | None]] = ContextVar("sandpod_log_facts", default=None)


def _bounded(facts: Facts) -> dict[str, str]:
    return {name: value[:MAX_TEXT] for name, value in facts.items() if isinstance(value, str) and value}


@contextmanager
def bound(**facts: Unpack[Facts]) -> Iterator[None]:
    """Begin a scope with these facts, and with none of those of the scope around it."""
    token = _current.set(_bounded(facts))
    try:
        yield
    finally:
        _current.reset(token)


def note(**facts: Unpack[Facts]) -> None:
    """Add to the facts of the scope, if there is one; what is None is not known."""
    if (known := _current.get()) is not None:
        known.update(_bounded(facts))


def current() -> dict[str, str]:
    """Return the facts of a line that is logged now, and the ids of its span."""
    return tracing.ids() | (_current.get() or {})
