"""Calls of tools for pages, and forms."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qsl

from fastmcp import FastMCP
from fastmcp.tools.base import ToolResult
from starlette.requests import Request

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.http.limits import BODY_SECONDS

MAX_FORM: Final = 64 * 1024  # bytes
_CAPABILITIES: Final = "sandpod://capabilities"

Call = Callable[[Request, str, dict[str, Any]], Awaitable[ToolResult]]


class RefusedCall(Exception):  # noqa: N818 - a call that was refused, as its result says
    """A tool's refusal, with the fields of a `Problem`."""

    def __init__(self, problem: Mapping[str, Any]) -> None:
        super().__init__(problem.get("message"))
        self.problem = problem


@dataclass(frozen=True, slots=True)
class Calls:
    """Calls tools as the user of a page."""

    call: Call  # of REST, which has all of them
    mcp: FastMCP[Any]

    async def __call__(self, request: Request, tool: str, /, **arguments: Any) -> dict[str, Any]:
        """Return a tool's result. Raises RefusedCall."""
        given = {name: value for name, value in arguments.items() if value is not None and value != ""}
        result = await self.call(request, tool, given)
        content = dict(result.structured_content or {})
        if result.is_error:
            raise RefusedCall(content)
        return content

    async def capabilities(self) -> dict[str, Any]:
        """Return what the server offers the user."""
        found = await self.mcp.read_resource(_CAPABILITIES)
        [content] = found.contents
        capabilities: dict[str, Any] = json.loads(content.content)
        return capabilities


async def form(request: Request) -> dict[str, str]:
    """Return the fields of a form. Raises SandpodError: upload_too_large, timeout, invalid_argument."""
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for part in request.stream():
                body += part
                if len(body) > MAX_FORM:
                    message = f"The form has over {MAX_FORM} bytes."
                    raise SandpodError(ErrorCode.UPLOAD_TOO_LARGE, message, next_step="Send less text.")
    except TimeoutError as error:
        message = f"The form did not come within {BODY_SECONDS:.0f} seconds."
        raise SandpodError(ErrorCode.TIMEOUT, message, next_step="Send it again.") from error
    try:
        return {name: value.strip() for name, value in parse_qsl(body.decode(), max_num_fields=64)}
    except ValueError as error:
        message = "The form can't be read."
        raise SandpodError(ErrorCode.INVALID_ARGUMENT, message, next_step="Load the page again.") from error


def number(fields: Mapping[str, str], name: str) -> int | None:
    """Return a field that is a whole number, or empty. Raises SandpodError (invalid_argument)."""
    text = fields.get(name, "")
    if not text:
        return None
    if not text.isdecimal() or len(text) > 9:  # noqa: PLR2004 - digits, more than any such number has
        message = f"{name.capitalize()} is no whole number."
        raise SandpodError(ErrorCode.INVALID_ARGUMENT, message, next_step="Correct it, or leave it empty.")
    return int(text)
