"""The gateway's Prometheus metrics. Every label has a fixed, short list of values: no ids, no callers.

Names and units are those of Prometheus' conventions, and of OpenTelemetry's where these have the same measure: MCP's
operations and requests over HTTP. Values that are not known before, such as names of tools, are those of things that
exist, and `_OTHER` stands for the rest.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from itertools import product
from typing import Final, Literal, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.api.run_results import Language, Outcome
from sandpod_gateway.errors import SandpodError

Face = Literal["mcp", "rest", "e2b", "console", "files", "sign_in", "health", "other"]
"""The way in by which a request comes."""

FACES: Final[tuple[Face, ...]] = get_args(Face)
face: ContextVar[Face] = ContextVar("sandpod_face", default="mcp")
"""That of the current request; over stdio there is no other than MCP."""

# From one frame's round trip to the longest run that a template allows.
_RUN_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 3600)
_CLAIM_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
# As OpenTelemetry advises for each.
_MCP_SECONDS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300)
_HTTP_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)

OTHER: Final = "other"
"""The label of all languages that templates add: callers' words are no labels, and templates may have many."""
UNKNOWN: Final = "_OTHER"
"""Stands for all values that are not known, as in OpenTelemetry. No tenant and no tool has that name."""
MAX_TENANTS: Final = 500
"""Tenants that are told apart; the use of others is counted under `_OTHER`."""

_GAINED: Final = ("warm", "cold", "held", "resumed")
_GIB: Final = 2**30

_USED: Final = (
    ("cpu", "cpu_seconds", "Processor time of runs.", 1e-6),
    ("memory", "memory_byte_seconds", "Memory limits of sandboxes, times the time that they had them.", _GIB / 1e6),
    ("wall", "sandbox_seconds", "Time of claimed sandboxes, but for time suspended.", 1e-6),
    ("busy", "busy_seconds", "Part of it in which a run was going on.", 1e-6),
    ("bytes_in", "received_bytes", "Code, input and files put into sandboxes.", 1),
    ("bytes_out", "sent_bytes", "Output and files read from sandboxes.", 1),
    ("uploads", "upload_bytes", "Files put into sandboxes.", 1),
    ("runs", "runs", "Runs that ended.", 1),
    ("calls", "calls", "Calls of tools and reads of resources.", 1),
)
"""What is counted by tenant: its column of usage documents, its metric, and what one of the former is in the latter."""


def language_label(language: str) -> str:
    """Return what a language is called in labels."""
    return language if language in set(Language) else OTHER


class ClaimCount:
    """One claim while it goes on. Whoever makes it says how it was met."""

    how = "held"


class Metrics:
    """All of them, on a registry of their own, so that two servers in one process do not meet."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        counter, gauge = self._counter, partial(Gauge, registry=self.registry)
        histogram = partial(Histogram, registry=self.registry)
        languages = (*Language, OTHER)

        self.mcp_seconds = histogram(
            "mcp_server_operation_duration_seconds",
            "Time of requests and notifications over MCP, by method, tool and error (empty: none).",
            ["mcp_method_name", "gen_ai_tool_name", "error_type"],
            buckets=_MCP_SECONDS,
        )
        self.tool_calls = Counter(
            "sandpod_tool_calls",
            "Calls of tools, whichever way they came in, by error code (ok: none).",
            ["tool", "face", "code"],
            registry=self.registry,
        )
        self.tool_seconds = histogram("sandpod_tool_call_seconds", "Time of these.", ["tool"], buckets=_MCP_SECONDS)
        self.http_seconds = histogram(
            "http_server_request_duration_seconds",
            "Time of requests over HTTP, until the whole answer is sent; no status where the client left first.",
            ["face", "http_request_method", "http_response_status_code"],
            buckets=_HTTP_SECONDS,
        )
        self.http_active = gauge("http_server_active_requests", "Requests over HTTP that are going on.", ["face"])
        for each in FACES:
            self.http_active.labels(each)

        self.runs = counter("sandpod_runs", "Runs that ended, by outcome.", language=languages, outcome=Outcome)
        self.run_seconds = histogram(
            "sandpod_run_seconds", "Time from call to result.", ["language"], buckets=_RUN_SECONDS
        )
        for language in languages:
            self.run_seconds.labels(language)
        self.refusals = counter("sandpod_refusals", "Calls refused, by error code.", code=ErrorCode)
        self.refused_credentials = counter("sandpod_refused_credentials", "Requests without a valid key or token.")
        self.certificate_expiry = gauge(
            "sandpod_certificate_expiry_timestamp_seconds",
            "When the TLS certificate expires; 0 without one.",
        )
        self.claims = counter(
            "sandpod_claims",
            "Claims of sandboxes: met by a warm one, a cold one that was made, the session's own (held), or one that "
            "was resumed; refused, by error code; or cancelled.",
            how=(*_GAINED, "cancelled"),
            code=("",),
        )
        for code in ErrorCode:
            self.claims.labels("refused", code)
        self.claim_seconds = histogram("sandpod_claim_seconds", "Time of a claim.", ["how"], buckets=_CLAIM_SECONDS)
        for how in _GAINED:
            self.claim_seconds.labels(how)
        self.active_runs = gauge("sandpod_active_runs", "Runs that are going on.")
        self.open_terminals = gauge("sandpod_open_terminals", "Terminals that somebody is connected to.")
        self.open_streams = gauge("sandpod_open_streams", "Streams to sandboxes.")
        self.stream_seconds = histogram("sandpod_stream_open_seconds", "Time to open a stream.", buckets=_CLAIM_SECONDS)
        self.streams = counter(
            "sandpod_streams",
            "Streams to sandboxes: opened, resumed (opened anew after one broke), failed to open, or broken (ended by "
            "the other side, as where a sandbox ends).",
            event=("opened", "resumed", "failed", "broken"),
        )
        self.output_bytes = counter("sandpod_output_bytes", "Bytes that programs wrote.", stream=("stdout", "stderr"))
        self.file_bytes = counter("sandpod_file_bytes", "Bytes of files moved.", direction=("in", "out"))
        self.progress_dropped = counter(
            "sandpod_progress_dropped_bytes", "Output bytes not streamed because a client read slowly."
        )
        self.background_failures = counter(
            "sandpod_background_failures",
            "Failed rounds of work in the background.",
            task=("api_keys", "certificate", "connections", "link_keys", "peers", "secrets", "sign_in_key", "usage"),
        )
        self.passed_on = counter(
            "sandpod_passed_on_requests",
            "Requests in sessions of older MCP clients that were passed on to the session's gateway.",
            result=("answered", "unreachable", "lost", "left"),
        )
        self.audit_records = counter(
            "sandpod_audit_records", "Audit records.", sink=("stdout", "file"), result=("written", "lost")
        )

        self.usage_rows_folded = counter(
            "sandpod_usage_rows_folded", "Rows of usage that became part of others for want of room."
        )
        # By tenant alone: users and keys are too many for labels, and `sandpod usage` has them.
        self._tenants: set[str] = set()
        self._used = {
            column: (Counter(f"sandpod_usage_{name}", text, ["tenant"], registry=self.registry), unit)
            for column, name, text, unit in _USED
        }

    def count_use(self, tenant: str, amounts: object) -> None:
        """Count what a tenant's callers used: the attributes of `amounts`, in the units of usage documents."""
        if tenant not in self._tenants:
            if len(self._tenants) < MAX_TENANTS:
                self._tenants.add(tenant)
            else:
                tenant = UNKNOWN
        for column, (counter, unit) in self._used.items():
            if amount := getattr(amounts, column):
                counter.labels(tenant).inc(amount * unit)

    @contextmanager
    def claim(self) -> Iterator[ClaimCount]:
        """Count and time a claim, which says how it was met; one that raises was refused or cancelled."""
        start, count = time.perf_counter(), ClaimCount()
        try:
            yield count
        except asyncio.CancelledError:
            self.claims.labels("cancelled", "").inc()
            raise
        except Exception as error:
            code = error.code if isinstance(error, SandpodError) else ErrorCode.BACKEND_ERROR
            self.claims.labels("refused", code).inc()
            raise
        self.claims.labels(count.how, "").inc()
        self.claim_seconds.labels(count.how).observe(time.perf_counter() - start)

    def _counter(self, name: str, text: str, **labels: Iterable[str]) -> Counter:
        """Return a counter with all its series: a rate over one that appears late misses its first step."""
        counter = Counter(name, text, list(labels), registry=self.registry)
        for values in product(*labels.values()) if labels else ():
            counter.labels(*values)
        return counter

    def watch_pools(self, read: Callable[[], dict[tuple[str, str], int]]) -> None:
        """Export the number of warm sandboxes, read when it is asked for, so that it is never stale."""
        self.registry.register(WarmSandboxes(read))


class WarmSandboxes(Collector):
    """The number of warm sandboxes, with what describes the metric."""

    name: Final = "sandpod_warm_sandboxes"
    labels: Final = ("tenant", "template")

    def __init__(self, read: Callable[[], dict[tuple[str, str], int]]) -> None:
        self._read = read

    def collect(self) -> list[GaugeMetricFamily]:
        """Return what there is now."""
        family = GaugeMetricFamily(self.name, "Warm sandboxes by tenant and template.", labels=self.labels)
        for values, count in self._read().items():
            family.add_metric(values, count)
        return [family]
