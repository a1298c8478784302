"""Spans of this process, kept as they would be sent; and a collector, which takes those of others by OTLP."""

import asyncio
import gzip
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

import mcp.shared._otel
import pytest
from opentelemetry import context, trace
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from sandpod_telemetry import tracing
from sandpod_telemetry.export import Cleaned, bare_provider
from sandpod_telemetry.recorder import Recorder

TRACE: Final = "0af7651916cd43dd8448eb211c80319c"
CLIENT: Final = "b7ad6b7169203331"
TRACEPARENT: Final = f"00-{TRACE}-{CLIENT}-01"


@dataclass(frozen=True, kw_only=True)
class Seen:
    """A span as it was sent."""

    name: str
    trace: str
    id: str
    parent: str | None
    kind: str
    failed: bool
    attributes: dict[str, Any]
    links: tuple[str, ...] = ()
    text: str = ""  # all of it
    service: str = ""

    def of(self, *names: str) -> tuple[Any, ...]:
        return tuple(self.attributes.get(name) for name in names)


class Spans:
    """Those that were seen, each found by its name."""

    def __init__(self, look: Callable[[], list[Seen]]) -> None:
        self.all = look

    def named(self, name: str) -> list[Seen]:
        """Return those of a name; a client's of FastMCP has that of the server's, and is none of them."""
        return [each for each in self.all() if each.name == name and (each.kind != "CLIENT" or "/" not in name)]

    def one(self, name: str, parent: str | None = None) -> Seen:
        found = [each for each in self.named(name) if parent in {None, each.parent}]
        assert len(found) == 1, f"{len(found)} spans {name} among {[(each.name, each.parent) for each in self.all()]}"
        return found[0]

    def path(self, name: str) -> list[str]:
        """Return the names from a span up to its trace's first one that is known, and the id of that one's parent."""
        known = {each.id: each for each in self.all()}
        found, names = self.one(name), []
        while True:
            names.append(found.name)
            if found.parent not in known:
                return [*names, str(found.parent)]
            found = known[found.parent]


def _seen(span: ReadableSpan) -> Seen:
    assert span.context is not None
    return Seen(
        name=span.name,
        trace=trace.format_trace_id(span.context.trace_id),
        id=trace.format_span_id(span.context.span_id),
        parent=None if span.parent is None else trace.format_span_id(span.parent.span_id),
        kind=span.kind.name,
        failed=span.status.status_code is trace.StatusCode.ERROR,
        attributes=dict(span.attributes or {}),
        links=tuple(trace.format_span_id(link.context.span_id) for link in span.links),
        text=span.to_json(),
    )


@contextmanager
def recording() -> Iterator[Spans]:
    """Keep the spans of this process meanwhile, those of FastMCP and Starlette among them."""
    kept, provider = InMemorySpanExporter(), bare_provider("test", "1", None)
    provider.add_span_processor(SimpleSpanProcessor(Cleaned(kept, "nowhere")))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trace, "_TRACER_PROVIDER", provider)
        # It keeps the first tracer that it gets.
        patch.setattr(mcp.shared._otel._tracer, "_real_tracer", None)
        undo = tracing.install(Recorder(provider, "1"))
        try:
            yield Spans(lambda: [_seen(span) for span in kept.get_finished_spans()])
        finally:
            undo()


@contextmanager
def as_client() -> Iterator[None]:
    """Be in a span of the client's own: FastMCP's client names it in what it sends."""
    own = trace.SpanContext(int(TRACE, 16), int(CLIENT, 16), is_remote=False, trace_flags=trace.TraceFlags(1))
    token = context.attach(trace.set_span_in_context(trace.NonRecordingSpan(own)))
    try:
        yield
    finally:
        context.detach(token)


@dataclass
class Collector:
    """Takes OTLP over HTTP, and decodes it by the protocol's own classes."""

    address: str = ""
    status: int = 200
    asked: int = 0
    seen: list[Seen] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    gate: threading.Event = field(default_factory=threading.Event)  # answers wait until it is set

    async def until(self, *names: str) -> Spans:
        """Return the spans that have come once those are among them; they come in the order in which they ended."""
        async with asyncio.timeout(60):
            while not set(names) <= {each.name for each in self.seen}:  # noqa: ASYNC110 - a thread sees them
                await asyncio.sleep(0.02)
        seen = list(self.seen)
        return Spans(lambda: seen)


def _sent(body: ExportTraceServiceRequest) -> list[Seen]:
    return [
        Seen(
            name=span.name,
            trace=span.trace_id.hex(),
            id=span.span_id.hex(),
            parent=span.parent_span_id.hex() or None,
            kind=Span.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_"),
            failed=span.status.code == Status.STATUS_CODE_ERROR,
            attributes={each.key: _value(each.value) for each in span.attributes},
            links=tuple(link.span_id.hex() for link in span.links),
            text=str(span),
            service=next(a.value.string_value for a in of.resource.attributes if a.key == "service.name"),
        )
        for of in body.resource_spans
        for scope in of.scope_spans
        for span in scope.spans
    ]


def _value(value: Any) -> Any:
    return getattr(value, value.WhichOneof("value"))


@contextmanager
def collector() -> Iterator[Collector]:
    """Serve a collector until the block is left."""
    made = Collector()
    made.gate.set()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            data = self.rfile.read(int(self.headers["Content-Length"]))
            made.asked += 1
            made.gate.wait()
            if self.headers.get("Content-Encoding") == "gzip":
                data = gzip.decompress(data)
            assert self.path == "/v1/traces"
            assert self.headers["Content-Type"] == "application/x-protobuf"
            if made.status == 200:
                made.headers.append({name.lower(): value for name, value in self.headers.items()})
                made.seen += _sent(ExportTraceServiceRequest.FromString(data))
            self.send_response(made.status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        made.address = f"http://127.0.0.1:{server.server_port}"
        try:
            yield made
        finally:
            made.gate.set()
            server.shutdown()
            thread.join()
