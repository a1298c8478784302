"""Logging to standard error: for people or as JSON. Standard output belongs to the protocol in stdio mode.

Called once, by `cli.py`.
"""

import json
import logging
import sys
from datetime import UTC, datetime


class _JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)


def configure(level: str, style: str) -> None:
    """Send all logs to standard error.

    Args:
        level: debug, info, warning or error.
        style: console or json.
    """
    handler = logging.StreamHandler(sys.stderr)
    plain = logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s", datefmt="%H:%M:%S")
    handler.setFormatter(_JsonFormatter() if style == "json" else plain)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # FastMCP brings a handler of its own, with colours and boxes.
    library = logging.getLogger("fastmcp")
    library.handlers.clear()
    library.propagate = True
    # These tell each request or frame at info; their warnings are wanted, their chatter is not.
    for noisy in ("uvicorn.access", "httpx", "mcp", "fastmcp", "asyncio"):
        logging.getLogger(noisy).setLevel(max(logging.getLevelNamesMapping()[level.upper()], logging.WARNING))
