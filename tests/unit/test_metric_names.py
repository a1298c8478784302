"""Prometheus scrapes operator and gateway alike, so one name can't mean two things, and there is an end of them."""

import metric_table
from sandpod_gateway.metrics import MAX_TENANTS, UNKNOWN
from sandpod_gateway.metrics import Metrics as GatewayMetrics
from sandpod_gateway.usage.amounts import Amounts
from sandpod_operator.metrics import Metrics as OperatorMetrics
from support.gateway.series import series


def test_no_metric_of_the_operator_has_the_name_of_one_of_the_gateway() -> None:
    gateway = GatewayMetrics()
    gateway.watch_pools(lambda: {("", "default"): 1})
    theirs, ours = (
        {family.name for family in each.registry.collect() if not family.name.startswith("process_")}
        for each in (gateway, OperatorMetrics())
    )
    assert len(theirs) > 5
    assert len(ours) > 5
    assert theirs.isdisjoint(ours)


def test_tenants_beyond_the_most_are_counted_together() -> None:
    metrics = GatewayMetrics()
    for number in range(MAX_TENANTS):
        metrics.count_use(f"t{number}", Amounts(runs=1))
    before = series(metrics.registry)
    for number in range(MAX_TENANTS, MAX_TENANTS + 1000):
        metrics.count_use(f"t{number}", Amounts(runs=1))
    metrics.count_use("t7", Amounts(runs=1))
    value = metrics.registry.get_sample_value
    assert value("sandpod_usage_runs_total", {"tenant": UNKNOWN}) == 1000
    assert value("sandpod_usage_runs_total", {"tenant": "t7"}) == 2
    assert {labels for _, labels in series(metrics.registry) - before} == {str({"tenant": UNKNOWN})}


def test_the_table_of_metrics_is_whole() -> None:
    for program in ("gateway", "operator"):
        named = {name for name, *_ in metric_table.metrics(program)}
        for family in metric_table.registry_of(program).collect():
            if not family.name.startswith("process_"):
                assert {family.name, f"{family.name}_total"} & named, family.name
                assert family.documentation.endswith(".")
