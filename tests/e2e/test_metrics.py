"""What Prometheus scrapes: the numbers of gateways and operators, read through the API server."""

import pytest

import metric_table
from support.cluster.callers import Session
from support.cluster.cluster import Cluster
from support.cluster.scraping import Series, families, scrape


def value(series: Series, name: str, **labels: str) -> float:
    return series[name, frozenset(labels.items())]


async def test_runs_are_counted_and_timed_by_language_and_outcome(
    session: Session, sandbox: str, cluster: Cluster
) -> None:
    before = await scrape(cluster, "gateway", 8081)
    await session.python("print('x' * 999)", sandbox=sandbox)
    await session.python("raise SystemExit(1)", sandbox=sandbox)
    await session.call("run_js_code", code="console.log(1)", sandbox=sandbox)
    after = await scrape(cluster, "gateway", 8081)

    def grown(name: str, **labels: str) -> float:
        return value(after, name, **labels) - value(before, name, **labels)

    assert grown("sandpod_runs_total", language="python", outcome="ok") == 1
    assert grown("sandpod_runs_total", language="python", outcome="error") == 1
    assert grown("sandpod_runs_total", language="javascript", outcome="ok") == 1
    assert grown("sandpod_run_seconds_count", language="python") == 2
    assert grown("sandpod_output_bytes_total", stream="stdout") == 1002


async def test_all_metrics_that_the_documentation_lists_are_exported(cluster: Cluster) -> None:
    for program in ("gateway", "operator"):
        names = await families(cluster, program, 8081)
        assert {name.removesuffix("_total") for name, *_ in metric_table.metrics(program)} <= names


async def test_operator_tells_of_its_work(cluster: Cluster) -> None:
    series = await scrape(cluster, "operator", 8081)
    assert value(series, "sandpod_operator_leader") == 1
    assert value(series, "sandpod_operator_reconciles_total", kind="SandboxPool", result="ok") > 0
    assert value(series, "sandpod_operator_watch_age_seconds", namespace=cluster.sandboxes) < 120


@pytest.mark.promise("fixed-labels")
async def test_no_series_names_a_sandbox_or_a_caller(session: Session, sandbox: str, cluster: Cluster) -> None:
    await session.python("print(1)", sandbox=sandbox)
    for component, port in (("gateway", 8081), ("operator", 8081)):
        labels = {label for _, pairs in await scrape(cluster, component, port) for _, label in pairs}
        assert not {label for label in labels if sandbox in label or "alice" in label}
