"""The gateway's Prometheus metrics. Every label has a fixed, short list of values: no ids, no callers."""

from collections.abc import Callable, Iterable
from functools import partial
from itertools import product
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.api.run_results import Language, Outcome

# From one frame's round trip to the longest run that a template allows.
_RUN_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 3600)
_CLAIM_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)

OTHER: Final = "other"
"""The label of all languages that templates add: callers' words are no labels, and templates may have many."""

_USED: Final = (
    ("cpu", "cpu_seconds", "Processor time of runs.", 10**6),
    ("memory", "memory_gib_seconds", "Memory limits of sandboxes, times the time that they had them.", 10**6),
    ("wall", "sandbox_seconds", "Time of claimed sandboxes, but for time suspended.", 10**6),
    ("busy", "busy_seconds", "Part of it in which a run was going on.", 10**6),
    ("bytes_in", "bytes_in", "Code, input and files put into sandboxes.", 1),
    ("bytes_out", "bytes_out", "Output and files read from sandboxes.", 1),
    ("uploads", "upload_bytes", "Files put into sandboxes.", 1),
    ("runs", "runs", "Runs that ended.", 1),
    ("calls", "calls", "Calls of tools and reads of resources.", 1),
)
"""What is counted by tenant: its column of usage documents, its metric, and the units of one in the other."""


def language_label(language: str) -> str:
    """Return what a language is called in labels."""
    return language if language in set(Language) else OTHER


class Metrics:
    """All of them, on a registry of their own, so that two servers in one process do not meet."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        counter, gauge = self._counter, partial(Gauge, registry=self.registry)
        histogram = partial(Histogram, registry=self.registry)
        languages = (*Language, OTHER)
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
        self.claims = counter("sandpod_claims", "Claims of sandboxes.", result=("ok", "failed"))
        self.claim_seconds = histogram("sandpod_claim_seconds", "Time of a claim.", buckets=_CLAIM_SECONDS)
        self.active_runs = gauge("sandpod_active_runs", "Runs that are going on.")
        self.open_terminals = gauge("sandpod_open_terminals", "Terminals that somebody is connected to.")
        self.open_streams = gauge("sandpod_open_streams", "Streams to sandboxes.")
        self.stream_seconds = histogram("sandpod_stream_open_seconds", "Time to open a stream.", buckets=_CLAIM_SECONDS)
        self.output_bytes = counter("sandpod_output_bytes", "Bytes that programs wrote.", stream=("stdout", "stderr"))
        self.file_bytes = counter("sandpod_file_bytes", "Bytes of files moved.", direction=("in", "out"))
        self.progress_dropped = counter(
            "sandpod_progress_dropped_bytes", "Output bytes not streamed because a client read slowly."
        )
        self.background_failures = counter(
            "sandpod_background_failures",
            "Failed rounds of work in the background.",
            task=("api_keys", "certificate", "connections", "link_keys", "peers", "sign_in_key", "usage"),
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
        self._used = {
            column: (Counter(f"sandpod_usage_{name}", text, ["tenant"], registry=self.registry), unit)
            for column, name, text, unit in _USED
        }

    def count_use(self, tenant: str, amounts: object) -> None:
        """Count what a tenant's callers used: the attributes of `amounts`, in the units of usage documents."""
        for column, (counter, unit) in self._used.items():
            if amount := getattr(amounts, column):
                counter.labels(tenant).inc(amount / unit)

    def _counter(self, name: str, text: str, **labels: Iterable[str]) -> Counter:
        """Return a counter with all its series: a rate over one that appears late misses its first step."""
        counter = Counter(name, text, list(labels), registry=self.registry)
        for values in product(*labels.values()) if labels else ():
            counter.labels(*values)
        return counter

    def watch_pools(self, read: Callable[[], dict[tuple[str, str], int]]) -> None:
        """Export the number of warm sandboxes, read when it is asked for, so that it is never stale."""

        class Pools(Collector):
            def collect(self) -> list[GaugeMetricFamily]:
                help_text, labels = "Warm sandboxes by tenant and template.", ["tenant", "template"]
                family = GaugeMetricFamily("sandpod_warm_sandboxes", help_text, labels=labels)
                for values, count in read().items():
                    family.add_metric(values, count)
                return [family]

        self.registry.register(Pools())
