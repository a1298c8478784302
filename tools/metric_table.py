"""The table of all metrics in docs/metrics.md, from the two programs' registries themselves."""

from collections.abc import Iterator
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.metrics import MetricWrapperBase

from sandpod_gateway.metrics import Metrics as GatewayMetrics
from sandpod_operator.metrics import Metrics as OperatorMetrics

_KINDS: Final[dict[type[Any], str]] = {Counter: "counter", Gauge: "gauge", Histogram: "histogram"}


def metrics(program: str) -> Iterator[tuple[str, str, tuple[str, ...], str]]:
    """Yield each metric of the gateway or the operator: name as Prometheus has it, type, labels, description."""
    registry = registry_of(program)
    described = {family.name: family.documentation for family in registry.collect()}
    for collector in list(registry._collector_to_names):  # noqa: SLF001 - no other way leads to labels without a series
        if isinstance(collector, MetricWrapperBase):
            name, kind, labels = collector._name, _KINDS[type(collector)], tuple(collector._labelnames)  # noqa: SLF001
        elif hasattr(collector, "labels"):
            name, kind, labels = collector.name, "gauge", collector.labels  # type: ignore[attr-defined]
        else:
            continue  # of the process, which every program has
        suffix = "_total" if kind == "counter" else ""
        yield f"{name}{suffix}", kind, labels, described[name]


def registry_of(program: str) -> CollectorRegistry:
    """Return a registry with all that the gateway or the operator exports."""
    if program == "operator":
        operator = OperatorMetrics()
        operator.watch_lines(dict)
        return operator.registry
    gateway = GatewayMetrics()
    gateway.watch_pools(dict)
    return gateway.registry


def rows(program: str) -> list[tuple[str, ...]]:
    """Return the table's rows, the first of them its head."""
    found = [
        (f"`{name}`", kind, " ".join(f"`{label}`" for label in labels), text)
        for name, kind, labels, text in metrics(program)
    ]
    return [("Metric", "Type", "Labels", "What it is"), *sorted(found)]
