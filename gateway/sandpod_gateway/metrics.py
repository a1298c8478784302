"""The gateway's Prometheus metrics. Every label has a fixed, short list of values: no ids, no callers.

Called by `runs.py`, `sandboxes.py` and the `/metrics` route.
"""

from collections.abc import Callable
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.api.run_results import Language, Outcome

# From one frame's round trip to the longest run that a template allows.
_RUN_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 3600)
_CLAIM_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)


class _WarmCollector(Collector):
    """Reads the pools' depth when it is asked, so that the gauge is never stale."""

    def __init__(self, read: Callable[[], dict[str, int]]) -> None:
        self._read = read

    def collect(self) -> list[GaugeMetricFamily]:
        family = GaugeMetricFamily("sandpod_warm_sandboxes", "Warm sandboxes by template.", labels=["template"])
        for template, count in self._read().items():
            family.add_metric([template], count)
        return [family]


OTHER: Final = "other"
"""The label of all languages that templates add: callers' words are no labels, and templates may have many."""


def language_label(language: str) -> str:
    """Return what a language is called in labels."""
    return language if language in set(Language) else OTHER


class Metrics:
    """All of them, on a registry of their own, so that two servers in one process do not meet."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.runs = Counter(
            "sandpod_runs", "Runs that ended, by outcome.", ["language", "outcome"], registry=self.registry
        )
        self.run_seconds = Histogram(
            "sandpod_run_seconds",
            "Time from call to result.",
            ["language"],
            buckets=_RUN_SECONDS,
            registry=self.registry,
        )
        self.refusals = Counter("sandpod_refusals", "Calls refused, by error code.", ["code"], registry=self.registry)
        self.claims = Counter("sandpod_claims", "Claims of sandboxes.", ["result"], registry=self.registry)
        self.claim_seconds = Histogram(
            "sandpod_claim_seconds", "Time of a claim.", buckets=_CLAIM_SECONDS, registry=self.registry
        )
        self.active_runs = Gauge("sandpod_active_runs", "Runs that are going on.", registry=self.registry)
        self.open_streams = Gauge("sandpod_open_streams", "Streams to sandboxes.", registry=self.registry)
        self.stream_seconds = Histogram(
            "sandpod_stream_open_seconds", "Time to open a stream.", buckets=_CLAIM_SECONDS, registry=self.registry
        )
        self.output_bytes = Counter(
            "sandpod_output_bytes", "Bytes that programs wrote.", ["stream"], registry=self.registry
        )
        self.file_bytes = Counter("sandpod_file_bytes", "Bytes of files moved.", ["direction"], registry=self.registry)
        self.progress_dropped = Counter(
            "sandpod_progress_dropped_bytes",
            "Output bytes not streamed because a client read slowly.",
            registry=self.registry,
        )
        self.background_failures = Counter(
            "sandpod_background_failures",
            "Failed rounds of reading the API keys and the keys of links.",
            ["task"],
            registry=self.registry,
        )
        self._make_all_series()

    def _make_all_series(self) -> None:
        """Let every series exist from the start: a rate over a counter that appears late misses its first step."""
        for language in (*Language, OTHER):
            self.run_seconds.labels(language)
            for outcome in Outcome:
                self.runs.labels(language, outcome)
        for code in ErrorCode:
            self.refusals.labels(code)
        for task in ("api_keys", "link_keys"):
            self.background_failures.labels(task)
        for result in ("ok", "failed"):
            self.claims.labels(result)
        for stream in ("stdout", "stderr"):
            self.output_bytes.labels(stream)
        for direction in ("in", "out"):
            self.file_bytes.labels(direction)

    def watch_pools(self, read: Callable[[], dict[str, int]]) -> None:
        """Export the number of warm sandboxes by template, read when asked."""
        self.registry.register(_WarmCollector(read))
