"""The tools of chrishayuk/mcp-code-sandbox. A session's variables stay between its runs."""

import posixpath
from typing import Any, Final

from fastmcp import FastMCP

from sandpod_api.names import WORKSPACE
from sandpod_gateway.api.run_results import Language, Outcome, RunResult
from sandpod_gateway.auth.api_keys import current_owner
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.files.service import MAX_ENTRIES, MAX_READ
from sandpod_gateway.mcp.compat.common import CHANGE, READ, Sessions, in_workspace, sentence, speaking, spoken
from sandpod_gateway.mcp.services import Parts
from sandpod_gateway.runs.request import FreshSandbox, RunRequest

_CONTEXT: Final = "session"
_HOME: Final = "/"


def _refused(error: SandpodError) -> dict[str, Any]:
    return {"error": sentence(error)}


def _said(error: SandpodError) -> str:
    return f"Failed: {sentence(error)}"


class _Chrishayuk:
    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._sessions = Sessions(parts.sandboxes)
        self._kind = "sandpod"

    async def create(self, session_id: str) -> str:
        owner = current_owner()
        if await self._sessions.find(owner, session_id) is not None:
            return f"Sandbox for session {session_id} already exists."
        await self._sessions.make(owner, session_id)
        return f"Sandbox created for session {session_id}."

    async def close(self, session_id: str) -> str:
        owner = current_owner()
        record = await self._sessions.find(owner, session_id)
        if record is None:
            return f"No sandbox found for session {session_id}."
        await self._parts.sandboxes.delete(owner, record.name, force=True)
        return f"Sandbox for session {session_id} closed."

    async def status(self, session_id: str | None) -> dict[str, Any]:
        owner = current_owner()
        if session_id is not None:
            await self._sessions.need(owner, session_id)
            return {"status": "active", "session_id": session_id, "interpreter_type": self._kind}
        sessions = [record.session or record.name for record in await self._sessions.all(owner)]
        return {
            "active_sandbox_count": len(sessions),
            "active_sessions": sessions,
            "interpreter_type": self._kind,
        }

    async def run(self, session_id: str, code: str) -> Any:
        owner = current_owner()
        record = await self._sessions.need(owner, session_id)
        request = RunRequest(language=Language.PYTHON, code=code, context=_CONTEXT)
        answer = await self._parts.runs.run(owner, request, sandbox=record.name)
        return spoken(_ran(answer.result), answer.pictures)

    async def run_once(self, code: str) -> Any:
        request = RunRequest(language=Language.PYTHON, code=code)
        answer = await self._parts.runs.run(current_owner(), request, fresh=FreshSandbox())
        closed = {"sandbox_status": "created", "sandbox_closed": True, "sandbox_removed": True}
        return spoken({**_ran(answer.result), **closed}, answer.pictures)

    async def install(self, session_id: str, package: str) -> dict[str, Any]:
        owner = current_owner()
        record = await self._sessions.need(owner, session_id)
        done = await self._parts.installer.install(
            owner, [package], language=Language.PYTHON, sandbox=record.name, wait=self._parts.installer.timeout
        )
        if done.status == "success":
            output = ", ".join(f"{each.name} {each.version}" for each in done.packages)
            return {"package": package, "output": f"Installed {output}", "error": None}
        return {"package": package, "output": "", "error": done.message or "It is still being installed."}

    async def list(self, session_id: str, path: str) -> dict[str, Any]:
        record, inside = await self._place(session_id, path)
        listed = await self._parts.files.list(
            current_owner(), inside, sandbox=record, recursive=False, limit=MAX_ENTRIES
        )
        return {"path": path, "files": [entry.path.rpartition("/")[2] for entry in listed.entries]}

    async def read(self, session_id: str, path: str) -> dict[str, Any]:
        record, inside = await self._place(session_id, path)
        read = await self._parts.files.read(
            current_owner(), inside, sandbox=record, span=(0, MAX_READ), encoding="utf-8"
        )
        return {"path": path, "content": read.content}

    async def write(self, session_id: str, path: str, content: str) -> dict[str, Any]:
        record, inside = await self._place(session_id, path)
        await self._parts.files.write(current_owner(), inside, content.encode(), sandbox=record, overwrite=True)
        return {"path": path, "message": "File written successfully"}

    async def delete(self, session_id: str, path: str) -> dict[str, Any]:
        record, inside = await self._place(session_id, path)
        await self._parts.files.delete(current_owner(), inside, sandbox=record, recursive=False)
        return {"path": path, "message": "File deleted successfully"}

    async def metadata(self, session_id: str, path: str) -> dict[str, Any]:
        record, inside = await self._place(session_id, path)
        found = await self._parts.files.stat(current_owner(), inside, sandbox=record)
        return {"path": path, "metadata": found.model_dump(mode="json", exclude={"sandbox", "path"})}

    async def _place(self, session_id: str, path: str) -> tuple[str, str]:
        record = await self._sessions.need(current_owner(), session_id)
        # Its paths begin at "/", and the workspace is all that there is.
        ours = path if path == WORKSPACE or path.startswith(f"{WORKSPACE}/") else path.lstrip("/") or "."
        return record.name, in_workspace(ours, WORKSPACE)


def _ran(result: RunResult) -> dict[str, Any]:
    logs: dict[str, Any] = {"stdout": [result.stdout] if result.stdout else []}
    logs["stderr"] = [result.stderr] if result.stderr else []
    told: dict[str, Any] = {"logs": logs, "error": None}
    if result.outcome != Outcome.OK:
        told["error"] = result.stderr.strip() or result.hint or f"The run ended with {result.outcome}."
    if result.result is not None:
        told["results"] = result.result
    return told


def register(mcp: FastMCP[None], parts: Parts) -> None:
    """Add the tools to a server."""
    tools = _Chrishayuk(parts)
    _register_sessions(mcp, parts, tools)
    _register_files(mcp, parts, tools)


def _register_sessions(mcp: FastMCP[None], parts: Parts, tools: _Chrishayuk) -> None:
    speak, say = speaking(parts.metrics, _refused), speaking(parts.metrics, _said)

    @mcp.tool(annotations={"title": "Create a sandbox", **CHANGE}, output_schema=None)
    @say
    async def create_sandbox(session_id: str) -> Any:
        """Make the sandbox of a session whose id you choose."""
        return await tools.create(session_id)

    @mcp.tool(annotations={"title": "Close a sandbox", **CHANGE}, output_schema=None)
    @say
    async def close_sandbox(session_id: str) -> Any:
        """End the sandbox of a session, with its files."""
        return await tools.close(session_id)

    @mcp.tool(annotations={"title": "Look at sandboxes", **READ}, output_schema=None)
    @speak
    async def get_sandbox_status(session_id: str | None = None) -> Any:
        """Return the status of a session's sandbox, or list the sessions."""
        return await tools.status(session_id)

    @mcp.tool(annotations={"title": "Run Python in a session", **CHANGE}, output_schema=None)
    @speak
    async def execute_code(session_id: str, code: str) -> Any:
        """Run Python in a session, where variables stay between calls."""
        return await tools.run(session_id, code)

    @mcp.tool(annotations={"title": "Run Python once", **CHANGE}, output_schema=None)
    @speak
    async def create_run_close(code: str) -> Any:
        """Run Python in a sandbox of its own, which is closed afterwards."""
        return await tools.run_once(code)

    @mcp.tool(annotations={"title": "Install a package in a session", **CHANGE}, output_schema=None)
    @speak
    async def install_package(session_id: str, package_name: str) -> Any:
        """Install a Python package in a session."""
        return await tools.install(session_id, package_name)


def _register_files(mcp: FastMCP[None], parts: Parts, tools: _Chrishayuk) -> None:
    speak = speaking(parts.metrics, _refused)

    @mcp.tool(annotations={"title": "List files", **READ}, output_schema=None)
    @speak
    async def list_files(session_id: str, path: str = "/") -> Any:
        """List the files of a session."""
        return await tools.list(session_id, path)

    @mcp.tool(annotations={"title": "Read a file", **READ}, output_schema=None)
    @speak
    async def read_file(session_id: str, file_path: str) -> Any:
        """Read a text file of a session."""
        return await tools.read(session_id, file_path)

    @mcp.tool(annotations={"title": "Write a file", **CHANGE}, output_schema=None)
    @speak
    async def write_file(session_id: str, file_path: str, content: str) -> Any:
        """Write a text file of a session."""
        return await tools.write(session_id, file_path, content)

    @mcp.tool(annotations={"title": "Upload a file", **CHANGE}, output_schema=None)
    @speak
    async def upload_file(session_id: str, file_name: str, file_content: str, destination_path: str = "/") -> Any:
        """Put a text file into a folder of a session."""
        return await tools.write(session_id, posixpath.join(destination_path, file_name), file_content)

    @mcp.tool(annotations={"title": "Delete a file", **CHANGE}, output_schema=None)
    @speak
    async def delete_file(session_id: str, file_path: str) -> Any:
        """Delete a file of a session."""
        return await tools.delete(session_id, file_path)

    @mcp.tool(annotations={"title": "Look at a file", **READ}, output_schema=None)
    @speak
    async def get_file_metadata(session_id: str, file_path: str) -> Any:
        """Return size, time and type of a session's file."""
        return await tools.metadata(session_id, file_path)
