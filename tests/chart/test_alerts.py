"""Alerts ask for metrics and labels that the two programs have."""

import re
from typing import Final

import pytest
from prometheus_client import CollectorRegistry

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.metrics import Metrics as GatewayMetrics
from sandpod_operator.metrics import Metrics as OperatorMetrics
from support.chart.render import Manifest, only, render

RULES: Final = ("metrics.prometheusRule.enabled=true", "metrics.prometheusRule.labels.release=p")


def rules() -> list[Manifest]:
    made = only(render(*RULES), "PrometheusRule", "sandpod")
    assert made["metadata"]["labels"]["release"] == "p"
    [group] = made["spec"]["groups"]
    found: list[Manifest] = group["rules"]
    return found


def labels_of(registry: CollectorRegistry) -> dict[str, set[str]]:
    """Return the labels of each metric, by the name that Prometheus has it under."""
    return {
        f"{name}_total" if kind == "counter" and not name.endswith("_total") else name: set(labels)
        for name, kind, labels in (
            (collector._name, collector._type, collector._labelnames)  # type: ignore[attr-defined]
            for collector in registry._collector_to_names
            if hasattr(collector, "_labelnames")
        )
    }


def test_there_are_none_unless_asked_for() -> None:
    assert not [m for m in render() if m["kind"] == "PrometheusRule"]


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_alert_asks_for_what_there_is_and_says_what_it_means(rule: Manifest) -> None:
    known = labels_of(GatewayMetrics().registry) | labels_of(OperatorMetrics().registry)
    asked = re.findall(r"(sandpod_\w+)(?:\{(.*?)\})?", rule["expr"])
    assert asked
    for name, selector in asked:
        # Prometheus adds the namespace of what it scraped.
        assert set(re.findall(r"(\w+)=", selector)) <= known[name] | {"namespace"}
    for code in re.findall(r"code=~\"(.*?)\"", rule["expr"]):
        assert set(code.split("|")) <= {each.value for each in ErrorCode}
    assert rule["annotations"]["summary"].endswith((".", "?"))
    assert rule["labels"]["severity"] in {"warning", "critical"}
    shown = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
    assert all(label in rule["expr"] or label in known[asked[0][0]] for label in shown)
