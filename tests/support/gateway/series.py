"""Which series a gateway's metrics have."""

from prometheus_client import CollectorRegistry


def series(registry: CollectorRegistry) -> set[tuple[str, str]]:
    """Return the name and labels of each."""
    return {(sample.name, str(sample.labels)) for family in registry.collect() for sample in family.samples}
