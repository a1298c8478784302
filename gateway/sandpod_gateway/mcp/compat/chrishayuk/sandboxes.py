"""The tools of chrishayuk/mcp-code-sandbox. A session's variables stay between its runs."""

import posixpath
from typing import Any, Final

from sandpod_api.names import WORKSPACE
from sandpod_gateway.api.run_results import Language, Outcome, RunResult
from sandpod_gateway.auth.api_keys import current_owner
from sandpod_gateway.backends.base import ClaimRequest, SandboxRecord
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.files.service import MAX_ENTRIES, MAX_READ
from sandpod_gateway.mcp.compat.common import READ, System, as_error, in_workspace, said, sentence, tool
from sandpod_gateway.runs.request import RunRequest

_CONTEXT: Final = "session"
_KIND: Final = "sandpod"


def _failed(error: SandpodError) -> str:
    return f"Failed: {sentence(error)}"


class Chrishayuk(System):
    """Its tools for sandboxes and files."""

    @tool("Create a sandbox", _failed)
    async def create_sandbox(self, session_id: str) -> Any:
        """Make the sandbox of a session whose id you choose."""
        if await self.find(session_id) is not None:
            return f"Sandbox for session {session_id} already exists."
        await self.make(session_id)
        return f"Sandbox created for session {session_id}."

    @tool("Close a sandbox", _failed)
    async def close_sandbox(self, session_id: str) -> Any:
        """End the sandbox of a session, with its files."""
        record = await self.find(session_id)
        if record is None:
            return f"No sandbox found for session {session_id}."
        await self.parts.sandboxes.delete(record.owner, record.name, force=True)
        return f"Sandbox for session {session_id} closed."

    @tool("Look at sandboxes", as_error, READ)
    async def get_sandbox_status(self, session_id: str | None = None) -> Any:
        """Return the status of a session's sandbox, or list the sessions."""
        if session_id is not None:
            await self.need(session_id)
            return {"status": "active", "session_id": session_id, "interpreter_type": _KIND}
        sessions = [record.session or record.name for record in await self.sessions()]
        return {"active_sandbox_count": len(sessions), "active_sessions": sessions, "interpreter_type": _KIND}

    @tool("Run Python in a session", as_error)
    async def execute_code(self, session_id: str, code: str) -> Any:
        """Run Python in a session, where variables stay between calls."""
        request = RunRequest(language=Language.PYTHON, code=code, context=_CONTEXT)
        answer = await self.run(await self.need(session_id), request)
        return said(_ran(answer.result), answer.pictures)

    @tool("Run Python once", as_error)
    async def create_run_close(self, code: str) -> Any:
        """Run Python in a sandbox of its own, which is closed afterwards."""
        request = RunRequest(language=Language.PYTHON, code=code)
        owner = current_owner()
        answer = await self.parts.runs.run(owner, request, fresh=ClaimRequest(owner=owner))
        closed = {"sandbox_status": "created", "sandbox_closed": True, "sandbox_removed": True}
        return said({**_ran(answer.result), **closed}, answer.pictures)

    @tool("Install a package in a session", as_error)
    async def install_package(self, session_id: str, package_name: str) -> Any:
        """Install a Python package in a session."""
        record, installer = await self.need(session_id), self.parts.installer
        done = await installer.install(
            record.owner, [package_name], language=Language.PYTHON, sandbox=record.name, wait=installer.timeout
        )
        if done.status == "success":
            output = ", ".join(f"{each.name} {each.version}" for each in done.packages)
            return {"package": package_name, "output": f"Installed {output}", "error": None}
        return {"package": package_name, "output": "", "error": done.message or "It is still being installed."}

    @tool("List files", as_error, READ)
    async def list_files(self, session_id: str, path: str = "/") -> Any:
        """List the files of a session."""
        record, inside = await self._place(session_id, path)
        listed = await self.parts.files.list(
            record.owner, inside, sandbox=record.name, recursive=False, limit=MAX_ENTRIES
        )
        return {"path": path, "files": [entry.path.rpartition("/")[2] for entry in listed.entries]}

    @tool("Read a file", as_error, READ)
    async def read_file(self, session_id: str, file_path: str) -> Any:
        """Read a text file of a session."""
        record, inside = await self._place(session_id, file_path)
        read = await self.parts.files.read(
            record.owner, inside, sandbox=record.name, span=(0, MAX_READ), encoding="utf-8"
        )
        return {"path": file_path, "content": read.content}

    @tool("Write a file", as_error)
    async def write_file(self, session_id: str, file_path: str, content: str) -> Any:
        """Write a text file of a session."""
        return await self._write(session_id, file_path, content)

    @tool("Upload a file", as_error)
    async def upload_file(self, session_id: str, file_name: str, file_content: str, destination_path: str = "/") -> Any:
        """Put a text file into a folder of a session."""
        return await self._write(session_id, posixpath.join(destination_path, file_name), file_content)

    async def _write(self, session_id: str, path: str, content: str) -> dict[str, Any]:
        record, inside = await self._place(session_id, path)
        await self.parts.files.write(record.owner, inside, content.encode(), sandbox=record.name, overwrite=True)
        return {"path": path, "message": "File written successfully"}

    @tool("Delete a file", as_error)
    async def delete_file(self, session_id: str, file_path: str) -> Any:
        """Delete a file of a session."""
        record, inside = await self._place(session_id, file_path)
        await self.parts.files.delete(record.owner, inside, sandbox=record.name, recursive=False)
        return {"path": file_path, "message": "File deleted successfully"}

    @tool("Look at a file", as_error, READ)
    async def get_file_metadata(self, session_id: str, file_path: str) -> Any:
        """Return size, time and type of a session's file."""
        record, inside = await self._place(session_id, file_path)
        found = await self.parts.files.stat(record.owner, inside, sandbox=record.name)
        return {"path": file_path, "metadata": found.model_dump(mode="json", exclude={"sandbox", "path"})}

    async def _place(self, session_id: str, path: str) -> tuple[SandboxRecord, str]:
        # Its paths begin at "/", and the workspace is all that there is.
        ours = path if path == WORKSPACE or path.startswith(f"{WORKSPACE}/") else path.lstrip("/") or "."
        return await self.need(session_id), in_workspace(ours, WORKSPACE)


def _ran(result: RunResult) -> dict[str, Any]:
    logs = {"stdout": [result.stdout] if result.stdout else [], "stderr": [result.stderr] if result.stderr else []}
    fields: dict[str, Any] = {"logs": logs, "error": None}
    if result.outcome != Outcome.OK:
        fields["error"] = result.stderr.strip() or result.hint or f"The run ended with {result.outcome}."
    if result.result is not None:
        fields["results"] = result.result
    return fields
