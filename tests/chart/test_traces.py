"""Traces by the chart's values: both components get the same address, and the network to it, only where it is set."""

from pathlib import Path

import pytest
import yaml

from sandpod_gateway.settings import load
from sandpod_operator.__main__ import read_settings
from sandpod_telemetry.endpoint import traces_url
from support.chart.render import Manifest, only, refusal, render

ENDPOINT = "http://collector.monitoring.svc:4318"
BOTH = ("gateway", "operator")


def egress(manifests: list[Manifest], component: str) -> list[Manifest]:
    found: list[Manifest] = only(manifests, "NetworkPolicy", f"sandpod-{component}")["spec"]["egress"]
    return found


def variables(manifests: list[Manifest], component: str) -> dict[str, Manifest]:
    pod = only(manifests, "Deployment", f"sandpod-{component}")["spec"]["template"]["spec"]
    return {each["name"]: each for each in pod["containers"][0]["env"]}


def test_without_an_endpoint_there_are_neither_traces_nor_a_way_to_a_collector() -> None:
    manifests = render("traces.headersSecret=otlp", "networkPolicy.tracesPorts={4318}")
    for component in BOTH:
        assert not any(port["port"] == 4318 for rule in egress(manifests, component) for port in rule["ports"])
        assert "OTEL_EXPORTER_OTLP_HEADERS" not in variables(manifests, component)
        assert "traces" not in only(manifests, "ConfigMap", f"sandpod-{component}-config")["data"]["config.yaml"]


def test_an_endpoint_reaches_both_with_its_headers_and_the_way_to_it(tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    to = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]
    traces = {"endpoint": ENDPOINT, "ratio": 0.25, "headersSecret": "otlp"}
    values.write_text(yaml.safe_dump({"traces": traces, "networkPolicy": {"tracesTo": to}}), encoding="utf-8")
    manifests = render(files=(values,))
    for component in BOTH:
        assert {"ports": [{"port": 4318, "protocol": "TCP"}], "to": to} in egress(manifests, component)
        header = variables(manifests, component)["OTEL_EXPORTER_OTLP_HEADERS"]
        assert header["valueFrom"] == {"secretKeyRef": {"name": "otlp", "key": "headers"}}
    texts = [only(manifests, "ConfigMap", f"sandpod-{each}-config")["data"]["config.yaml"] for each in BOTH]
    files = [tmp_path / f"{each}.yaml" for each in BOTH]
    for file, text in zip(files, texts, strict=True):
        file.write_text(text, encoding="utf-8")
    gateway, operator = load([], config=files[0], program="sandpod").traces, read_settings(files[1])
    assert operator is not None
    assert (gateway.endpoint, gateway.ratio) == (operator.traces_endpoint, operator.traces_ratio) == (ENDPOINT, 0.25)
    assert traces_url(gateway.endpoint, {}) == f"{ENDPOINT}/v1/traces"


@pytest.mark.parametrize("value", ["traces.endpoint=collector:4318", "traces.ratio=2", "gateway.config.traces.ratio=1"])
def test_values_that_can_not_be_are_refused(value: str) -> None:
    assert refusal(value)
