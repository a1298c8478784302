"""What becomes of spans between their end and the collector: what is left out, what is lost, and who notices."""

import logging
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import trace as api
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanContext, SpanKind, TraceFlags, TraceState

from sandpod_gateway.cli import serve
from sandpod_gateway.errors import StartError
from sandpod_gateway.settings import TraceSettings
from sandpod_telemetry import tracing
from sandpod_telemetry.attributes import MAX_TEXT
from sandpod_telemetry.export import MAX_STATE, Cleaned, bare_provider, cleaned, shut_down
from sandpod_telemetry.traceparent import checked
from support.traces import TRACEPARENT, Collector, Spans, collector, recording

SECRET = "hunter2"


@pytest.fixture
def spans() -> Iterator[Spans]:
    with recording() as seen:
        yield seen


class BrokenError(Exception):
    code = "broken"


def test_a_span_says_by_what_it_failed_and_no_word_of_the_exception(spans: Spans) -> None:
    with pytest.raises(BrokenError), tracing.span("coded"):
        raise BrokenError(SECRET)
    with pytest.raises(ValueError, match=SECRET), tracing.span("plain", {"sandpod.name": "x" * 1000, "left.out": 1}):
        raise ValueError(SECRET)
    with tracing.span("good"):
        tracing.note({"sandpod.name": None})
    coded, plain, good = spans.one("coded"), spans.one("plain"), spans.one("good")
    assert (coded.failed, plain.failed, good.failed) == (True, True, False)
    assert coded.attributes == {"error.type": "broken", "sandpod.error.code": "broken"}
    assert plain.attributes == {"error.type": "ValueError", "sandpod.name": "x" * MAX_TEXT}
    assert good.attributes == {}
    assert not any(SECRET in each.text for each in spans.all())


def test_a_quiet_span_counts_only_if_it_is_kept_or_fails(spans: Spans) -> None:
    with tracing.span("nothing", quiet=True), tracing.span("inside"):
        pass
    with tracing.span("kept", quiet=True):
        tracing.keep()
    with tracing.span("failed", quiet=True):
        tracing.fail("why")
    with pytest.raises(BrokenError), tracing.span("raised", quiet=True):
        raise BrokenError
    assert [each.name for each in spans.all()] == ["inside", "kept", "failed", "raised"]


@pytest.mark.promise("traces-private")
def test_spans_of_other_libraries_lose_all_that_may_be_private() -> None:
    provider = bare_provider("test", "1", None)
    state = TraceState([(f"k{n}", "v" * 200) for n in range(MAX_STATE // 200 + 1)])
    parent = SpanContext(1, 2, is_remote=True, trace_flags=TraceFlags(1), trace_state=state)
    span = provider.get_tracer("fastmcp").start_span(
        f"resources/read sandpod://{SECRET}",
        context=api.set_span_in_context(api.NonRecordingSpan(parent)),
        kind=SpanKind.SERVER,
        attributes={
            "mcp.method.name": "resources/read",
            "mcp.resource.uri": f"sandpod://{SECRET}",
            "fastmcp.component.key": SECRET,
            "mcp.session.id": SECRET,
            "url.query": f"token={SECRET}",
            "url.path": f"/files/{SECRET}",
            "gen_ai.tool.name": f"not a name: {SECRET}",
        },
    )
    span.record_exception(ValueError(SECRET))
    span.add_event(SECRET, {SECRET: SECRET})
    span.set_status(api.Status(api.StatusCode.ERROR, SECRET))
    span.end()
    sent = cleaned(span)  # type: ignore[arg-type]
    assert SECRET not in sent.to_json()
    assert sent.name == "resources/read"
    assert dict(sent.attributes or {}) == {"mcp.method.name": "resources/read"}
    assert [dict(each.attributes or {}) for each in sent.events] == [{"exception.type": "ValueError"}]
    assert sent.context is not None
    assert sent.context.trace_state.to_header() == ""


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "x",
        TRACEPARENT[:-1] + "0",
        TRACEPARENT + "\n",
        TRACEPARENT.upper(),
        "01" + TRACEPARENT[2:],
        "0" * 10**6,
        f"00-{'0' * 32}-b7ad6b7169203331-01",
        f"00-{'a' * 32}-{'0' * 16}-01",
    ],
)
def test_what_names_no_span_that_was_sent_is_no_link(spans: Spans, text: str | None) -> None:
    assert checked(text) is None
    with tracing.span("linked", links=(text or "",)):
        pass
    assert spans.one("linked").links == ()


def test_without_traces_nothing_is_done() -> None:
    assert not tracing.on()
    assert tracing.span("a") is tracing.span("b", {"sandpod.name": "c"})
    assert tracing.traceparent() is None
    assert tracing.ids() == {}
    headers = [(b"traceparent", TRACEPARENT.encode())]
    assert tracing.followed(headers) is headers
    with tracing.following(headers):
        assert not tracing.in_trace()


def _sending(to: Collector, **options: Any) -> TracerProvider:
    provider = bare_provider("test", "1", None)
    exporter = Cleaned(OTLPSpanExporter(endpoint=f"{to.address}/v1/traces", timeout=0.2), "collector")
    provider.add_span_processor(BatchSpanProcessor(exporter, **options))
    return provider


@pytest.mark.promise("traces-harmless")
def test_a_collector_that_hangs_holds_up_nobody_and_the_queue_stays_bounded() -> None:
    with collector() as hanging:
        hanging.gate.clear()
        provider = _sending(hanging, max_queue_size=8, max_export_batch_size=2, schedule_delay_millis=1)
        tracer = provider.get_tracer("test")
        for number in range(1000):
            tracer.start_span(f"span {number}").end()
        processor = provider._active_span_processor._span_processors[0]
        assert isinstance(processor, BatchSpanProcessor)
        assert len(processor._batch_processor._queue) <= 8
        ending = threading.Thread(target=shut_down, args=(provider,))
        ending.start()
        hanging.gate.set()
        ending.join()
    kept = {each.name for each in hanging.seen}
    assert len(kept) < 100


def test_the_log_says_once_that_spans_are_lost_and_once_that_they_are_not(caplog: pytest.LogCaptureFixture) -> None:
    with collector() as here, caplog.at_level(logging.WARNING):
        provider = _sending(here, schedule_delay_millis=10**6)
        tracer = provider.get_tracer("test")
        here.status = 400
        for _ in range(3):
            tracer.start_span("lost").end()
            provider.force_flush()
        here.status = 200
        tracer.start_span("sent").end()
        provider.force_flush()
        shut_down(provider)
    assert [each.name for each in here.seen] == ["sent"]
    texts = [each.getMessage() for each in caplog.records]
    assert texts == [
        "spans can't be sent to collector, and are lost; is a collector there?",
        "spans are sent to collector again; 3 were lost",
    ]


def test_the_share_of_traces_is_a_setting_and_the_resource_is_the_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=prod,service.version=9")
    none = bare_provider("sandpod-gateway", "1", 0.0)
    assert not none.get_tracer("test").start_span("left out").is_recording()
    assert bare_provider("x", "1", 1.0).get_tracer("test").start_span("sent").is_recording()
    found = none.resource.attributes
    assert found["service.name"] == "sandpod-gateway"
    assert found["service.version"] == "9"
    assert found["deployment.environment.name"] == "prod"


def test_traces_that_are_asked_for_and_can_not_be_are_refused_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "sandpod_telemetry.export", None)
    step = "Traces need more packages: pip install 'sandpod[traces]'."
    with pytest.raises(StartError) as refused, serve._traces(TraceSettings(endpoint="http://c")):
        raise AssertionError
    assert (refused.value.code, refused.value.message) == ("invalid_argument", step)
    # What the environment of a desktop asks of all programs stops none.
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c")
    with serve._traces(TraceSettings()):
        assert not tracing.on()
    assert step in caplog.text


def test_wrong_variables_are_refused_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "0")
    with pytest.raises(StartError) as refused, serve._traces(TraceSettings(endpoint="http://c")):
        raise AssertionError
    assert "OTEL_" in refused.value.message
    assert not tracing.on()
