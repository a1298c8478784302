"""Prometheus scrapes operator and gateway alike, so one name can't mean two things."""

from sandpod_gateway.metrics import Metrics as GatewayMetrics
from sandpod_operator.metrics import Metrics as OperatorMetrics


def test_no_metric_of_the_operator_has_the_name_of_one_of_the_gateway() -> None:
    gateway = GatewayMetrics()
    gateway.watch_pools(lambda: {("", "default"): 1})
    theirs, ours = ({family.name for family in each.registry.collect()} for each in (gateway, OperatorMetrics()))
    assert len(theirs) > 5
    assert len(ours) > 5
    assert theirs.isdisjoint(ours)
