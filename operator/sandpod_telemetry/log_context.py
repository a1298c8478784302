"""What the log lines of a piece of work say besides their message: whose it is, and which sandbox and run it is about.

A scope's facts are shared by all tasks that are begun in it, so that a line knows what was learnt after its task began.
"""

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


class bound:  # noqa: N801 - a `with` statement reads it as the function that it would be, at a fifth of its cost
    """Begin a scope with these facts, and with none of those of the scope around it."""

    __slots__ = ("_facts", "_token")

    def __init__(self, **facts: Unpack[Facts]) -> None:
        self._facts = _bounded(facts)

    def __enter__(self) -> None:
        self._token = _current.set(self._facts)

    def __exit__(self, *_: object) -> None:
        _current.reset(self._token)


def note(**facts: Unpack[Facts]) -> None:
    """Add to the facts of the scope, if there is one; what is None is not known."""
    if (known := _current.get()) is not None:
        known.update(_bounded(facts))


def current() -> dict[str, str]:
    """Return the facts of a line that is logged now, and the ids of its span."""
    return tracing.ids() | (_current.get() or {})
