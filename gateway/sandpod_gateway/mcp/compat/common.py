"""What the tools of all other systems share: how they are declared and answer, and the sandboxes that callers name."""

import functools
import json
import posixpath
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from types import MethodType
from typing import Any, Final

from fastmcp import FastMCP
from fastmcp.tools.base import ToolResult
from mcp_types import TextContent

from sandpod_api.names import WORKSPACE
from sandpod_gateway.api.results import ErrorCode, Installation
from sandpod_gateway.api.run_results import Language, RunResult
from sandpod_gateway.auth.current import current_owner
from sandpod_gateway.backends.base import ClaimRequest, SandboxRecord
from sandpod_gateway.content import Answer, Picture
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.files.paths import inside_workspace
from sandpod_gateway.mcp.compat.settings import CompatSettings
from sandpod_gateway.mcp.tool_results import answering, count_refusal, images
from sandpod_gateway.mcp.toolbox import Parts
from sandpod_gateway.runs.request import RunRequest

Value = dict[str, Any] | list[Any] | str
Method = Callable[..., Awaitable[Value | ToolResult]]
Refused = Callable[[SandpodError], Value]

READ: Final = {"readOnlyHint": True, "destructiveHint": False, "idempotentHint": True, "openWorldHint": False}
CHANGE: Final = {"readOnlyHint": False, "destructiveHint": True, "idempotentHint": False, "openWorldHint": False}
OPEN_WORLD: Final = {**CHANGE, "openWorldHint": True}


@dataclass(frozen=True)
class Tool:
    """A method that is a tool; its name and docstring are the tool's."""

    method: Method
    title: str
    refused: Refused
    hints: dict[str, bool]
    other_names: tuple[str, ...]


def tool(
    title: str, refused: Refused, hints: dict[str, bool] = CHANGE, *, other_names: tuple[str, ...] = ()
) -> Callable[[Method], Tool]:
    """Return a decorator that makes a tool of a method; `refused` words errors as the system does."""
    return lambda method: Tool(method, title, refused, hints, other_names)


@dataclass
class System:
    """Another system's tools, or some of them; `libraries` are the Python libraries of the default sandbox."""

    parts: Parts
    settings: CompatSettings
    libraries: Sequence[str]

    def register(self, mcp: FastMCP[None]) -> None:
        """Add the tools to a server, in place of ours where a name is taken."""
        for each in vars(type(self)).values():
            if isinstance(each, Tool):
                refused = functools.partial(self.refuse, each.refused)
                function = answering(MethodType(each.method, self), as_result, refused)
                for name in (each.method.__name__, *each.other_names):
                    annotations = {"title": each.title, **each.hints}
                    mcp.tool(name=name, annotations=annotations, output_schema=None)(function)

    def refuse(self, refused: Refused, error: SandpodError, **fields: Any) -> ToolResult:
        """Count a refused call and return its result, with more fields where that is an object."""
        count_refusal(self.parts.metrics, error)
        value = refused(error)
        return as_result({**value, **fields} if isinstance(value, dict) else value)

    async def run(
        self, record: SandboxRecord, code: str, language: str = Language.PYTHON, **fields: Any
    ) -> Answer[RunResult]:
        """Run a program in a sandbox, and return its result with links to the files that it names."""
        request = RunRequest(language=language, code=code, **fields)
        answer = await self.parts.runs.run(record.owner, request, sandbox=record.name)
        return Answer(self.parts.links.linked(answer.result), answer.pictures)

    async def install(self, record: SandboxRecord, package: str, wait: float) -> Installation:
        """Install a Python package in a sandbox, and wait so many seconds for it."""
        return await self.parts.installer.install(
            record.owner, [package], language=Language.PYTHON, sandbox=record.name, wait=wait
        )

    async def write(self, record: SandboxRecord, path: str, data: bytes, *, overwrite: bool = True) -> None:
        """Write a file in the workspace of a sandbox."""
        await self.parts.files.write(record.owner, path, data, sandbox=record.name, overwrite=overwrite)

    async def sessions(self) -> list[SandboxRecord]:
        """Return the caller's sandboxes that can be used."""
        return [record for record in await self.parts.sandboxes.list(current_owner()) if record.status == "Ready"]

    async def find(self, session: str) -> SandboxRecord | None:
        """Return the caller's sandbox of a name, or of a handle."""
        return next((record for record in await self.sessions() if session in {record.session, record.name}), None)

    async def need(self, session: str) -> SandboxRecord:
        """Return the caller's sandbox of a name, or of a handle. Raises session_not_found."""
        if (record := await self.find(session)) is not None:
            return record
        message, step = f"There is no session {session!r}.", "Use one that exists, or make it first."
        raise SandpodError(ErrorCode.SESSION_NOT_FOUND, message, next_step=step)

    async def make(self, session: str, **claim: Any) -> SandboxRecord:
        """Return the caller's sandbox of a name, claimed if need be."""
        found = await self.find(session)
        return found or await self.parts.sandboxes.create(ClaimRequest(owner=current_owner(), session=session, **claim))


def as_result(value: Value | ToolResult, pictures: Iterable[Picture] = ()) -> ToolResult:
    """Return a tool's result: as text, as structured content, and pictures."""
    if isinstance(value, ToolResult):
        return value
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    content = [TextContent(type="text", text=text), *images(pictures)]
    return ToolResult(content=content, structured_content=value if isinstance(value, dict) else {"result": value})


def sentence(error: SandpodError) -> str:
    """Return an error as text: what went wrong and what to do."""
    return f"{error.message} {error.next_step}"


def refusal(**fields: Any) -> Refused:
    """Return what words an error as a result with these fields, in which `...` stands for its sentence."""
    return lambda error: {name: sentence(error) if value is ... else value for name, value in fields.items()}


def in_workspace(path: str, home: str) -> str:
    """Return a path in the workspace, of one in the other system's data folder or in ours. Raises invalid_path."""
    for folder in (WORKSPACE, home):
        if path == folder or path.startswith(f"{folder.rstrip('/')}/"):
            path = path[len(folder) :].lstrip("/") or "."
            break
    inside = posixpath.normpath(path)
    return "." if inside == "." else inside_workspace(inside)
