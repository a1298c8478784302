"""The forms in which a value can show itself, and `display`. None of the libraries that it knows is imported here."""

from __future__ import annotations

import base64
import contextlib
import functools
import json
import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any, Final

from sandpod_runner.protocol.messages import MAX_RESULT, MIME_TYPES
from sandpod_runner.python import figures
from sandpod_runner.python.display_channel import PICTURES, Channel

_METHODS: Final = {f"_repr_{re.split('[/+]', mime)[1]}_": mime for mime in MIME_TYPES if mime != "text/plain"}
"""The method for each form, as `_repr_svg_` for `image/svg+xml`."""
_INSTEAD_OF_TEXT: Final = (*PICTURES, "image/svg+xml", "application/json")

_SAYS_NOTHING: Final = re.compile(rb"<[\w.]+ object( at 0x[0-9a-f]+)?>")


def display(*values: Any, raw: bool = False, **_: Any) -> None:
    """Show values to whoever runs the program; with `raw` they are dictionaries of forms by type."""
    channel = Channel.current
    for value in values:
        channel.show(bundle(value) if raw else shown(value))


def adopt_ipython(module: Any) -> None:
    """Make IPython's `display` show without a shell; called with `IPython.core.display_functions` at its import."""
    original, publish = module.display, module.publish_display_data

    @functools.wraps(original)
    def show(*objs: Any, **options: Any) -> Any:
        return original(*objs, **options) if _has_shell() else display(*objs, **options)

    @functools.wraps(publish)
    def show_forms(data: Any, *args: Any, **options: Any) -> Any:
        return publish(data, *args, **options) if _has_shell() else display(data, raw=True)

    module.display, module.publish_display_data = show, show_forms
    # What was shown has been sent, and there is no terminal to clear.
    module.clear_output = lambda wait=False: None  # noqa: ARG005 - as it is called


def shown(value: Any, registered: Mapping[str, Any] | None = None) -> dict[str, bytes]:
    """Return the forms in which a value is displayed: text only where there is no picture or data in place of it."""
    if figures.show_one(value):
        return {}  # an open figure, which was sent now and does not come again at the end
    found = dict(forms(value, registered))
    says_nothing = len(found) > 1 and _SAYS_NOTHING.fullmatch(found["text/plain"])
    if says_nothing or any(mime in found for mime in _INSTEAD_OF_TEXT):
        del found["text/plain"]
    return found


def bundle(content: Any) -> dict[str, bytes]:
    """Return what is of use in a dictionary of forms by type."""
    items = content.items() if isinstance(content, dict) else ()
    found = {mime: _encoded(mime, each) for mime, each in items if mime in MIME_TYPES}
    return {mime: data for mime, data in found.items() if data is not None}


def forms(value: Any, registered: Mapping[str, Any] | None = None) -> Iterator[tuple[str, bytes]]:
    """Yield type and bytes of each form, plain text first. What `repr` raises is raised."""
    plotly = sys.modules.get("plotly.basedatatypes")
    if plotly and isinstance(value, plotly.BaseFigure):
        yield from figures.plotly_forms(value).items()
        return
    yield "text/plain", _plain(repr(value))
    if isinstance(value, type):
        return  # what it can do, its instances can
    found = figures.closed_form(value) or bundle(registered)
    for mime, data in bundle(_call(value, "_repr_mimebundle_")).items():
        found.setdefault(mime, data)
    found |= bundle({mime: _call(value, name) for name, mime in _METHODS.items() if mime not in found})
    if "image/png" in found:
        found.pop("image/jpeg", None)
    found.pop("text/plain", None)
    yield from found.items()


def _plain(text: str) -> bytes:
    data = text.encode("utf-8", "backslashreplace")
    if len(data) <= MAX_RESULT:
        return data
    note = f"... ({len(data)} bytes in all)".encode()
    return data[: MAX_RESULT - len(note)].decode("utf-8", "ignore").encode() + note


def _call(value: Any, name: str) -> Any:
    with contextlib.suppress(Exception):  # a form that can't be had leaves the others
        # Of the class: some objects have every attribute that they are asked for.
        method = getattr(type(value), name, None)
        content = method(value) if callable(method) else None
        return content[0] if isinstance(content, tuple) and content else content
    return None


def _encoded(mime: str, content: Any) -> bytes | None:
    with contextlib.suppress(ValueError, TypeError, RecursionError):
        if content is None or isinstance(content, bytes):
            return content
        if mime == "application/json":
            return json.dumps(content, allow_nan=False).encode()
        if isinstance(content, str):
            return base64.b64decode(content) if mime in PICTURES else content.encode("utf-8", "backslashreplace")
    return None


def _has_shell() -> bool:
    module = sys.modules.get("IPython.core.interactiveshell")
    return module is not None and module.InteractiveShell.initialized()
