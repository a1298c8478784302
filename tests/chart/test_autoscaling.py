"""Autoscalers of pools: what the chart renders, and that the metric they ask for is one that the operator has."""

import re
from typing import Any, Final

import pytest
import yaml

from sandpod_gateway.metrics import Metrics as GatewayMetrics
from sandpod_operator.metrics import Metrics
from support.chart.render import ROOT, Manifest, only, refusal, render

POOL: Final = "sandboxes.pools.default"
ON: Final = f"{POOL}.autoscaling.enabled=true"
EXAMPLES: Final = ROOT / "manifests" / "examples"


def autoscaler(*values: str, name: str = "default") -> Manifest:
    found: Manifest = only(render(*values), "HorizontalPodAutoscaler", name)["spec"]
    return found


def pool(*values: str, name: str = "default") -> Manifest:
    found: Manifest = only(render(*values), "SandboxPool", name)["spec"]
    return found


def test_there_is_no_autoscaler_unless_asked_for() -> None:
    assert [m for m in render() if m["kind"] == "HorizontalPodAutoscaler"] == []
    assert pool() == {"templateRef": {"name": "default"}, "replicas": 2}


def test_autoscaler_goes_by_the_claims_of_its_pool() -> None:
    assert autoscaler(ON, f"{POOL}.autoscaling.maxReplicas=9") == {
        "scaleTargetRef": {"apiVersion": "sandpod.dev/v1alpha1", "kind": "SandboxPool", "name": "default"},
        "minReplicas": 2,
        "maxReplicas": 9,
        "metrics": [
            {
                "type": "External",
                "external": {
                    "metric": {
                        "name": "sandpod_pool_claims_per_second",
                        "selector": {"matchLabels": {"pool": "default"}},
                    },
                    "target": {"type": "AverageValue", "averageValue": "100m"},
                },
            }
        ],
    }


def test_chart_writes_no_replicas_that_an_upgrade_would_set_the_pool_back_to() -> None:
    assert pool(ON, f"{POOL}.maxAge=600") == {"templateRef": {"name": "default"}, "maxAge": 600}
    # Where anybody else's autoscaler does it.
    assert "replicas" not in pool(f"{POOL}.replicas=null")
    assert pool(f"{POOL}.autoscaling.maxReplicas=9")["replicas"] == 2


def test_pool_that_the_operator_scales_has_no_replicas_and_no_autoscaler_beside_it() -> None:
    between = (f"{POOL}.autoscale.minReplicas=3", f"{POOL}.autoscale.maxReplicas=9")
    assert pool(*between) == {
        "templateRef": {"name": "default"},
        "autoscale": {"minReplicas": 3, "maxReplicas": 9},
    }
    assert pool(f"{POOL}.autoscale=null") == pool()
    assert "exclude each other: set autoscale to null" in refusal(*between, ON)
    assert "a minReplicas above its maxReplicas" in refusal(between[0], f"{POOL}.autoscale.maxReplicas=2")
    assert "maxReplicas" in refusal(between[0])


def test_each_pool_has_its_own_and_what_it_does_not_say_has_a_default() -> None:
    other = "sandboxes.pools.other"
    values = (f"{other}.templateRef.name=default", f"{other}.autoscaling.enabled=true", f"{other}.replicas=3")
    found = autoscaler(*values, f"{other}.autoscaling.maxReplicas=4", name="other")
    assert (found["minReplicas"], found["maxReplicas"]) == (1, 4)
    (metric,) = found["metrics"]
    assert metric["external"]["metric"]["selector"] == {"matchLabels": {"pool": "other"}}
    assert metric["external"]["target"]["averageValue"] == "100m"
    assert pool(*values, f"{other}.autoscaling.maxReplicas=4", name="other") == {"templateRef": {"name": "default"}}


def test_metrics_and_behavior_are_passed_on(tmp_path: Any) -> None:
    target = {"type": "AverageValue", "averageValue": "2"}
    metric = {"name": "queue", "selector": {"matchLabels": {"team": "a"}}}
    described = {"apiVersion": "v1", "kind": "Namespace", "name": "x"}
    given = {
        "metrics": [
            {"type": "External", "external": {"metric": metric, "target": target}},
            {"type": "Object", "object": {"describedObject": described, "metric": metric, "target": target}},
        ],
        "behavior": {
            "scaleUp": {"selectPolicy": "Disabled"},
            "scaleDown": {
                "stabilizationWindowSeconds": 0,
                "policies": [{"type": "Percent", "value": 50, "periodSeconds": 30}],
            },
        },
    }
    file = tmp_path / "values.yaml"
    values = {"sandboxes": {"pools": {"default": {"autoscaling": {"enabled": True, **given}}}}}
    file.write_text(yaml.safe_dump(values), encoding="utf-8")
    found = only(render(files=(file,)), "HorizontalPodAutoscaler", "default")["spec"]
    assert {key: found[key] for key in given} == given


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        (["sandboxes.pools.default.autoscaling.max=3"], "additional properties 'max' not allowed"),
        ([ON, f"{POOL}.autoscaling.minReplicas=0"], "/sandboxes/pools/default/autoscaling/minReplicas"),
        ([ON, f"{POOL}.autoscaling.minReplicas=6"], "minReplicas above its maxReplicas: lower the one, or raise"),
        ([ON, f"{POOL}.autoscaling.maxReplicas=null"], "needs maxReplicas when it is enabled: set it to"),
        ([ON, f"{POOL}.autoscaling.claimsPerSecond=often"], "/sandboxes/pools/default/autoscaling/claimsPerSecond"),
        # These count ready pods by the pool's selector, which selects Sandboxes.
        ([ON, f"{POOL}.autoscaling.metrics[0].type=Resource"], "/autoscaling/metrics/0/type"),
        (
            [
                ON,
                f"{POOL}.autoscaling.metrics[0].type=External",
                f"{POOL}.autoscaling.metrics[0].external.metric.name=x",
                f"{POOL}.autoscaling.metrics[0].external.target.type=Value",
            ],
            "/autoscaling/metrics/0/external/target",
        ),
    ],
)
def test_what_would_not_scale_is_refused(values: list[str], sentence: str) -> None:
    assert sentence in refusal(*values)


def test_examples_ask_for_what_the_operator_tells() -> None:
    told = {s.name for m in Metrics().registry.collect() for s in m.samples} | {
        f"{m.name}_total" for m in Metrics().registry.collect() if m.type == "counter"
    }
    (rule,) = yaml.safe_load((EXAMPLES / "autoscaling" / "prometheus-adapter.yaml").read_text())["rules"]["external"]
    keda = yaml.safe_load((EXAMPLES / "autoscaling" / "keda.yaml").read_text())["spec"]
    documents = yaml.safe_load_all((EXAMPLES / "pool-autoscaled.yaml").read_text())
    example = next(d for d in documents if d["kind"] == "HorizontalPodAutoscaler")["spec"]
    for query in (rule["seriesQuery"], keda["triggers"][0]["metadata"]["query"]):
        (series,) = re.findall(r"sandpod_\w+", query)
        assert series in told
    asked = autoscaler(ON)["metrics"][0]["external"]["metric"]["name"]
    assert rule["name"]["as"] == asked == example["metrics"][0]["external"]["metric"]["name"]
    assert keda["scaleTargetRef"] == autoscaler(ON)["scaleTargetRef"]


def test_example_scales_gateways_by_a_metric_that_they_have_and_the_adapter_serves() -> None:
    rules = yaml.safe_load((EXAMPLES / "autoscaling" / "prometheus-adapter.yaml").read_text())["rules"]["custom"]
    made = render(files=(EXAMPLES / "values" / "autoscaling.yaml",))
    spec = only(made, "HorizontalPodAutoscaler", "sandpod-gateway")["spec"]
    [name] = [metric["pods"]["metric"]["name"] for metric in spec["metrics"] if metric["type"] == "Pods"]
    assert name in {metric.name for metric in GatewayMetrics().registry.collect()}
    [rule] = [rule for rule in rules if rule["name"]["as"] == name]
    assert rule["seriesQuery"].startswith(f"{name}{{")
    assert [metric["resource"]["name"] for metric in spec["metrics"] if metric["type"] == "Resource"] == ["cpu"]
    assert only(made, "ServiceMonitor", "sandpod-gateway")


def test_prometheus_keeps_the_namespace_that_a_pool_is_in() -> None:
    monitor = only(render("metrics.serviceMonitor.enabled=true"), "ServiceMonitor", "sandpod-operator")
    assert monitor["spec"]["endpoints"][0]["honorLabels"] is True
