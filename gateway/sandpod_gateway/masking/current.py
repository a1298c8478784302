"""The call that is being answered: its tool, and what has to be masked in its answer."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from sandpod_gateway.errors import SandpodError
from sandpod_gateway.masking.masker import Masker


@dataclass(slots=True)
class Call:
    """A call of a tool, or the reading of a resource."""

    tool: str = ""
    maskers: list[Masker] = field(default_factory=list)  # of the sandboxes that it has used

    def masked(self, value: Any) -> Any:
        """Return a JSON value as it may be shown, in the answer, in a log or in an audit."""
        for masker in self.maskers:
            value = masker.json(value)
        return value


_current: ContextVar[Call | None] = ContextVar("call", default=None)


@contextmanager
def calling(tool: str = "") -> Iterator[Call]:
    """Answer a call within the block; a refusal that it ends with is masked."""
    call = Call(tool)
    token = _current.set(call)
    try:
        yield call
    except SandpodError as error:
        error.message, error.cause = call.masked([error.message, error.cause])
        raise
    finally:
        _current.reset(token)


def current_call() -> Call:
    """Return the call that is being answered; an empty one where there is none."""
    return _current.get() or Call()
