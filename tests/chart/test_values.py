"""The chart's values: every one described, closed against typos, and wrong combinations refused with a sentence."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.chart.render import CHART, KUBERNETES, ROOT, helm, refusal, render

VALUES = CHART / "values.yaml"
EXAMPLES = sorted((ROOT / "manifests" / "examples" / "values").glob("*.yaml"))


def schema() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    return loaded


def test_lint_is_clean_with_every_warning_an_error() -> None:
    done = helm("lint", "--strict", str(CHART), *KUBERNETES)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda path: path.stem)
def test_example_values_are_taken(file: Path) -> None:
    done = helm("lint", "--strict", str(CHART), *KUBERNETES, "--values", str(file))
    assert done.returncode == 0, done.stdout + done.stderr
    assert render(files=(file,))


def test_there_are_example_values() -> None:
    assert {path.stem for path in EXAMPLES} >= {"ingress", "tls", "production", "autoscaling"}


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ("gatewy.replicas=3", "additional properties 'gatewy' not allowed"),
        ("gateway.replica=3", "at '/gateway': additional properties 'replica' not allowed"),
        ("gateway.resources.limit.memory=1Gi", "additional properties 'limit' not allowed"),
        ("gateway.config.limits.run_timout=5", "additional properties 'run_timout' not allowed"),
        ("operator.config.heartbeat=5", "additional properties 'heartbeat' not allowed"),
        ("sandboxes.templates.default.hostuser=false", "additional properties 'hostuser' not allowed"),
        ("sandboxes.templates.default.resources.mem=1Gi", "additional properties 'mem' not allowed"),
        ("sandboxes.pools.default.replica=3", "additional properties 'replica' not allowed"),
        ("ingress.tls.secret=x", "additional properties 'secret' not allowed"),
    ],
)
def test_misspelt_value_is_refused_by_name(value: str, sentence: str) -> None:
    assert sentence in refusal(value)


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ("gateway.replicas=many", "/gateway/replicas"),
        ("gateway.image.pullPolicy=Sometimes", "/gateway/image/pullPolicy"),
        ("sandboxes.namespace=Sandboxes", "/sandboxes/namespace"),
        ("sandboxes.moreNamespaces={a,B}", "/sandboxes/moreNamespaces/1"),
        ("sandboxes.templates.default.resources.memory=lots", "/sandboxes/templates/default/resources/memory"),
        ("sandboxes.pools.default.replicas=-1", "/sandboxes/pools/default/replicas"),
        ("gateway.config.limits.run_timeout=0", "/gateway/config/limits/run_timeout"),
        ("auth.keys[0].hash=plain", "/auth/keys/0"),
    ],
)
def test_wrong_value_is_refused_with_its_place(value: str, place: str) -> None:
    assert place in refusal(value)


@pytest.mark.parametrize("name", ["host", "port", "backend", "tls.cert", "auth.keys_file", "kubernetes.namespace"])
def test_settings_that_follow_from_other_values_can_not_be_set_beside_them(name: str) -> None:
    assert "not allowed" in refusal(f"gateway.config.{name}=1")


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        (["ingress.enabled=true"], "ingress.host is needed when ingress.enabled is true: set it to the name"),
        (["sandboxes.namespace=sandpod"], "sandboxes.namespace must not be the release namespace"),
        (["sandboxes.moreNamespaces={sandpod}"], "sandboxes.moreNamespaces must not hold the release namespace"),
        (["sandboxes.moreNamespaces={a,a}"], "name a namespace twice: name each once"),
        (
            [
                "auth.existingSecret=x",
                "auth.keys[0].name=a,auth.keys[0].user=a,auth.keys[0].created=2026-01-01T00:00:00Z",
                f"auth.keys[0].hash=sha256:{'0' * 64}",
            ],
            "auth.existingSecret and auth.keys exclude each other: add the keys to the existing Secret",
        ),
        (["sandboxes.pools.gpu.replicas=1"], "set its templateRef.name, or add sandboxes.templates.gpu"),
    ],
)
def test_wrong_combination_is_refused_with_the_next_step(values: list[str], sentence: str) -> None:
    assert sentence in refusal(*values)


def leaves(properties: dict[str, Any], place: str = "") -> set[str]:
    """Return the paths of all properties that are objects with fixed names, and of what is in them."""
    found: set[str] = set()
    for name, value in properties.items():
        found.add(f"{place}{name}")
        found |= leaves(value.get("properties", {}), f"{place}{name}.")
    return found


def keys(values: dict[str, Any], known: set[str], place: str = "") -> set[str]:
    found: set[str] = set()
    for name, value in values.items():
        if f"{place}{name}" in known:
            found.add(f"{place}{name}")
            found |= keys(value, known, f"{place}{name}.") if isinstance(value, dict) else set()
    return found


def test_values_file_shows_every_value_that_the_schema_knows() -> None:
    known = leaves(schema()["properties"]) - {"global"}
    assert keys(yaml.safe_load(VALUES.read_text(encoding="utf-8")), known) == known


def test_schema_is_closed_everywhere_but_where_kubernetes_knows_more() -> None:
    open_objects: list[str] = []

    def look(node: object, place: str) -> None:
        if isinstance(node, dict):
            if node.get("type") == "object" and "additionalProperties" not in node:
                open_objects.append(place)
            for key, value in node.items():
                look(value, f"{place}/{key}")
        elif isinstance(node, list):
            for index, value in enumerate(node):
                look(value, f"{place}/{index}")

    look(schema(), "")
    assert {re.sub(r"^.*/properties/", "", place) for place in open_objects} == {
        "global",
        "affinity",
        "podSelector",
        "namespaceSelector",
        "ipBlock",
    }


def test_chart_is_of_the_same_version_as_the_wheel() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    wheel = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    assert wheel is not None
    assert chart["appVersion"] == chart["version"] == wheel[1]
