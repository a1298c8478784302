"""How compatibility tools answer, and the sandboxes that their callers name."""

import base64
import functools
import json
import logging
import posixpath
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, ParamSpec

from fastmcp.tools.base import ToolResult
from mcp_types import ImageContent, TextContent

from sandpod_api.names import WORKSPACE
from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.backends.base import ClaimRequest, SandboxRecord
from sandpod_gateway.content import Picture
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.files.paths import inside_workspace
from sandpod_gateway.metrics import Metrics
from sandpod_gateway.sandboxes.service import Sandboxes

logger = logging.getLogger(__name__)

P = ParamSpec("P")

Spoken = dict[str, Any] | list[Any] | str

READ: Final = {"readOnlyHint": True, "destructiveHint": False, "idempotentHint": True, "openWorldHint": False}
CHANGE: Final = {"readOnlyHint": False, "destructiveHint": True, "idempotentHint": False, "openWorldHint": False}


def spoken(said: Spoken, pictures: Iterable[Picture] = ()) -> ToolResult:
    """Return a tool's result: as text, as structured content, and pictures."""
    text = said if isinstance(said, str) else json.dumps(said, ensure_ascii=False)
    content: list[TextContent | ImageContent] = [TextContent(type="text", text=text)]
    for picture in pictures:
        data = base64.b64encode(picture.data).decode("ascii")
        content.append(ImageContent(type="image", data=data, mime_type=picture.mime_type))
    structured = said if isinstance(said, dict) else {"result": said}
    return ToolResult(content=content, structured_content=structured)


def speaking(
    metrics: Metrics, refused: Callable[[SandpodError], Spoken]
) -> Callable[[Callable[P, Awaitable[Spoken | ToolResult]]], Callable[P, Awaitable[ToolResult]]]:
    """Return a decorator that makes a tool of a function; `refused` words errors as the system does."""

    def decorate(function: Callable[P, Awaitable[Spoken | ToolResult]]) -> Callable[P, Awaitable[ToolResult]]:
        @functools.wraps(function)
        async def tool(*args: P.args, **kwargs: P.kwargs) -> ToolResult:
            try:
                said = await function(*args, **kwargs)
            except SandpodError as error:
                metrics.refusals.labels(error.code).inc()
                return spoken(refused(error))
            except Exception:
                logger.exception("tool %s failed", function.__name__)
                metrics.refusals.labels(ErrorCode.BACKEND_ERROR).inc()
                return spoken(
                    refused(
                        SandpodError(
                            ErrorCode.BACKEND_ERROR,
                            "The server failed; its log says how.",
                            next_step="Try again. Report it to the administrator if it happens again.",
                        )
                    )
                )
            return said if isinstance(said, ToolResult) else spoken(said)

        # FastMCP reads types and the docstring from the wrapper; what it returns is not what the function returns.
        tool.__annotations__ = {**function.__annotations__, "return": ToolResult}
        return tool

    return decorate


def sentence(error: SandpodError) -> str:
    """Return an error as text: what went wrong and what to do."""
    return f"{error.message} {error.next_step}"


class Sessions:
    """Sandboxes by names that callers choose: each is one in its caller's own scope, whoever else uses it."""

    def __init__(self, sandboxes: Sandboxes) -> None:
        self._sandboxes = sandboxes

    async def all(self, owner: str) -> list[SandboxRecord]:
        """Return the caller's sandboxes that can be used."""
        return [record for record in await self._sandboxes.list(owner) if record.status == "Ready"]

    async def find(self, owner: str, session: str) -> SandboxRecord | None:
        """Return the caller's sandbox of a name, or of a handle."""
        for record in await self.all(owner):
            if session in {record.session, record.name}:
                return record
        return None

    async def need(self, owner: str, session: str) -> SandboxRecord:
        """Return the caller's sandbox.

        Raises:
            SandpodError: session_not_found.
        """
        record = await self.find(owner, session)
        if record is None:
            raise SandpodError(
                ErrorCode.SESSION_NOT_FOUND,
                f"There is no session {session!r}.",
                next_step="Use one that exists, or make it first.",
            )
        return record

    async def make(self, owner: str, session: str) -> SandboxRecord:
        """Return the caller's sandbox, made if need be.

        Raises:
            SandpodError: What the backend says when none can be had.
        """
        found = await self.find(owner, session)
        return found or await self._sandboxes.create(ClaimRequest(owner=owner, session=session))


def in_workspace(path: str, home: str) -> str:
    """Return a path relative to the workspace, of one inside the other system's data folder or our own.

    Raises:
        SandpodError: invalid_path.
    """
    for folder in (home, WORKSPACE):
        if path == folder or path.startswith(f"{folder.rstrip('/')}/"):
            path = path[len(folder) :].lstrip("/") or "."
            break
    inside = posixpath.normpath(path)
    return "." if inside == "." else inside_workspace(inside)
