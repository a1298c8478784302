"""The form of the log lines of operator and gateway: for people, or one JSON object a line."""

import json
import logging
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, Literal

# Control characters of ASCII and Latin-1, and what else ends a line for a terminal or an editor.
_ESCAPES: Final = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0))} | {
    0x2028: "\\u2028",
    0x2029: "\\u2029",
}
_ESCAPES_BUT_NEWLINE: Final = {code: text for code, text in _ESCAPES.items() if chr(code) != "\n"}

Facts = Callable[[], Mapping[str, str]]
"""Returns what each line says of the work during which it is logged."""


class _ConsoleFormatter(logging.Formatter):
    """One line a record, whatever callers put into it; the lines of an exception are indented."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging calls it so
        return super().formatMessage(record).translate(_ESCAPES)

    def formatException(self, ei: Any) -> str:  # noqa: N802 - as above
        return "    " + super().formatException(ei).translate(_ESCAPES_BUT_NEWLINE).replace("\n", "\n    ")


class _JsonFormatter(logging.Formatter):
    def __init__(self, facts: Facts) -> None:
        super().__init__()
        self._facts = facts

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **self._facts(),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)


def configure(style: Literal["console", "json"], level: str, facts: Facts = dict) -> None:
    """Send all logs of the process, from a level on, to standard error: for people or for machines, with the facts."""
    handler = logging.StreamHandler(sys.stderr)
    plain = _ConsoleFormatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    handler.setFormatter(_JsonFormatter(facts) if style == "json" else plain)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
