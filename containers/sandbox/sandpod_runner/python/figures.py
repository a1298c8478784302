"""Figures and images of libraries: each that a program shows, or leaves open at its end, is sent to the runner once.

`adopt_*` is called when a program imports a library. A figure of matplotlib that was shown is closed, as its window
would be: the next plot begins a new one. One that is shown without waiting comes when it is closed, or at the end.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any, Final

from sandpod_runner.python.display_channel import Channel, saved

_MARK: Final = "_sandpod_shown"
_PYLAB: Final = "matplotlib._pylab_helpers"


def adopt_matplotlib(module: Any) -> None:
    """Make figures come to the runner, with any backend without windows: called with `matplotlib.backend_bases`."""
    manager = module.FigureManagerBase
    destroy = manager.destroy

    def destroy_shown(self: Any) -> None:
        if vars(self).pop(_MARK, False):
            _send(self.canvas.figure)
        destroy(self)

    def show_all(_: Any, *, block: bool | None = None) -> None:
        for each in _managers():
            _mark(each)
        if block is None:
            block = not sys.modules["matplotlib"].is_interactive()
        if block:
            _close_all()

    manager.show = _mark
    manager.destroy = destroy_shown
    # Old ways and new to say how a backend shows all figures.
    manager.pyplot_show = classmethod(show_all)
    module._Backend.show = classmethod(show_all)  # noqa: SLF001 - the base class of all backends, but for its name


def adopt_pil(module: Any) -> None:
    """Make `Image.show` show; called with `PIL.ImageShow` when it has just been imported."""

    class Viewer(module.Viewer):  # type: ignore[misc]  # known at run time only
        def show(self, image: Any, **_: Any) -> bool:
            drawn = image if image.mode in {"1", "L", "LA", "P", "RGB", "RGBA"} else image.convert("RGB")
            Channel.current.show({"image/png": saved(drawn.save, "PNG")})
            return True

    module.register(Viewer, 0)


def adopt_plotly(module: Any) -> None:
    """Make `Figure.show` show; called with `plotly.io._renderers` when it has just been imported."""

    class Renderer(module.ExternalRenderer):  # type: ignore[misc]  # known at run time only
        def render(self, figure: Any) -> None:
            Channel.current.show(plotly_forms(figure))

    module.renderers["sandpod"] = Renderer()
    module.renderers.default = "sandpod"


def plotly_forms(figure: Any) -> dict[str, bytes]:
    """Keep a plotly figure as a page in the workspace, and return the text that names it.

    A picture of it takes a browser, which no sandbox has. The page or its data in an answer would cost a model
    thousands of tokens for two points, and it can't look at either.
    """
    library = import_module("plotly.io")  # which figures themselves do not need
    # The page fetches plotly.js itself, which has several megabytes.
    page = library.to_html(figure, include_plotlyjs="cdn", validate=False).encode(errors="replace")
    path = Channel.current.keep("text/html", page)
    if isinstance(figure, dict):
        types = [trace.get("type", "scatter") for trace in figure.get("data", ())]
    else:
        types = [trace.type for trace in figure.data]  # its dictionary would copy all the data
    kinds = ", ".join(dict.fromkeys(map(str, types))) or "empty"
    where = f"a page in {path}" if path else "it could not be written to the workspace"
    return {"text/plain": f"Plotly figure ({kinds}): {where}".encode(errors="replace")}


def show_open() -> None:
    """Send the figures that are still open, and close them. What can't be drawn is reported on standard error."""
    for manager in _managers():
        try:
            _show(manager)
        except Exception as error:  # noqa: BLE001 - a figure may hold anything
            sys.stderr.write(f"A figure could not be drawn: {type(error).__name__}: {error}\n")


def forget_open() -> None:
    """Close figures without sending them: the drawing of one was interrupted."""
    for manager in _managers():
        vars(manager).pop(_MARK, None)
    _close_all()


def show_one(figure: Any) -> bool:
    """Send a figure now if it is an open one, close it, and return whether it was."""
    manager = _manager(figure)
    if manager is not None:
        _show(manager)
    return manager is not None


def closed_form(value: Any) -> dict[str, bytes]:
    """Return a matplotlib figure as PNG; nothing for one that is open, which comes by itself, and for other values."""
    library = sys.modules.get("matplotlib.figure")
    is_closed = library and isinstance(value, library.Figure) and _manager(value) is None
    return {"image/png": _draw(value)} if is_closed else {}


def _draw(figure: Any) -> bytes:
    return saved(figure.savefig, format="png", bbox_inches="tight")


def _mark(manager: Any) -> None:
    setattr(manager, _MARK, True)


def _show(manager: Any) -> None:
    _mark(manager)
    sys.modules[_PYLAB].Gcf.destroy(manager)


def _close_all() -> None:
    for manager in _managers():
        sys.modules[_PYLAB].Gcf.destroy(manager)


def _managers() -> list[Any]:
    """Return what manages each open figure."""
    pylab = sys.modules.get(_PYLAB)
    return sorted(pylab.Gcf.get_all_fig_managers(), key=lambda manager: manager.num) if pylab else []


def _manager(figure: Any) -> Any:
    return next((each for each in _managers() if each.canvas.figure is figure), None)


def _send(figure: Any) -> None:
    channel = Channel.current
    if not (figure.axes or figure.lines or figure.texts or figure.images or figure.patches):
        return  # an empty figure is what is left when a program asks for one and draws nothing
    if channel.takes_pictures:
        channel.show({"image/png": _draw(figure)})
    else:
        channel.drop()
