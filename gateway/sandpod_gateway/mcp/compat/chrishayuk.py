"""The tools of chrishayuk/mcp-code-sandbox, but for telnet. A session's variables stay between its runs."""

import base64
import json
import posixpath
import secrets
from pathlib import Path
from typing import Any, Final, Literal

from sandpod_api.names import WORKSPACE
from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.api.run_results import Language, Outcome, RunResult
from sandpod_gateway.auth.current import current_owner
from sandpod_gateway.backends.base import ClaimRequest, SandboxRecord
from sandpod_gateway.content import Picture
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.files.service import MAX_ENTRIES, MAX_READ
from sandpod_gateway.mcp.compat.common import READ, System, as_result, in_workspace, refusal, sentence, tool
from sandpod_gateway.runs.request import RunRequest

_HOME: Final = "/"  # its paths begin there, and the workspace is all that there is
_CONTEXT: Final = "session"
_KIND: Final = "sandpod"
_CHART_CODE: Final = Path(__file__).with_name("chart_program.py").read_text(encoding="utf-8")
_MAX_CHART: Final = 256 * 1024  # bytes of a chart in an answer, which has it three times

_refused: Final = refusal(error=...)

Rows = list[dict[str, Any]]


def _failed(error: SandpodError) -> str:
    return f"Failed: {sentence(error)}"


class Chrishayuk(System):
    """Its tools for sandboxes, files and charts."""

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

    @tool("Look at sandboxes", _refused, READ)
    async def get_sandbox_status(self, session_id: str | None = None) -> Any:
        """Return the status of a session's sandbox, or list the sessions."""
        if session_id is not None:
            await self.need(session_id)
            return {"status": "active", "session_id": session_id, "interpreter_type": _KIND}
        sessions = [record.session or record.name for record in await self.sessions()]
        return {"active_sandbox_count": len(sessions), "active_sessions": sessions, "interpreter_type": _KIND}

    @tool("Run Python in a session", _refused)
    async def execute_code(self, session_id: str, code: str) -> Any:
        """Run Python in a session, where variables stay between calls."""
        answer = await self.run(await self.need(session_id), code, context=_CONTEXT)
        return as_result(_ran(answer.result), answer.pictures)

    @tool("Run Python once", _refused)
    async def create_run_close(self, code: str) -> Any:
        """Run Python in a sandbox of its own, which is closed afterwards."""
        request, fresh = RunRequest(language=Language.PYTHON, code=code), ClaimRequest(owner=current_owner())
        answer = await self.parts.runs.run(fresh.owner, request, fresh=fresh)
        closed = {"sandbox_status": "created", "sandbox_closed": True, "sandbox_removed": True}
        return as_result({**_ran(answer.result), **closed}, answer.pictures)

    @tool("Install a package in a session", _refused)
    async def install_package(self, session_id: str, package_name: str) -> Any:
        """Install a Python package in a session."""
        done = await self.install(await self.need(session_id), package_name, self.parts.installer.timeout)
        if done.status == "success":
            output = ", ".join(f"{each.name} {each.version}" for each in done.packages)
            return {"package": package_name, "output": f"Installed {output}", "error": None}
        return {"package": package_name, "output": "", "error": done.message or "It is still being installed."}

    @tool("List files", _refused, READ)
    async def list_files(self, session_id: str, path: str = "/") -> Any:
        """List the files of a session."""
        record, inside = await self._place(session_id, path)
        files = self.parts.files
        listed = await files.list(record.owner, inside, sandbox=record.name, recursive=False, limit=MAX_ENTRIES)
        return {"path": path, "files": [entry.path.rpartition("/")[2] for entry in listed.entries]}

    @tool("Read a file", _refused, READ)
    async def read_file(self, session_id: str, file_path: str) -> Any:
        """Read a text file of a session."""
        record, inside = await self._place(session_id, file_path)
        span, files = (0, MAX_READ), self.parts.files
        read = await files.read(record.owner, inside, sandbox=record.name, span=span, encoding="utf-8")
        return {"path": file_path, "content": read.content}

    @tool("Write a file", _refused)
    async def write_file(self, session_id: str, file_path: str, content: str) -> Any:
        """Write a text file of a session."""
        return await self._write(session_id, file_path, content)

    @tool("Upload a file", _refused)
    async def upload_file(self, session_id: str, file_name: str, file_content: str, destination_path: str = "/") -> Any:
        """Put a text file into a folder of a session."""
        return await self._write(session_id, posixpath.join(destination_path, file_name), file_content)

    async def _write(self, session_id: str, path: str, content: str) -> dict[str, Any]:
        record, inside = await self._place(session_id, path)
        await self.write(record, inside, content.encode())
        return {"path": path, "message": "File written successfully"}

    @tool("Delete a file", _refused)
    async def delete_file(self, session_id: str, file_path: str) -> Any:
        """Delete a file of a session."""
        record, inside = await self._place(session_id, file_path)
        await self.parts.files.delete(record.owner, inside, sandbox=record.name, recursive=False)
        return {"path": file_path, "message": "File deleted successfully"}

    @tool("Look at a file", _refused, READ)
    async def get_file_metadata(self, session_id: str, file_path: str) -> Any:
        """Return size, time and type of a session's file."""
        record, inside = await self._place(session_id, file_path)
        found = await self.parts.files.stat(record.owner, inside, sandbox=record.name)
        return {"path": file_path, "metadata": found.model_dump(mode="json", exclude={"sandbox", "path"})}

    async def _place(self, session_id: str, path: str) -> tuple[SandboxRecord, str]:
        return await self.need(session_id), in_workspace(path, _HOME)

    @tool("Draw lines", _refused)
    async def generate_line_chart(
        self,
        *,
        session_id: str,
        data: Rows,
        x_key: str,
        y_keys: list[str],
        title: str = "Line Chart",
        x_label: str | None = None,
        y_label: str | None = None,
        save_path: str | None = None,
    ) -> Any:
        """Draw a line for each of some fields of rows."""
        order = {"data": data, "keys": {"x": x_key, "y": y_keys}, "x_label": x_label, "y_label": y_label}
        return await self._draw(session_id, "line", title, save_path, order)

    @tool("Draw bars", _refused)
    async def generate_bar_chart(
        self,
        *,
        session_id: str,
        data: Rows,
        category_key: str,
        value_keys: list[str],
        title: str = "Bar Chart",
        x_label: str | None = None,
        y_label: str | None = None,
        save_path: str | None = None,
        orientation: Literal["vertical", "horizontal"] = "vertical",
    ) -> Any:
        """Draw bars for some fields of rows, one group for each row."""
        keys = {"x": category_key, "y": value_keys}
        order = {"data": data, "keys": keys, "x_label": x_label, "y_label": y_label, "orientation": orientation}
        return await self._draw(session_id, "bar", title, save_path, order)

    @tool("Draw points", _refused)
    async def generate_scatter_plot(
        self,
        *,
        session_id: str,
        data: Rows,
        x_key: str,
        y_key: str,
        color_key: str | None = None,
        size_key: str | None = None,
        title: str = "Scatter Plot",
        x_label: str | None = None,
        y_label: str | None = None,
        save_path: str | None = None,
    ) -> Any:
        """Draw a point for each row."""
        keys = {"x": x_key, "y": [y_key], "color": color_key, "size": size_key}
        order = {"data": data, "keys": keys, "x_label": x_label, "y_label": y_label}
        return await self._draw(session_id, "scatter", title, save_path, order)

    @tool("Draw a heat map", _refused)
    async def generate_heatmap(
        self,
        *,
        session_id: str,
        data: list[list[float]],
        row_labels: list[str] | None = None,
        col_labels: list[str] | None = None,
        title: str = "Heatmap",
        save_path: str | None = None,
        cmap: str = "viridis",
    ) -> Any:
        """Draw the numbers of a table as colours."""
        order = {"data": data, "row_labels": row_labels, "col_labels": col_labels, "cmap": cmap}
        return await self._draw(session_id, "heatmap", title, save_path, order)

    @tool("Draw a page", _refused)
    async def generate_interactive_chart(
        self,
        *,
        session_id: str,
        chart_type: Literal["line", "bar", "scatter", "area"],
        data: Rows,
        x_key: str,
        y_keys: list[str],
        title: str = "Interactive Chart",
        save_path: str | None = None,
    ) -> Any:
        """Draw a chart as a page of plotly's."""
        order = {"data": data, "keys": {"x": x_key, "y": y_keys}}
        return await self._draw(session_id, f"interactive {chart_type}", title, save_path, order)

    async def _draw(self, session_id: str, kind: str, title: str, save_path: str | None, order: dict[str, Any]) -> Any:
        """Draw a chart in a session and return it."""
        record = await self.need(session_id)
        chart, interactive = kind.rpartition(" ")[2], kind.startswith("interactive ")
        name = f"{chart}_{secrets.token_hex(4)}.{'html' if interactive else 'png'}"
        path = in_workspace(save_path.removeprefix("/tmp/") if save_path else name, WORKSPACE)  # noqa: S108 - theirs
        stdin = json.dumps({**order, "kind": kind, "title": title, "path": path})
        result = (await self.run(record, _CHART_CODE, stdin=stdin)).result
        if result.outcome != Outcome.OK:
            message = f"The chart was not drawn: {result.stderr.strip().rpartition(chr(10))[2] or result.outcome}."
            step = "Correct the data and the names of its fields."
            raise SandpodError(ErrorCode.EXECUTION_FAILED, message, next_step=step)
        data = await self.parts.files.whole(record.owner, path, sandbox=record.name, limit=_MAX_CHART)
        file = f"{WORKSPACE}/{path}"
        fields = {"chart_type": chart, "title": title, "file_path": file, "message": f"The chart is in {file}."}
        if interactive:
            return {**fields, "interactive": True, "html_content": data.decode("utf-8", "replace")}
        image = base64.b64encode(data).decode()
        return as_result({**fields, "base64_image": image}, [Picture("image/png", data)])


def _ran(result: RunResult) -> dict[str, Any]:
    logs = {"stdout": [result.stdout] if result.stdout else [], "stderr": [result.stderr] if result.stderr else []}
    fields: dict[str, Any] = {"logs": logs, "error": None}
    if result.outcome != Outcome.OK:
        fields["error"] = result.stderr.strip() or result.hint or f"The run ended with {result.outcome}."
    if result.result is not None:
        fields["results"] = result.result
    return fields
