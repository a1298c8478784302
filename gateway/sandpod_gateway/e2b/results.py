"""A run's result as the events of E2B's interpreter. Pure."""

import base64
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from sandpod_gateway.api.run_results import Outcome, RunResult
from sandpod_gateway.content import PICTURES, Picture

Event = dict[str, Any]

_FORMS: Final = {
    "text/plain": "text",
    "text/html": "html",
    "text/markdown": "markdown",
    "text/latex": "latex",
    "image/svg+xml": "svg",
    "image/png": "png",
    "image/jpeg": "jpeg",
    "application/json": "json",
}
_BEGIN: Final = "Traceback (most recent call last):"
_LAST_LINE: Final = re.compile(r"(?:[\w.]+\.)?([A-Za-z_]\w*)(?:: (.*))?", re.DOTALL)
_MAX_ERROR: Final = 4096  # characters of an error's value
_OUTCOMES: Final = {
    Outcome.TIMEOUT: ("TimeoutError", "The code ran for longer than this server allows."),
    Outcome.OUT_OF_MEMORY: ("MemoryError", "The sandbox ran out of memory."),
    Outcome.OUTPUT_LIMIT: ("OutputLimitError", "The code wrote more output than this server allows."),
    Outcome.CANCELLED: ("CancelledError", "The code was stopped."),
}


def end_events(result: RunResult, pictures: Sequence[Picture]) -> Iterator[Event]:
    """Yield what a run showed, then its last value, then its error."""
    waiting = iter(pictures)
    shown: dict[int, Event] = {}
    for rich in result.displays:
        forms = shown.setdefault(rich.index, {})
        if rich.mime_type in PICTURES:
            if (picture := next(waiting, None)) is not None and rich.mime_type in _FORMS:
                forms[_FORMS[rich.mime_type]] = base64.b64encode(picture.data).decode("ascii")
        elif rich.text is not None:
            forms |= _forms({rich.mime_type: rich.text})
    for forms in shown.values():
        yield {"type": "result", "is_main_result": False, **forms}
    if result.result:
        value = _forms(result.result)
        if "text" in value:
            value["text"] = unquoted(value["text"])
        yield {"type": "result", "is_main_result": True, **value}
    if (error := error_of(result)) is not None:
        yield {"type": "error", **error}


def _forms(given: Mapping[str, str]) -> Event:
    found: Event = {_FORMS[kind]: text for kind, text in given.items() if kind in _FORMS}
    if "json" in found:
        try:
            found["json"] = json.loads(found["json"])
        except ValueError:  # the program's own words
            del found["json"]
    return found


def unquoted(text: str) -> str:
    """Return a value as E2B shows it: a text without the quotes of its `repr`."""
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" else text


def error_of(result: RunResult) -> dict[str, str] | None:
    """Return the name, value and traceback of what ended a run, as far as its standard error says; None for none."""
    if result.outcome == Outcome.OK:
        return None
    if (known := _OUTCOMES.get(Outcome(result.outcome))) is not None:
        return {"name": known[0], "value": known[1], "traceback": ""}
    text = result.stderr.rstrip()
    start = text.rfind(_BEGIN)
    traceback = text[start:] if start >= 0 else text
    last = traceback.splitlines()[-1] if traceback else ""
    match = _LAST_LINE.fullmatch(last)
    if match is not None:
        return {"name": match[1], "value": (match[2] or "")[:_MAX_ERROR], "traceback": traceback}
    status = f"exit code {result.exit_code}" if result.exit_code is not None else f"signal {result.signal}"
    return {"name": "ExecutionError", "value": last[:_MAX_ERROR] or status, "traceback": traceback}
