"""Logging to standard error. Standard output belongs to the protocol in stdio mode."""

import logging
from typing import Literal

from sandpod_api import log_lines


def configure(level: str, style: Literal["console", "json"]) -> None:
    """Send all logs of that level (debug, info, warning or error) and above to standard error."""
    log_lines.configure(style, level)
    # FastMCP brings a handler of its own, with colours and boxes.
    library = logging.getLogger("fastmcp")
    library.handlers.clear()
    library.propagate = True
    # These log each request or frame at info level.
    for noisy in ("uvicorn.access", "httpx", "mcp", "fastmcp", "asyncio"):
        logging.getLogger(noisy).setLevel(max(logging.getLevelNamesMapping()[level.upper()], logging.WARNING))
