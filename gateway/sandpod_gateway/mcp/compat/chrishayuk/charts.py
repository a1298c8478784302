"""The chart tools of chrishayuk/mcp-code-sandbox."""

import base64
import json
import secrets
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final, Literal

from fastmcp import FastMCP

from sandpod_api.names import WORKSPACE
from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.api.run_results import Language, Outcome
from sandpod_gateway.auth.api_keys import current_owner
from sandpod_gateway.content import Picture
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.mcp.compat.common import CHANGE, Sessions, in_workspace, sentence, speaking, spoken
from sandpod_gateway.mcp.services import Parts
from sandpod_gateway.runs.request import RunRequest

_PROGRAM: Final = Path(__file__).with_name("chart_program.py")
_MAX_CHART: Final = 256 * 1024
"""Bytes of a chart in an answer, which has it three times."""
_BLANK: Final = {
    "orientation": "",
    "cmap": "",
    "x_label": None,
    "y_label": None,
    "row_labels": None,
    "col_labels": None,
}

Rows = list[dict[str, Any]]
Draw = Callable[..., Awaitable[Any]]


def _refused(error: SandpodError) -> dict[str, Any]:
    return {"error": sentence(error)}


class _Charts:
    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._sessions = Sessions(parts.sandboxes)
        self._code = _PROGRAM.read_text(encoding="utf-8")

    async def draw(self, session_id: str, kind: str, title: str, save_path: str | None, **order: Any) -> Any:
        """Draw a chart in a session and return it."""
        owner = current_owner()
        record = await self._sessions.need(owner, session_id)
        interactive = kind.startswith("interactive ")
        name = f"{kind.rpartition(' ')[2]}_{secrets.token_hex(4)}.{'html' if interactive else 'png'}"
        path = in_workspace(save_path.removeprefix("/tmp/") if save_path else name, WORKSPACE)  # noqa: S108 - theirs
        job = {**_BLANK, "keys": {}, **order, "kind": kind, "title": title, "path": path}
        request = RunRequest(language=Language.PYTHON, code=self._code, stdin=json.dumps(job))
        result = (await self._parts.runs.run(owner, request, sandbox=record.name)).result
        if result.outcome != Outcome.OK:
            raise SandpodError(
                ErrorCode.EXECUTION_FAILED,
                f"The chart was not drawn: {result.stderr.strip().rpartition(chr(10))[2] or result.outcome}.",
                next_step="Correct the data and the names of its fields.",
            )
        data = await self._parts.files.whole(owner, path, sandbox=record.name, limit=_MAX_CHART)
        told = {"chart_type": kind.rpartition(" ")[2], "title": title, "file_path": f"{WORKSPACE}/{path}"}
        told["message"] = f"The chart is in {WORKSPACE}/{path}."
        if interactive:
            return {**told, "interactive": True, "html_content": data.decode("utf-8", "replace")}
        return spoken({**told, "base64_image": base64.b64encode(data).decode("ascii")}, [Picture("image/png", data)])


def register(mcp: FastMCP[None], parts: Parts) -> None:
    """Add the tools to a server."""
    charts = _Charts(parts)
    _register_xy(mcp, parts, charts.draw)
    _register_others(mcp, parts, charts.draw)


def _register_xy(mcp: FastMCP[None], parts: Parts, draw: Draw) -> None:
    speak = speaking(parts.metrics, _refused)

    @mcp.tool(annotations={"title": "Draw lines", **CHANGE}, output_schema=None)
    @speak
    async def generate_line_chart(
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
        labels = {"x_label": x_label, "y_label": y_label}
        return await draw(session_id, "line", title, save_path, data=data, keys={"x": x_key, "y": y_keys}, **labels)

    @mcp.tool(annotations={"title": "Draw bars", **CHANGE}, output_schema=None)
    @speak
    async def generate_bar_chart(
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
        more = {"x_label": x_label, "y_label": y_label, "orientation": orientation}
        keys = {"x": category_key, "y": value_keys}
        return await draw(session_id, "bar", title, save_path, data=data, keys=keys, **more)

    @mcp.tool(annotations={"title": "Draw points", **CHANGE}, output_schema=None)
    @speak
    async def generate_scatter_plot(
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
        labels = {"x_label": x_label, "y_label": y_label}
        return await draw(session_id, "scatter", title, save_path, data=data, keys=keys, **labels)


def _register_others(mcp: FastMCP[None], parts: Parts, draw: Draw) -> None:
    speak = speaking(parts.metrics, _refused)

    @mcp.tool(annotations={"title": "Draw a heat map", **CHANGE}, output_schema=None)
    @speak
    async def generate_heatmap(
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
        more = {"row_labels": row_labels, "col_labels": col_labels, "cmap": cmap}
        return await draw(session_id, "heatmap", title, save_path, data=data, **more)

    @mcp.tool(annotations={"title": "Draw a page", **CHANGE}, output_schema=None)
    @speak
    async def generate_interactive_chart(
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
        keys = {"x": x_key, "y": y_keys}
        return await draw(session_id, f"interactive {chart_type}", title, save_path, data=data, keys=keys)
