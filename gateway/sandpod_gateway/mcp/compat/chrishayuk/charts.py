"""The chart tools of chrishayuk/mcp-code-sandbox."""

import base64
import json
import secrets
from pathlib import Path
from typing import Any, Final, Literal

from sandpod_api.names import WORKSPACE
from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.api.run_results import Language, Outcome
from sandpod_gateway.content import Picture
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.mcp.compat.common import System, as_error, in_workspace, said, tool
from sandpod_gateway.runs.request import RunRequest

_CODE: Final = Path(__file__).with_name("chart_program.py").read_text(encoding="utf-8")
_MAX_CHART: Final = 256 * 1024  # bytes of a chart in an answer, which has it three times

Rows = list[dict[str, Any]]


class Charts(System):
    """Its tools for charts."""

    @tool("Draw lines", as_error)
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

    @tool("Draw bars", as_error)
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

    @tool("Draw points", as_error)
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

    @tool("Draw a heat map", as_error)
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

    @tool("Draw a page", as_error)
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
        result = (await self.run(record, RunRequest(language=Language.PYTHON, code=_CODE, stdin=stdin))).result
        if result.outcome != Outcome.OK:
            raise SandpodError(
                ErrorCode.EXECUTION_FAILED,
                f"The chart was not drawn: {result.stderr.strip().rpartition(chr(10))[2] or result.outcome}.",
                next_step="Correct the data and the names of its fields.",
            )
        data = await self.parts.files.whole(record.owner, path, sandbox=record.name, limit=_MAX_CHART)
        fields = {"chart_type": chart, "title": title, "file_path": f"{WORKSPACE}/{path}"}
        fields["message"] = f"The chart is in {WORKSPACE}/{path}."
        if interactive:
            return {**fields, "interactive": True, "html_content": data.decode("utf-8", "replace")}
        return said({**fields, "base64_image": base64.b64encode(data).decode("ascii")}, [Picture("image/png", data)])
