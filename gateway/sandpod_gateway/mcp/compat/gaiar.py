"""The tools of gaiar/mcp-code-sandbox.

Files are in /workspace, where programs start; paths below /mnt/data mean files in it. In the
default image and the local backend that folder is a link to /workspace.
"""

import base64
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final

from fastmcp import FastMCP

from sandpod_api.names import WORKSPACE
from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.api.run_results import Language, Outcome, RunResult
from sandpod_gateway.auth.api_keys import current_owner
from sandpod_gateway.content import decode_base64, mime_type
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.files.service import MAX_ENTRIES
from sandpod_gateway.mcp.artifact_links import linked_answer
from sandpod_gateway.mcp.compat.common import CHANGE, READ, Sessions, in_workspace, speaking, spoken
from sandpod_gateway.mcp.services import Parts
from sandpod_gateway.runs.request import RunRequest

_HOME: Final = "/mnt/data"
_SESSION: Final = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)
_FILENAME: Final = re.compile(r"[A-Za-z0-9._-]{1,255}", re.ASCII)
_MAX_READ: Final = 320 * 1024
"""Bytes of an artifact as base64 in one answer, which counts it twice; a link gives larger ones."""

# Its own names of what we call after the backend.
_CODES: Final = {
    ErrorCode.BACKEND_ERROR: "docker_error",
    ErrorCode.BACKEND_UNAVAILABLE: "docker_unavailable",
}


class _TooLargeError(SandpodError):
    """An artifact that does not fit an answer."""

    def __init__(self, size: int, url: str | None) -> None:
        super().__init__(
            ErrorCode.ARTIFACT_TOO_LARGE,
            f"The file has {size} bytes, over the limit of {_MAX_READ} for one answer.",
            next_step="Download it by its link.",
        )
        self.told = {"size_bytes": size, **({"download_url": url} if url else {})}


def _refused(error: SandpodError) -> dict[str, Any]:
    told = error.told if isinstance(error, _TooLargeError) else {}
    return {"error": _CODES.get(error.code, str(error.code)), "message": error.message, **told}


class _Gaiar:
    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.sessions = Sessions(parts.sandboxes)
        self._busy: set[str] = set()

    @contextmanager
    def _alone(self, sandbox: str) -> Iterator[None]:
        """One run at a time in a session."""
        if sandbox in self._busy or self.parts.sandboxes.running(sandbox):
            raise SandpodError(
                ErrorCode.SESSION_BUSY, "A run is going on in this session.", next_step="Wait until it has ended."
            )
        self._busy.add(sandbox)
        try:
            yield
        finally:
            self._busy.discard(sandbox)

    async def run(self, code: str, session_id: str | None) -> Any:
        session = _session(session_id)
        owner = current_owner()
        request = RunRequest(language=Language.PYTHON, code=code)
        self.parts.runs.check(request)
        record = await self.sessions.make(owner, session)
        with self._alone(record.name):
            answer = linked_answer(self.parts.links, await self.parts.runs.run(owner, request, sandbox=record.name))
        return spoken(_ran(answer.result, session), answer.pictures)

    async def upload(self, filename: str, content: str, session_id: str | None, *, overwrite: bool) -> dict[str, Any]:
        session = _session(session_id)
        if ".." in filename:
            raise SandpodError(
                ErrorCode.INVALID_PATH, "A name with two dots is refused.", next_step="Use a name such as table.csv."
            )
        if _FILENAME.fullmatch(filename) is None:
            raise SandpodError(
                ErrorCode.INVALID_FILENAME,
                "A file's name has letters, digits, dots, hyphens and underscores, at most 255.",
                next_step="Use a name such as table.csv.",
            )
        data = decode_base64(content)
        self.parts.files.check_upload(data)
        owner = current_owner()
        record = await self.sessions.make(owner, session)
        await self.parts.files.write(owner, filename, data, sandbox=record.name, overwrite=overwrite)
        return {"session_id": session, "path": f"{WORKSPACE}/{filename}"}

    async def read(self, session_id: str, path: str) -> dict[str, Any]:
        owner = current_owner()
        record = await self.sessions.need(owner, _session(session_id))
        inside = in_workspace(path, _HOME)
        _, size, data = await self.parts.files.beginning(owner, inside, sandbox=record.name, limit=_MAX_READ)
        if size > len(data):
            raise _TooLargeError(size, self.parts.links.url(record.name, inside))
        told = base64.b64encode(data).decode("ascii")
        name = inside.rpartition("/")[2]
        return {
            "path": f"{WORKSPACE}/{inside}",
            "filename": name,
            "mime_type": mime_type(name),
            "size_bytes": size,
            "content_base64": told,
        }

    async def list(self, session_id: str) -> dict[str, Any]:
        owner = current_owner()
        record = await self.sessions.need(owner, _session(session_id))
        listed = await self.parts.files.list(owner, ".", sandbox=record.name, recursive=True, limit=MAX_ENTRIES)
        entries = [entry for entry in listed.entries if entry.kind == "file"]
        return {
            "artifacts": [
                _artifact(entry.path, entry.size, self.parts.links.url(record.name, entry.path)) for entry in entries
            ]
        }

    async def close(self, session_id: str) -> dict[str, Any]:
        owner = current_owner()
        record = await self.sessions.need(owner, _session(session_id))
        with self._alone(record.name):
            await self.parts.sandboxes.delete(owner, record.name, force=False)
        return {"status": "closed"}


def _session(session_id: str | None) -> str:
    if session_id is None:
        return f"sess_{secrets.token_hex(6)}"
    if _SESSION.fullmatch(session_id) is None:
        raise SandpodError(
            ErrorCode.INVALID_SESSION_ID,
            "A session id has 1 to 64 letters, digits, hyphens and underscores.",
            next_step="Use such a one, or leave it out for a new session.",
        )
    return session_id


def _artifact(path: str, size: int, url: str | None) -> dict[str, Any]:
    told = {"path": f"{WORKSPACE}/{path}", "filename": path.rpartition("/")[2], "size_bytes": size}
    return {**told, "mime_type": mime_type(path), "download_url": url}


def _ran(result: RunResult, session: str) -> dict[str, Any]:
    code, stderr = result.exit_code, result.stderr
    if result.outcome == Outcome.TIMEOUT:
        code = -1
        stderr += f"\nExecution timed out after {round(result.duration_ms / 1000)} seconds."
    elif result.outcome not in {Outcome.OK, Outcome.ERROR} and result.hint:
        stderr += f"\n{result.hint}"
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    return {
        "session_id": session,
        "run_id": f"run_{stamp}_{secrets.token_hex(2)}",
        "exit_code": -1 if code is None else code,
        "stdout": result.stdout,
        "stderr": stderr,
        "stdout_truncated": result.stdout_truncated,
        "stderr_truncated": result.stderr_truncated,
        "artifacts": [_artifact(artifact.path, artifact.size, artifact.url) for artifact in result.artifacts],
        "duration_ms": round(result.duration_ms),
    }


def register(mcp: FastMCP[None], parts: Parts) -> None:
    """Add the tools to a server."""
    tools = _Gaiar(parts)
    speak = speaking(parts.metrics, _refused)

    @mcp.tool(annotations={"title": "Run Python (session)", **CHANGE}, output_schema=None)
    @speak
    async def sandbox_run_python(code: str, session_id: str | None = None) -> Any:
        """Run Python in a session without network; files in its working directory stay between calls."""
        return await tools.run(code, session_id)

    @mcp.tool(annotations={"title": "Upload a file (session)", **CHANGE}, output_schema=None)
    @speak
    async def sandbox_upload_file(
        filename: str, content_base64: str, session_id: str | None = None, *, overwrite: bool = False
    ) -> Any:
        """Put a file into a session's working directory."""
        return await tools.upload(filename, content_base64, session_id, overwrite=overwrite)

    @mcp.tool(annotations={"title": "Read an artifact (session)", **READ}, output_schema=None)
    @speak
    async def sandbox_read_artifact(session_id: str, path: str) -> Any:
        """Read a file of a session as base64."""
        return await tools.read(session_id, path)

    @mcp.tool(annotations={"title": "List artifacts (session)", **READ}, output_schema=None)
    @speak
    async def sandbox_list_artifacts(session_id: str) -> Any:
        """List the files of a session."""
        return await tools.list(session_id)

    @mcp.tool(annotations={"title": "Close a session", **CHANGE}, output_schema=None)
    @speak
    async def sandbox_close_session(session_id: str) -> Any:
        """End a session; its files are lost."""
        return await tools.close(session_id)
