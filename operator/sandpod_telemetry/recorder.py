"""Spans by OpenTelemetry's API. Loaded where there are traces, and by `tracing` alone."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final

from opentelemetry import context, trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from sandpod_telemetry.attributes import CODE, ERROR_TYPE, Attributes, Header, Kind
from sandpod_telemetry.export import shut_down
from sandpod_telemetry.traceparent import checked

_KINDS: Final = {"internal": trace.SpanKind.INTERNAL, "client": trace.SpanKind.CLIENT}
_NAMES: Final = frozenset({"traceparent", "tracestate"})
_MAX_HEADER: Final = 512  # characters of a header that is looked at; what W3C asks everybody to pass on
_W3C: Final = TraceContextTextMapPropagator()


@dataclass(slots=True)
class _Quiet:
    kept: bool = False


_quiet: Final[ContextVar[_Quiet | None]] = ContextVar("sandpod_quiet_span", default=None)


class Recorder:
    """Records spans of a provider."""

    def __init__(self, provider: TracerProvider, version: str) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("sandpod", version)

    def close(self) -> None:
        """Send what is left, for a few seconds at most."""
        shut_down(self._provider)

    @contextmanager
    def span(
        self, name: str, attributes: Attributes, kind: Kind, links: Iterable[str], *, quiet: bool
    ) -> Iterator[None]:
        """Record the block; see `tracing.span`."""
        linked = [trace.Link(_context_of(text)) for text in filter(checked, links)]
        begun = self._tracer.start_span(name, kind=_KINDS[kind], attributes=_known(attributes), links=linked)
        waits = _Quiet() if quiet else None
        token, mark = context.attach(trace.set_span_in_context(begun)), _quiet.set(waits)
        try:
            yield
        except BaseException as error:
            _fail(begun, error)
            waits = None
            raise
        finally:
            _quiet.reset(mark)
            context.detach(token)
            if waits is None or waits.kept:
                begun.end()  # one without an end is never sent

    def keep(self) -> None:
        """Count the quiet span; see `tracing.keep`."""
        if (waits := _quiet.get()) is not None:
            waits.kept = True

    def note(self, attributes: Attributes, *, failed: bool = False) -> None:
        """Add to the current span; see `tracing.note`."""
        current = trace.get_current_span()
        if current.is_recording():
            current.set_attributes(_known(attributes))
            if failed:
                current.set_status(trace.Status(trace.StatusCode.ERROR))

    @contextmanager
    def following(self, headers: Iterable[Header]) -> Iterator[None]:
        """Follow a request's headers; see `tracing.following`."""
        texts = ((name.decode("latin-1").lower(), value) for name, value in headers)
        carrier = {name: value[:_MAX_HEADER].decode("latin-1") for name, value in texts if name in _NAMES}
        token = context.attach(_W3C.extract(carrier))
        try:
            yield
        finally:
            context.detach(token)

    def followed(self, headers: list[Header]) -> list[Header]:
        """Name the current span in headers; see `tracing.followed`."""
        carrier: dict[str, str] = {}
        _W3C.inject(carrier)
        if not carrier:
            return headers
        others = [(name, value) for name, value in headers if name.decode("latin-1").lower() not in _NAMES]
        return [*others, *((name.encode(), value.encode()) for name, value in carrier.items())]

    def traceparent(self) -> str | None:
        """Name the current span; see `tracing.traceparent`."""
        carrier: dict[str, str] = {}
        _W3C.inject(carrier)
        return checked(carrier.get("traceparent"))

    def ids(self) -> dict[str, str]:
        """Return the current span's ids; see `tracing.ids`."""
        found = trace.get_current_span().get_span_context()
        if not found.is_valid:
            return {}
        return {"trace_id": trace.format_trace_id(found.trace_id), "span_id": trace.format_span_id(found.span_id)}


def _known(attributes: Attributes) -> dict[str, str | int | float | bool]:
    return {name: value for name, value in attributes.items() if value is not None}


def _fail(failed: trace.Span, error: BaseException) -> None:
    """Say by what code or class a span failed, and no word of the exception's text, which may hold anything."""
    code = getattr(error, "code", None)
    failed.set_attributes({CODE: str(code)} if code is not None else {ERROR_TYPE: type(error).__name__})
    failed.set_status(trace.Status(trace.StatusCode.ERROR))


def _context_of(traceparent: str) -> trace.SpanContext:
    return trace.get_current_span(_W3C.extract({"traceparent": traceparent})).get_span_context()
