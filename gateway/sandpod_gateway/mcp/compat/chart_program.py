"""Draws one chart. Run in sandboxes by `charts.py`, as text: the order comes as JSON input, and the file stays there.

What callers say is data here and never code.
"""

import importlib
import json
import os
import sys
from typing import Any

order = json.load(sys.stdin)
data, keys, path = order["data"], order.get("keys", {}), order["path"]
os.makedirs(os.path.dirname(path) or ".", exist_ok=True)  # noqa: PTH103, PTH120 - as inside the runner


def _column(key: str) -> list[Any]:
    return [row.get(key) for row in data]


def _draw_lines(axes: Any) -> None:
    for key in keys["y"]:
        axes.plot(_column(keys["x"]), _column(key), marker="o", label=key)


def _draw_bars(axes: Any) -> None:
    lying = order["orientation"] == "horizontal"
    width = 0.8 / len(keys["y"])
    for number, key in enumerate(keys["y"]):
        at = [place + (number - (len(keys["y"]) - 1) / 2) * width for place in range(len(data))]
        (axes.barh if lying else axes.bar)(at, _column(key), width, label=key)
    labels = [str(value) for value in _column(keys["x"])]
    (axes.set_yticks if lying else axes.set_xticks)(list(range(len(data))), labels)


def _draw_points(axes: Any) -> None:
    colour = _column(keys["color"]) if keys["color"] else None
    if colour and not all(isinstance(value, (int, float)) for value in colour):
        names = sorted(set(map(str, colour)))
        colour = [names.index(str(value)) for value in colour]
    size = _column(keys["size"]) if keys["size"] else None
    axes.scatter(_column(keys["x"]), _column(keys["y"][0]), c=colour, s=size)


def _draw_colours(axes: Any) -> None:
    axes.figure.colorbar(axes.imshow(data, cmap=order["cmap"], aspect="auto"))
    for labels, put in ((order["row_labels"], axes.set_yticks), (order["col_labels"], axes.set_xticks)):
        if labels:
            put(range(len(labels)), labels)


def _draw(axes: Any) -> None:
    kinds = {"line": _draw_lines, "bar": _draw_bars, "scatter": _draw_points, "heatmap": _draw_colours}
    kinds[order["kind"]](axes)
    if len(keys.get("y") or []) > 1:
        axes.legend()
    axes.set_title(order["title"])
    for name, put in (("x_label", axes.set_xlabel), ("y_label", axes.set_ylabel)):
        if order.get(name):
            put(order[name])


def _draw_interactive() -> None:
    graph_objects = importlib.import_module("plotly.graph_objects")  # it takes a second, and no picture needs it
    kind = order["kind"].removeprefix("interactive ")
    styles = {"line": {"mode": "lines+markers"}, "scatter": {"mode": "markers"}, "area": {"fill": "tozeroy"}, "bar": {}}
    draw_one = graph_objects.Bar if kind == "bar" else graph_objects.Scatter
    made = [draw_one(x=_column(keys["x"]), y=_column(key), name=key, **styles[kind]) for key in keys["y"]]
    figure = graph_objects.Figure(made, {"title": {"text": order["title"]}})
    figure.write_html(path, include_plotlyjs="cdn")


if order["kind"].startswith("interactive "):
    _draw_interactive()
else:
    from matplotlib.figure import Figure

    # No figure of pyplot's, which would come back a second time by itself.
    figure = Figure(figsize=(10, 6), layout="constrained")
    _draw(figure.add_subplot())
    figure.savefig(path, format="png")
