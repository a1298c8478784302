"""The tools of gaiar/mcp-code-sandbox.

Files are in /workspace, where programs start; paths below /mnt/data mean files in it. In the
default image and the local backend that folder is a link to /workspace.
"""

import base64
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from sandpod_api.names import WORKSPACE
from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.api.run_results import Language, Outcome, RunResult
from sandpod_gateway.content import decode_base64, mime_type
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.files.service import MAX_ENTRIES
from sandpod_gateway.mcp.compat.common import READ, System, as_result, in_workspace, tool
from sandpod_gateway.runs.request import RunRequest

_HOME: Final = "/mnt/data"
_SESSION: Final = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)
_FILENAME: Final = re.compile(r"[A-Za-z0-9._-]{1,255}", re.ASCII)
_MAX_READ: Final = 320 * 1024  # bytes of an artifact in an answer, which has its base64 twice; a link gives larger ones

# Its own names of what we call after the backend.
_CODES: Final = {ErrorCode.BACKEND_ERROR: "docker_error", ErrorCode.BACKEND_UNAVAILABLE: "docker_unavailable"}


def _refused(error: SandpodError) -> dict[str, Any]:
    return {"error": _CODES.get(error.code, str(error.code)), "message": error.message}


@dataclass
class Gaiar(System):
    """Its tools."""

    _busy: set[str] = field(default_factory=set, init=False)

    @contextmanager
    def _alone(self, sandbox: str) -> Iterator[None]:
        """One run at a time in a session."""
        if sandbox in self._busy or self.parts.sandboxes.running(sandbox):
            message, step = "A run is going on in this session.", "Wait until it has ended."
            raise SandpodError(ErrorCode.SESSION_BUSY, message, next_step=step)
        self._busy.add(sandbox)
        try:
            yield
        finally:
            self._busy.discard(sandbox)

    @tool("Run Python (session)", _refused)
    async def sandbox_run_python(self, code: str, session_id: str | None = None) -> Any:
        """Run Python in a session without network; files in its working directory stay between calls."""
        session = _session(session_id)
        self.parts.runs.check(RunRequest(language=Language.PYTHON, code=code))
        record = await self.make(session)
        with self._alone(record.name):
            answer = await self.run(record, code)
        return as_result(_ran(answer.result, session), answer.pictures)

    @tool("Upload a file (session)", _refused)
    async def sandbox_upload_file(
        self, filename: str, content_base64: str, session_id: str | None = None, *, overwrite: bool = False
    ) -> Any:
        """Put a file into a session's working directory."""
        session = _session(session_id)
        step = "Use a name such as table.csv."
        if ".." in filename:
            raise SandpodError(ErrorCode.INVALID_PATH, "A name with two dots is refused.", next_step=step)
        if _FILENAME.fullmatch(filename) is None:
            message = "A file's name has letters, digits, dots, hyphens and underscores, at most 255."
            raise SandpodError(ErrorCode.INVALID_FILENAME, message, next_step=step)
        data = decode_base64(content_base64)
        self.parts.files.check_upload(data)
        record = await self.make(session)
        await self.write(record, filename, data, overwrite=overwrite)
        return {"session_id": session, "path": f"{WORKSPACE}/{filename}"}

    @tool("Read an artifact (session)", _refused, READ)
    async def sandbox_read_artifact(self, session_id: str, path: str) -> Any:
        """Read a file of a session as base64."""
        record = await self.need(_session(session_id))
        inside = in_workspace(path, _HOME)
        _, size, _, data = await self.parts.files.part(record.owner, inside, sandbox=record.name, limit=_MAX_READ)
        if size > len(data):
            message = f"The file has {size} bytes, over the limit of {_MAX_READ} for one answer."
            error = SandpodError(ErrorCode.ARTIFACT_TOO_LARGE, message, next_step="Download it by its link.")
            url = self.parts.links.url(record.name, inside)
            return self.refuse(_refused, error, size_bytes=size, **({"download_url": url} if url else {}))
        return {**_file(inside, size), "content_base64": base64.b64encode(data).decode()}

    @tool("List artifacts (session)", _refused, READ)
    async def sandbox_list_artifacts(self, session_id: str) -> Any:
        """List the files of a session."""
        record = await self.need(_session(session_id))
        listed = await self.parts.files.list(record.owner, ".", sandbox=record.name, recursive=True, limit=MAX_ENTRIES)
        url, files = self.parts.links.url, [(each.path, each.size) for each in listed.entries if each.kind == "file"]
        return {"artifacts": [{**_file(path, size), "download_url": url(record.name, path)} for path, size in files]}

    @tool("Close a session", _refused)
    async def sandbox_close_session(self, session_id: str) -> Any:
        """End a session; its files are lost."""
        record = await self.need(_session(session_id))
        with self._alone(record.name):
            await self.parts.sandboxes.delete(record.owner, record.name, force=False)
        return {"status": "closed"}


def _session(session_id: str | None) -> str:
    if session_id is None:
        return f"sess_{secrets.token_hex(6)}"
    if _SESSION.fullmatch(session_id) is None:
        message = "A session id has 1 to 64 letters, digits, hyphens and underscores."
        step = "Use such a one, or leave it out for a new session."
        raise SandpodError(ErrorCode.INVALID_SESSION_ID, message, next_step=step)
    return session_id


def _file(path: str, size: int) -> dict[str, Any]:
    name = path.rpartition("/")[2]
    return {"path": f"{WORKSPACE}/{path}", "filename": name, "mime_type": mime_type(name), "size_bytes": size}


def _ran(result: RunResult, session: str) -> dict[str, Any]:
    code, stderr = result.exit_code, result.stderr
    if result.outcome == Outcome.TIMEOUT:
        code = -1
        stderr += f"\nExecution timed out after {round(result.duration_ms / 1000)} seconds."
    elif result.outcome not in {Outcome.OK, Outcome.ERROR} and result.hint:
        stderr += f"\n{result.hint}"
    return {
        "session_id": session,
        "run_id": f"run_{datetime.now(UTC):%Y%m%dT%H%M%SZ}_{secrets.token_hex(2)}",
        "exit_code": -1 if code is None else code,
        "stdout": result.stdout,
        "stderr": stderr,
        "stdout_truncated": result.stdout_truncated,
        "stderr_truncated": result.stderr_truncated,
        "artifacts": [{**_file(each.path, each.size), "download_url": each.url} for each in result.artifacts],
        "duration_ms": round(result.duration_ms),
    }
