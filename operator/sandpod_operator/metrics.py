"""What Prometheus can ask the operator: its work, its pools, how long sandboxes take, whether events arrive.

No label names a sandbox, an owner or a session, so the number of series does not grow with use; pools and network
policies are few and named by an administrator.
"""

import contextlib
import logging
from collections.abc import Callable, Mapping
from datetime import timedelta
from itertools import product
from typing import Final, Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from sandpod_api.conditions import Reason

_log = logging.getLogger(__name__)

_START_BUCKETS: Final = (0.5, 1, 1.5, 2, 2.5, 3, 4, 5, 7.5, 10, 15, 30, 60, 120)
# How a claim was met: by a warm sandbox, or by one that was made for it.
_CLAIM_ORIGINS: Final = ("pool", "direct")
_KINDS: Final = ("Sandbox", "SandboxPool", "SandboxTemplate", "Namespace")
_ENDS: Final = (
    *(Reason.POD_FAILED, Reason.OUT_OF_MEMORY, Reason.EVICTED, Reason.NODE_LOST, Reason.WORKSPACE_LOST),
    *(Reason.START_FAILED, Reason.NETWORK_OPEN, Reason.KERNEL_SHARED, Reason.TTL_EXPIRED, Reason.IDLE_TIMEOUT),
)
_WAITERS: Final = tuple(product(("claim", "pool"), ("quota", "node")))
_WAIT_BUCKETS: Final = (0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)
_RECONCILE_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5, 30)


class Metrics:
    """All metrics of one operator process, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)

        def counter(name: str, text: str, labels: str = "") -> Counter:
            return Counter(name, text, labels.split(), registry=self.registry)

        def gauge(name: str, text: str, labels: str = "") -> Gauge:
            return Gauge(name, text, labels.split(), registry=self.registry)

        def histogram(name: str, text: str, labels: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(name, text, labels.split(), buckets=buckets, registry=self.registry)

        self.reconciles = counter("sandpod_operator_reconciles_total", "Reconciles by kind and result.", "kind result")
        self.reconcile_seconds = histogram(
            "sandpod_operator_reconcile_seconds", "Time of one reconcile.", "kind", _RECONCILE_BUCKETS
        )
        self.queue_depth = gauge("sandpod_operator_queue_depth", "Objects that wait for a reconcile.")
        waits = "Time that a key waited for a worker, by kind."
        self.queue_seconds = histogram("sandpod_operator_queue_seconds", waits, "kind", _RECONCILE_BUCKETS)
        line = "Time that a claim or a pool waited for a place in the quota, or for a node."
        self.line_seconds = histogram("sandpod_operator_line_wait_seconds", line, "waiter lacks", _WAIT_BUCKETS)
        writes = "Writes to the API server by verb, kind and result."
        self.api_writes = counter("sandpod_operator_api_writes_total", writes, "verb kind result")
        start = "Time from the creation of a Sandbox, or its resume, to its being ready."
        self.start_seconds = histogram("sandpod_sandbox_start_seconds", start, "origin", _START_BUCKETS)
        self.ended = counter("sandpod_sandboxes_ended_total", "Sandboxes that expired or failed, by reason.", "reason")
        found = "Probes of a sandbox's isolation that found it open: its network, or the node's kernel."
        self.probe_failures = counter("sandpod_probe_failures_total", found, "probe")
        self.open_network = counter(
            "sandpod_sandboxes_open_network_total",
            "Sandboxes that found their network open: those that ended, and those that the operator allows to serve.",
            "outcome",
        )
        self.pool_wanted = gauge("sandpod_pool_wanted", "Warm sandboxes that a pool should have.", "namespace pool")
        self.pool_ready = gauge("sandpod_pool_ready", "Warm sandboxes that can be claimed.", "namespace pool")
        claims = "Claims by pool: origin `pool` took a warm sandbox, `direct` found none and had one made."
        self.pool_claims = counter("sandpod_pool_claims_total", claims, "namespace pool origin")
        self.watch_age = gauge(
            "sandpod_operator_watch_age_seconds", "Time since a heartbeat's watch event arrived.", "namespace"
        )
        self.watch_missed = counter(
            "sandpod_operator_watch_missed_total", "Objects that a full list showed and no watch event had.", "kind"
        )
        widening = "1 for each network policy that is none of Sandpod's and opens something to sandboxes."
        self._widening = gauge("sandpod_network_policy_widening", widening, "namespace policy")
        self._widened: dict[str, set[str]] = {}
        self.leader = gauge("sandpod_operator_leader", "1 in the active replica.")
        self.events_dropped = counter(
            "sandpod_operator_events_dropped_total", "Events not posted to keep their rate bounded."
        )

        self._begin()

    def _begin(self) -> None:
        """Let all series exist whose labels are known: a rate over one that appears late misses its first step."""
        for reason in _ENDS:
            self.ended.labels(reason)
        for probe in ("network", "kernel"):
            self.probe_failures.labels(probe)
        for outcome in ("ended", "allowed"):
            self.open_network.labels(outcome)
        for kind in _KINDS:
            self.reconcile_seconds.labels(kind)
            self.queue_seconds.labels(kind)
            for result in ("ok", "error"):
                self.reconciles.labels(kind, result)
        for origin in ("pool", "direct", "resume"):
            self.start_seconds.labels(origin)
        for waiter in _WAITERS:
            self.line_seconds.labels(*waiter)

    def count_write(self, verb: str, kind: str, result: str) -> None:
        """Count a write to the API server."""
        self.api_writes.labels(verb, kind, result).inc()

    def count_wait(self, waiter: "_Waiter", time: timedelta) -> None:
        """Count how long somebody waited for a place."""
        self.line_seconds.labels(*waiter.labels).observe(time.total_seconds())

    def watch_lines(self, read: Callable[[], Mapping[str, Mapping[tuple[str, str], int]]]) -> None:
        """Export how many wait for a place in each namespace, read when it is asked for."""
        self.registry.register(Lines(read))

    def set_widening(self, namespace: str, policies: set[str]) -> None:
        """Set which policies open something to a namespace's sandboxes, and log those that are new."""
        known = self._widened.get(namespace, set())
        for policy in sorted(policies - known):
            _log.warning("NetworkPolicy %s/%s is none of Sandpod's and opens something to sandboxes", namespace, policy)
            self._widening.labels(namespace, policy).set(1)
        for policy in known - policies:
            self._widening.remove(namespace, policy)
        self._widened[namespace] = policies

    def set_pool(self, namespace: str, pool: str, *, wanted: int, ready: int) -> None:
        """Set a pool's gauges, and let its counters exist: the rate of one that appears late misses its first step."""
        self.pool_wanted.labels(namespace, pool).set(wanted)
        self.pool_ready.labels(namespace, pool).set(ready)
        for origin in _CLAIM_ORIGINS:
            self.pool_claims.labels(namespace, pool, origin)

    def count_claim(self, namespace: str, pool: str, origin: str = "pool") -> None:
        """Count a claim that a pool met, or was too empty to meet."""
        self.pool_claims.labels(namespace, pool, origin).inc()

    def forget_pool(self, namespace: str, pool: str) -> None:
        """Remove the series of a pool that is gone."""
        series = [(self.pool_wanted, ()), (self.pool_ready, ()), *((self.pool_claims, (o,)) for o in _CLAIM_ORIGINS)]
        for metric, origin in series:
            with contextlib.suppress(KeyError):
                metric.remove(namespace, pool, *origin)


class _Waiter(Protocol):
    @property
    def labels(self) -> tuple[str, str]: ...


class Lines(Collector):
    """The number of those who wait, with what describes the metric."""

    name: Final = "sandpod_operator_line_waiting"
    labels: Final = ("namespace", "waiter", "lacks")

    def __init__(self, read: Callable[[], Mapping[str, Mapping[tuple[str, str], int]]]) -> None:
        self._read = read

    def collect(self) -> list[GaugeMetricFamily]:
        """Return who waits now; nobody is said, too."""
        text = "Claims and pools that wait for a place in the quota, or for a node."
        family = GaugeMetricFamily(self.name, text, labels=self.labels)
        for namespace, line in self._read().items():
            for waiter in _WAITERS:
                family.add_metric((namespace, *waiter), line.get(waiter, 0))
        return [family]
