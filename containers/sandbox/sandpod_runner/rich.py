"""The forms of a cell's last value: text always, and what else the value can show itself as.

Called by `context_main.py` in the context's process, where everything belongs to the program. It imports none of the
libraries whose values it knows.
"""

import base64
import contextlib
import json
import sys
from collections.abc import Iterator
from typing import Any, Final

from sandpod_runner.protocol import MAX_RESULT, MIME_TYPES

_METHODS: Final = {
    "_repr_html_": "text/html",
    "_repr_png_": "image/png",
    "_repr_svg_": "image/svg+xml",
    "_repr_jpeg_": "image/jpeg",
    "_repr_json_": "application/json",
    "_repr_latex_": "text/latex",
}
_BINARY: Final = ("image/png", "image/jpeg")


def forms(value: Any) -> Iterator[tuple[str, bytes]]:
    """Yield type and bytes of each form, plain text first. What `repr` raises is raised."""
    yield "text/plain", _plain(repr(value))
    if isinstance(value, type):
        return  # what it can do, its instances can
    found = dict(_figure(value))
    found |= {mime: data for mime, data in _bundle(value) if mime not in found}
    found |= {mime: data for mime, data in _methods(value) if mime not in found}
    if "image/png" in found:
        found.pop("image/jpeg", None)
    yield from found.items()


def _plain(text: str) -> bytes:
    data = text.encode("utf-8", "backslashreplace")
    if len(data) <= MAX_RESULT:
        return data
    note = f"... ({len(data)} bytes in all)".encode()
    return data[: MAX_RESULT - len(note)].decode("utf-8", "ignore").encode() + note


def _figure(value: Any) -> Iterator[tuple[str, bytes]]:
    library = sys.modules.get("matplotlib.figure")
    figures = sys.modules.get("sandpod_runner.figures")
    # One that is open comes as a display of this cell.
    if library and figures and isinstance(value, library.Figure) and not figures.is_open(value):
        yield "image/png", figures.draw(value)


def _bundle(value: Any) -> Iterator[tuple[str, bytes]]:
    bundle = _call(value, "_repr_mimebundle_")
    if isinstance(bundle, dict):
        for mime, content in bundle.items():
            if mime in MIME_TYPES and mime != "text/plain":
                yield from _encoded(mime, content)


def _methods(value: Any) -> Iterator[tuple[str, bytes]]:
    for name, mime in _METHODS.items():
        yield from _encoded(mime, _call(value, name))


def _call(value: Any, name: str) -> Any:
    # Of the class: some objects have every attribute that they are asked for.
    method = getattr(type(value), name, None)
    if not callable(method):
        return None
    with contextlib.suppress(Exception):  # a form that can't be had leaves the others
        content = method(value)
        return content[0] if isinstance(content, tuple) and content else content
    return None


def _encoded(mime: str, content: Any) -> Iterator[tuple[str, bytes]]:
    with contextlib.suppress(ValueError, TypeError, RecursionError):
        if content is None:
            return
        if mime == "application/json":
            yield mime, json.dumps(content).encode()
        elif isinstance(content, bytes):
            yield mime, content
        elif isinstance(content, str):
            yield mime, base64.b64decode(content) if mime in _BINARY else content.encode("utf-8", "backslashreplace")
