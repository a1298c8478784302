"""Every file that a user may apply by hand is applied here: examples, and the manifests for clusters without helm."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from support.cluster.cluster import Cluster

MANIFESTS: Final = Path(__file__).resolve().parents[2] / "manifests"
EXAMPLES: Final = sorted((MANIFESTS / "examples").glob("*.yaml"))
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


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda path: path.stem)
async def test_example_is_applied_without_a_warning_and_keeps_every_field(
    cluster: Cluster, namespace: str, file: Path
) -> None:
    apply = ("apply", "-n", namespace, "-f", str(file), "--validate=strict", "--warnings-as-errors")
    await cluster.kubectl(*apply, "--dry-run=server")
    await cluster.kubectl(*apply)
    # What the API server would drop or change shows up as a difference to the file.
    assert await cluster.kubectl("diff", "-n", namespace, "-f", str(file)) == ""


async def test_manifest_without_helm_is_what_the_cluster_takes(cluster: Cluster) -> None:
    for name in ("crds.yaml", "install.yaml"):
        out = await cluster.kubectl(
            "apply", "--dry-run=server", "--validate=strict", "-o", "json", "-f", str(MANIFESTS / name)
        )
        assert json.loads(out)["items"]
