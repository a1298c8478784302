"""Reads the metrics of gateways and operators through the API server, as no tunnel is needed for that."""

import asyncio

from prometheus_client.parser import text_string_to_metric_families

from support.cluster.cluster import Cluster
from support.cluster.reading import raw

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


async def scrape(cluster: Cluster, component: str, port: int) -> Series:
    """Return the sum over all pods of a component, by name and labels."""
    total: Series = {}
    for pod in await cluster.component_pods(component):
        path = f"/api/v1/namespaces/{cluster.namespace}/pods/{pod}:{port}/proxy/metrics"
        for family in text_string_to_metric_families((await asyncio.to_thread(raw, path)).decode()):
            for sample in family.samples:
                key = (sample.name, frozenset(sample.labels.items()))
                total[key] = total.get(key, 0) + sample.value
    return total


async def families(cluster: Cluster, component: str, port: int) -> set[str]:
    """Return the names of what each pod of a component exports, series or none."""
    found: list[set[str]] = []
    for pod in await cluster.component_pods(component):
        path = f"/api/v1/namespaces/{cluster.namespace}/pods/{pod}:{port}/proxy/metrics"
        text = (await asyncio.to_thread(raw, path)).decode()
        found.append({family.name for family in text_string_to_metric_families(text)})
    return set.intersection(*found)
