"""Every file that a user may apply by hand is applied here: examples, and the manifests for clusters without helm."""

import asyncio
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from support.chart.render import render
from support.cluster.cluster import Cluster

MANIFESTS: Final = Path(__file__).resolve().parents[2] / "manifests"
EXAMPLES: Final = sorted((MANIFESTS / "examples").glob("*.yaml"))
VALUES: Final = sorted((MANIFESTS / "examples" / "values").glob("*.yaml"))
TRY: Final = ("apply", "--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict", "-f", "-")
ELSEWHERE: Final = {"gateway.networking.k8s.io", "monitoring.coreos.com"}
# Beside the sandboxes' own namespace, where no operator looks: nothing is started by what is applied.
NAMESPACE: Final = "sandpod-examples"


@pytest.fixture(scope="module")
def namespace(cluster: Cluster) -> Iterator[str]:  # noqa: ARG001  # says first what is missing
    def kubectl(*arguments: str) -> None:
        subprocess.run(["kubectl", *arguments], check=True, capture_output=True, timeout=120)

    kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found")
    kubectl("create", "namespace", NAMESPACE)
    yield NAMESPACE
    kubectl("delete", "namespace", NAMESPACE, "--wait=false")


def test_there_is_an_example_of_each_kind() -> None:
    names = {path.stem for path in EXAMPLES}
    assert names >= {"sandbox", "template", "template-egress", "template-gvisor", "pool"}


async def test_examples_are_applied_without_a_warning_and_keep_every_field(cluster: Cluster, namespace: str) -> None:
    files = [word for path in EXAMPLES for word in ("-f", str(path))]
    apply = ("apply", "-n", namespace, *files, "--validate=strict", "--warnings-as-errors")
    await cluster.kubectl(*apply, "--dry-run=server")
    await cluster.kubectl(*apply)
    # What the API server would drop or change shows up as a difference to the file.
    assert await cluster.kubectl("diff", "-n", namespace, *files) == ""


async def test_manifest_without_helm_is_what_the_cluster_takes(cluster: Cluster) -> None:
    files = [word for name in ("crds.yaml", "install.yaml") for word in ("-f", str(MANIFESTS / name))]
    await cluster.kubectl("apply", "--dry-run=server", "--validate=strict", *files)


def rendered(file: Path) -> list[dict[str, Any]]:
    """Return the chart's objects, but for the kinds that come with other people's CRDs, and the Helm test.

    They have other names than those of the installed release, with which they would be merged. What tenants have in
    namespaces of their own, which are not there, is the same as what the sandboxes' namespace has.
    """
    objects = [
        m
        for m in render(f"fullnameOverride=try-{file.stem}", files=(file,))
        if m["metadata"].get("namespace") in {None, "sandpod", "sandpod-sandboxes"}
    ]
    return [m for m in objects if m["apiVersion"].split("/")[0] not in ELSEWHERE and m["kind"] != "Pod"]


async def test_chart_is_what_the_cluster_takes_with_example_values_and_with_values_that_are_as_in_a_pod(
    cluster: Cluster, tmp_path: Path
) -> None:
    file = tmp_path / "pods.yaml"
    file.write_text(yaml.safe_dump(as_in_a_pod()), encoding="utf-8")
    rendering = (asyncio.to_thread(rendered, each) for each in (*VALUES, file))
    objects = [each for found in await asyncio.gather(*rendering) for each in found]
    assert {m["metadata"]["name"] for m in objects} >= {f"try-{each.stem}-gateway" for each in (*VALUES, file)}
    await cluster.kubectl(*TRY, stdin=yaml.safe_dump_all(objects))


def as_in_a_pod() -> dict[str, Any]:
    component = {
        "extraEnv": [{"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}],
        "envFrom": [{"secretRef": {"name": "s", "optional": True}}],
        "extraVolumes": [{"name": "ca", "configMap": {"name": "ca"}}],
        "extraVolumeMounts": [{"name": "ca", "mountPath": "/ca", "readOnly": True}],
        "livenessProbe": {"initialDelaySeconds": 3},
        "strategy": {"type": "Recreate", "rollingUpdate": None},
        "podDisruptionBudget": {"minAvailable": "50%"},
        "topologySpreadConstraints": [
            {"maxSkew": 2, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", "minDomains": 2}
        ],
    }
    return {
        "gateway": {**component, "autoscaling": {"enabled": True}, "extraArgs": ["--log-level", "debug"]},
        "operator": component,
        "ingress": {"enabled": True, "hosts": ["a.example", "*.b.example"], "tls": [{"secretName": "t"}]},
        "commonLabels": {"team": "a"},
        "extraObjects": [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x", "namespace": "sandpod"}}],
        "sandboxes": {"quota": {"hard": {"requests.memory": 2147483648}}},
    }
