"""Spans of what this process does. Until `start` was called nothing here does anything, nor loads anything.

OpenTelemetry has one tracer provider for a process, which FastMCP's spans go to as well, so what is here is the
process's too, and handed to nobody.
"""

import importlib.metadata
import logging
import os
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Final

from sandpod_telemetry.attributes import CODE, Attributes, Header, Kind
from sandpod_telemetry.endpoint import traces_url

if TYPE_CHECKING:
    from sandpod_telemetry.recorder import Recorder

logger = logging.getLogger(__name__)

_NOTHING: Final[AbstractContextManager[None]] = nullcontext()
_NONE: Final[Attributes] = {}
_recorder: "Recorder | None" = None


class TracesUnavailableError(Exception):
    """There can be no traces: what sends them is not installed, or its settings are wrong. Says what to do."""


def start(*, service: str, endpoint: str | None, ratio: float | None) -> None:
    """Record spans from now on and send them, if there is an endpoint, or the environment names one; see `endpoint`.

    `ratio` is the share of traces that are sent of those that begin here; None for what the environment says, or all.
    Raises TracesUnavailableError, where it was asked for by the endpoint.
    """
    if (url := traces_url(endpoint, os.environ)) is None:
        return
    try:
        _start(service, url, ratio)
    except TracesUnavailableError as error:
        if endpoint is not None:
            raise
        logger.warning("there are no traces, though the environment asks for them: %s", error)


def _start(service: str, url: str, ratio: float | None) -> None:
    global _recorder  # noqa: PLW0603 - see the module's docstring
    try:
        from sandpod_telemetry.export import provider  # noqa: PLC0415 - see the package's docstring
        from sandpod_telemetry.recorder import Recorder  # noqa: PLC0415
    except ImportError as error:
        raise TracesUnavailableError("Traces need more packages: pip install 'sandpod[traces]'.") from error
    version = importlib.metadata.version("sandpod")
    try:
        made = provider(service=service, version=version, url=url, ratio=ratio)
    except ValueError as error:
        raise TracesUnavailableError(f"The environment's settings of traces (OTEL_...) are wrong: {error}.") from error
    _recorder = Recorder(made, version)


def stop() -> None:
    """Send what is left, for a few seconds at most."""
    global _recorder
    recorder, _recorder = _recorder, None
    if recorder is not None:
        recorder.close()


def on() -> bool:
    """Return whether spans are recorded."""
    return _recorder is not None


def span(
    name: str,
    attributes: Attributes = _NONE,
    *,
    kind: Kind = "internal",
    links: Iterable[str] = (),
    quiet: bool = False,
) -> AbstractContextManager[None]:
    """Record what the block does. An exception marks the span as failed, by its code where it has one.

    `links` are values of `traceparent` that it has to do with. One that is `quiet` counts only if `keep` or `fail` is
    called in it.
    """
    if _recorder is None:
        return _NOTHING
    return _recorder.span(name, attributes, kind, links, quiet=quiet)


def keep() -> None:
    """Count the quiet span that is going on."""
    if _recorder is not None:
        _recorder.keep()


def note(attributes: Attributes) -> None:
    """Add to the span that is going on, whoever began it."""
    if _recorder is not None:
        _recorder.note(attributes)


def fail(code: str) -> None:
    """Mark the span that is going on as failed, by a code."""
    if _recorder is not None:
        _recorder.keep()
        _recorder.note({CODE: code}, failed=True)


def following(headers: Iterable[Header]) -> AbstractContextManager[None]:
    """Let spans of the block be part of the trace that a request's headers name, if they name one."""
    return _NOTHING if _recorder is None else _recorder.following(headers)


def followed(headers: list[Header]) -> list[Header]:
    """Return the headers of a request that is sent on, naming the span that is going on instead of what they named."""
    return headers if _recorder is None else _recorder.followed(headers)


def in_trace() -> bool:
    """Return whether what goes on now is part of a trace."""
    return _recorder is not None and bool(_recorder.ids())


def traceparent() -> str | None:
    """Return the span that is going on, as W3C's header of that name; None for one that is not sent."""
    return None if _recorder is None else _recorder.traceparent()


def ids() -> dict[str, str]:
    """Return the ids of the span that is going on, as log lines have them."""
    return {} if _recorder is None else _recorder.ids()


def install(recorder: "Recorder | None") -> Callable[[], None]:
    """Record by another recorder; return what undoes that. For tests, whose spans are sent nowhere."""
    global _recorder
    before, _recorder = _recorder, recorder

    def undo() -> None:
        global _recorder  # noqa: PLW0603 - as above
        _recorder = before

    return undo
