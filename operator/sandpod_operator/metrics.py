"""What Prometheus can ask the operator: its work, its pools, how long sandboxes take, whether events arrive.

No label names a sandbox, an owner or a session, so the number of series does not grow with use; pools and network
policies are few and named by an administrator.
"""

import contextlib
import logging
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_log = logging.getLogger(__name__)

_START_BUCKETS: Final = (0.5, 1, 1.5, 2, 2.5, 3, 4, 5, 7.5, 10, 15, 30, 60, 120)
# How a claim was met: by a warm sandbox, or by one that was made for it.
_CLAIM_ORIGINS: Final = ("pool", "direct")
_RECONCILE_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5, 30)


class Metrics:
    """All metrics of one operator process, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.reconciles = Counter(
            "sandpod_operator_reconciles_total",
            "Reconciles by kind and result.",
            ["kind", "result"],
            registry=self.registry,
        )
        self.reconcile_seconds = Histogram(
            "sandpod_operator_reconcile_seconds",
            "Time of one reconcile.",
            ["kind"],
            buckets=_RECONCILE_BUCKETS,
            registry=self.registry,
        )
        self.queue_depth = Gauge(
            "sandpod_operator_queue_depth", "Objects that wait for a reconcile.", registry=self.registry
        )
        self.api_writes = Counter(
            "sandpod_operator_api_writes_total",
            "Writes to the API server by verb, kind and result.",
            ["verb", "kind", "result"],
            registry=self.registry,
        )
        self.start_seconds = Histogram(
            "sandpod_sandbox_start_seconds",
            "Time from the creation of a Sandbox, or its resume, to its being ready.",
            ["origin"],
            buckets=_START_BUCKETS,
            registry=self.registry,
        )
        self.ended = Counter(
            "sandpod_sandboxes_ended_total",
            "Sandboxes that expired or failed, by reason.",
            ["reason"],
            registry=self.registry,
        )
        self.open_network = Counter(
            "sandpod_sandboxes_open_network_total",
            "Sandboxes that found their network open: those that ended, and those that the operator allows to serve.",
            ["outcome"],
            registry=self.registry,
        )
        self.pool_wanted = Gauge(
            "sandpod_pool_wanted",
            "Warm sandboxes that a pool should have.",
            ["namespace", "pool"],
            registry=self.registry,
        )
        self.pool_ready = Gauge(
            "sandpod_pool_ready", "Warm sandboxes that can be claimed.", ["namespace", "pool"], registry=self.registry
        )
        self.pool_claims = Counter(
            "sandpod_pool_claims_total",
            "Claims by pool: origin `pool` took a warm sandbox, `direct` found none and had one made.",
            ["namespace", "pool", "origin"],
            registry=self.registry,
        )
        self.watch_age = Gauge(
            "sandpod_operator_watch_age_seconds",
            "Time since a heartbeat's watch event arrived.",
            ["namespace"],
            registry=self.registry,
        )
        self.watch_missed = Counter(
            "sandpod_operator_watch_missed_total",
            "Objects that a full list showed and no watch event had.",
            ["kind"],
            registry=self.registry,
        )
        self._widening = Gauge(
            "sandpod_network_policy_widening",
            "1 for each network policy that is none of Sandpod's and opens something to sandboxes.",
            ["namespace", "policy"],
            registry=self.registry,
        )
        self._widened: dict[str, set[str]] = {}
        self.leader = Gauge("sandpod_operator_leader", "1 in the active replica.", registry=self.registry)
        self.events_dropped = Counter(
            "sandpod_operator_events_dropped_total",
            "Events not posted to keep their rate bounded.",
            registry=self.registry,
        )

    def count_write(self, verb: str, kind: str, result: str) -> None:
        """Count a write to the API server."""
        self.api_writes.labels(verb, kind, result).inc()

    def set_widening(self, namespace: str, policies: set[str]) -> None:
        """Say which policies open something to a namespace's sandboxes, and log those that are new."""
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
        for gauge in (self.pool_wanted, self.pool_ready):
            with contextlib.suppress(KeyError):
                gauge.remove(namespace, pool)
        for origin in _CLAIM_ORIGINS:
            with contextlib.suppress(KeyError):
                self.pool_claims.remove(namespace, pool, origin)
