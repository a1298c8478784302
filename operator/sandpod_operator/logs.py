"""Log lines on standard error, for people or as JSON."""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Literal


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as a line."""
        entry = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)


def configure(style: Literal["console", "json"], level: str) -> None:
    """Set up logging for the process.

    Args:
        style: Lines for people or for machines.
        level: Least level of Sandpod's own lines; kopf's and aiohttp's begin at WARNING.
    """
    handler = logging.StreamHandler(sys.stderr)
    plain = logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    handler.setFormatter(JsonFormatter() if style == "json" else plain)
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("sandpod_operator").setLevel(level)
