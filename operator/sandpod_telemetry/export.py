"""OpenTelemetry's SDK: what samples spans, keeps a bounded number of them, and sends those by OTLP over HTTP.

A thread of its own sends. Where that fails or takes long, spans are lost, the oldest first, and no call notices.
"""

import logging
import threading
from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import urlsplit

from opentelemetry import propagate, trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import Event, ReadableSpan, SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from sandpod_telemetry import attributes as names

logger = logging.getLogger(__name__)

QUEUE: Final = 4096
"""Spans that wait: about 8 MB."""
BATCH: Final = 512
END_SECONDS: Final = 5.0  # that the last ones get when the process ends
MAX_STATE: Final = 512  # characters of a client's `tracestate` that goes on
_LIMITS: Final = SpanLimits(
    max_span_attributes=names.MAX_ATTRIBUTES,
    max_events=names.MAX_EVENTS,
    max_links=names.MAX_LINKS,
    max_event_attributes=names.MAX_EVENTS,
    max_attribute_length=names.MAX_TEXT,
)


def provider(*, service: str, version: str, url: str, ratio: float | None) -> TracerProvider:
    """Return the process's provider. Raises ValueError: variables of the environment (OTEL_...) are wrong."""
    made = bare_provider(service, version, ratio)
    exporter = Cleaned(OTLPSpanExporter(endpoint=url), urlsplit(url).hostname or "the collector")
    made.add_span_processor(BatchSpanProcessor(exporter, max_queue_size=QUEUE, max_export_batch_size=BATCH))
    trace.set_tracer_provider(made)
    # No baggage: it is callers' data, and nothing here uses it.
    propagate.set_global_textmap(TraceContextTextMapPropagator())
    return made


def bare_provider(service: str, version: str, ratio: float | None) -> TracerProvider:
    """Return a provider whose spans go nowhere yet. A client's decision that its trace is kept, or not, counts."""
    # It logs each failure to send, some with a traceback, and each value that is cut; `Cleaned` says what matters.
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
    sampler = None if ratio is None else ParentBased(TraceIdRatioBased(ratio))
    # The environment (OTEL_RESOURCE_ATTRIBUTES, OTEL_SERVICE_NAME) comes first.
    resource = Resource.create({"service.name": service, "service.version": version})
    resource = resource.merge(OTELResourceDetector().detect())
    return TracerProvider(sampler=sampler, resource=resource, span_limits=_LIMITS, shutdown_on_exit=False)


def shut_down(made: TracerProvider) -> None:
    """Send what is left. A collector that does not answer holds the process up for a few seconds and no longer."""
    ending = threading.Thread(target=made.shutdown, name="end of traces", daemon=True)
    ending.start()
    ending.join(END_SECONDS)


class Cleaned(SpanExporter):
    """Sends spans without what may be private, and says in the log when that begins to fail, and when it works."""

    def __init__(self, exporter: SpanExporter, place: str) -> None:
        self._exporter = exporter
        self._place = place
        self._lost = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send spans."""
        try:
            result = self._exporter.export([cleaned(span) for span in spans])
        except Exception as error:  # noqa: BLE001 - whatever a collector answers, the thread that sends goes on
            result = SpanExportResult.FAILURE
            logger.debug("sending spans failed: %s", type(error).__name__)
        if result is not SpanExportResult.SUCCESS:
            if not self._lost:
                logger.warning("spans can't be sent to %s, and are lost; is a collector there?", self._place)
            self._lost += len(spans)
        elif self._lost:
            logger.warning("spans are sent to %s again; %d were lost", self._place, self._lost)
            self._lost = 0
        return result

    def shutdown(self) -> None:
        """End it."""
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Wait for nothing: nothing is kept here."""
        return self._exporter.force_flush(timeout_millis)


def cleaned(span: ReadableSpan) -> ReadableSpan:
    """Return a span as it may leave the process: no text of an exception, and no more than `attributes` names."""
    kept = {
        name: value
        for name, value in (span.attributes or {}).items()
        if name in names.CONVENTIONAL or name.startswith(names.OWN)
    }
    if not names.TOOL_NAME.fullmatch(str(kept.get(names.TOOL, "none"))):
        del kept[names.TOOL]
    if (method := kept.get(names.MCP_METHOD)) is not None and not names.METHOD_NAME.fullmatch(str(method)):
        kept[names.MCP_METHOD] = "unknown"
    if (code := kept.get(names.CODE)) is not None:
        kept[names.ERROR_TYPE] = code
    return ReadableSpan(
        name=_name(span.name, kept),
        context=_bounded(span.context),
        parent=_bounded(span.parent),
        resource=span.resource,
        attributes=kept,
        events=[Event(each.name, _type_of(each), each.timestamp) for each in span.events if each.name == "exception"],
        links=span.links,
        kind=span.kind,
        status=trace.Status(span.status.status_code),
        start_time=span.start_time,
        end_time=span.end_time,
        instrumentation_scope=span.instrumentation_scope,
    )


def _name(name: str, kept: Mapping[str, object]) -> str:
    """Return a span's name. FastMCP puts the address of what is read into it, which is a file's path."""
    if (method := kept.get(names.MCP_METHOD)) is not None:
        return f"{method} {kept[names.TOOL]}" if names.TOOL in kept else str(method)
    return name if names.SPAN_NAME.fullmatch(name) else "unnamed"


def _type_of(event: Event) -> dict[str, str]:
    return {"exception.type": str((event.attributes or {}).get("exception.type", ""))[: names.MAX_TEXT]}


def _bounded(context: trace.SpanContext | None) -> trace.SpanContext | None:
    """Return a context without a `tracestate` that is longer than anybody has to pass on."""
    if context is None or len(context.trace_state.to_header()) <= MAX_STATE:
        return context
    return trace.SpanContext(context.trace_id, context.span_id, context.is_remote, context.trace_flags)
