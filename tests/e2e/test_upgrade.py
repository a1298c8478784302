"""`helm upgrade` from the first version of the chart, back and forth, with a sandbox in use.

charts/sandpod-0.1.0.tgz is that version as it was packaged. The images are this checkout's. The release is the test's
own, in namespaces of its own; the CRDs are the cluster's, so nothing else may run meanwhile.
"""

import asyncio
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from support.cluster.callers import Caller
from support.cluster.cluster import Cluster, node_url
from support.cluster.release import LITTLE, SMALL, done, helm, image, remove, run

ROOT: Final = Path(__file__).resolve().parents[2]
FIRST: Final = str(Path(__file__).parent / "charts" / "sandpod-0.1.0.tgz")
CHART: Final = str(ROOT / "charts" / "sandpod")
NAMESPACE: Final = "sandpod-upgrade"
SANDBOXES: Final = "sandpod-upgrade-sandboxes"
APPLY: Final = ("apply", "--server-side", "--force-conflicts", "-f", "-")
BEATS: Final = """
import time
with open("beats", "w") as file:
    while file.write("x"):
        file.flush()
        time.sleep(0.1)
"""


def kubectl(*arguments: str, stdin: str | None = None) -> str:
    return done("kubectl", *arguments, stdin=stdin)


def apply_crds(chart: str) -> None:
    kubectl(*APPLY, stdin=done("helm", "show", "crds", chart))


def digests() -> dict[str, str]:
    """Return the digests of the CRDs in the cluster, by name."""
    found = json.loads(kubectl("get", "crds", "-o", "json"))["items"]
    ours = [each["metadata"] for each in found if each["spec"]["group"] == "sandpod.dev"]
    return {each["name"]: each.get("annotations", {}).get("sandpod.dev/spec-digest", "none") for each in ours}


def values(keys: dict[str, Any]) -> dict[str, Any]:
    return {
        "auth": {"keys": [keys["alice"]["entry"]]},
        "gateway": {**image("gateway"), **LITTLE, "replicas": 1, "service": {"type": "NodePort"}},
        "operator": {**image("operator"), **LITTLE, "replicas": 1},
        "sandboxes": {
            "namespace": SANDBOXES,
            **image("sandbox"),
            "templates": {"default": {"resources": SMALL, "preimport": []}},
            "pools": {"default": {"replicas": 1}},
        },
    }


@dataclass(frozen=True)
class Release:
    """The release, and the sandbox of alice that is in use all the time."""

    key: str
    sandbox: str


@dataclass(frozen=True)
class Seen:
    """What there is after a step.

    Attributes:
        pod: The uid of the sandbox's pod, and how often its container was restarted.
        context: The value of a variable of a context, which the gateway reads.
        beats: What the program in the background has written so far.
        replicas: Of the pool, which was scaled by hand.
        digests: Of the CRDs.
    """

    pod: tuple[str, int]
    context: str
    beats: int
    replicas: int
    digests: dict[str, str]


def look(release: Release) -> Seen:
    pod = asyncio.run(Cluster(namespace=NAMESPACE, sandboxes=SANDBOXES).pod_of(release.sandbox))

    async def ask() -> tuple[str, int]:
        async with Caller(f"{node_url(NAMESPACE)}/mcp", release.key).connect() as session:
            kept = await session.python("print(kept)", sandbox=release.sandbox, context="c")
            beats = await session.python("print(len(open('beats').read()))", sandbox=release.sandbox)
            return kept["stdout"].strip(), int(beats["stdout"])

    context, beats = asyncio.run(ask())
    pool = json.loads(kubectl("get", "sandboxpools.sandpod.dev", "default", "-n", SANDBOXES, "-o", "json"))
    restarts = sum(status["restartCount"] for status in pod["status"]["containerStatuses"])
    return Seen((pod["metadata"]["uid"], restarts), context, beats, pool["spec"]["replicas"], digests())


@pytest.fixture(scope="module")
def release(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Release]:
    assert cluster.namespace != NAMESPACE
    keys = json.loads(Path(os.environ.get("SANDPOD_KEYS", ".build/keys.json")).read_text(encoding="utf-8"))
    file = tmp_path_factory.mktemp("upgrade") / "values.yaml"
    file.write_text(yaml.safe_dump(values(keys)), encoding="utf-8")
    apply_crds(FIRST)
    try:
        helm("install", NAMESPACE, FIRST, "--create-namespace", "--values", str(file))
        ready = ("--for=jsonpath={.status.readyReplicas}=1", "--timeout=180s")
        kubectl("wait", "sandboxpools.sandpod.dev/default", "-n", SANDBOXES, *ready)
        yield Release(keys["alice"]["key"], asyncio.run(claim(keys["alice"]["key"])))
    finally:
        remove(NAMESPACE, SANDBOXES)
        apply_crds(CHART)


async def claim(key: str) -> str:
    """Return the handle of a sandbox in which a program runs and a context has a variable."""
    async with Caller(f"{node_url(NAMESPACE)}/mcp", key).connect() as session:
        sandbox = await session.create(name="in-use")
        assert not (await session.call("start_run", code=BEATS, sandbox=sandbox, timeout=900)).is_error
        assert not (await session.python("kept = 41", sandbox=sandbox, context="c")).is_error
    return sandbox


@pytest.fixture(scope="module")
def first(release: Release) -> Seen:
    kubectl("scale", "sandboxpools.sandpod.dev/default", "-n", SANDBOXES, "--replicas=2")
    return look(release)


@pytest.fixture(scope="module")
def refused(first: Seen) -> dict[str, str]:
    """What helm says of upgrades that must not be, by their flag."""
    assert first.replicas == 2
    flags = ("--reuse-values", "--reset-then-reuse-values")
    return {flag: run("helm", "upgrade", "sandpod", CHART, "--namespace", NAMESPACE, flag).stderr for flag in flags}


@pytest.fixture(scope="module")
def upgraded(release: Release, refused: dict[str, str]) -> Seen:
    assert all(refused.values())
    apply_crds(CHART)
    helm("upgrade", NAMESPACE, CHART, "--reset-then-reuse-values")
    return look(release)


@pytest.fixture(scope="module")
def rolled_back(release: Release, upgraded: Seen) -> Seen:
    assert upgraded.digests
    helm("rollback", NAMESPACE)
    return look(release)


def test_upgrade_that_would_leave_out_values_or_has_other_crds_is_refused_with_the_way_on(
    refused: dict[str, str],
) -> None:
    assert "at '/sandboxes': missing properties 'keepNamespaces'" in refused["--reuse-values"]
    said = refused["--reset-then-reuse-values"]
    assert "in the cluster is not the one of chart version" in said
    assert "helm show crds CHART | kubectl apply --server-side --force-conflicts -f -" in said


def test_first_chart_has_crds_of_another_version(first: Seen) -> None:
    # It has no SandboxTenant, so that one stays as it was.
    assert {name for name, digest in first.digests.items() if digest != "none"} == {"sandboxtenants.sandpod.dev"}


def test_upgrade_and_rollback_keep_sandbox_program_context_and_scaled_pool(
    first: Seen, upgraded: Seen, rolled_back: Seen
) -> None:
    assert first.pod == upgraded.pod == rolled_back.pod
    assert first.pod[1] == 0
    assert first.context == upgraded.context == rolled_back.context == "41"
    assert 0 < first.beats < upgraded.beats < rolled_back.beats
    assert (first.replicas, upgraded.replicas, rolled_back.replicas) == (2, 2, 2)


def test_crds_are_those_of_the_chart_after_the_upgrade_and_the_rollback(upgraded: Seen, rolled_back: Seen) -> None:
    crds = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in Path(CHART, "crds").glob("*.yaml")]
    metadata = [each["metadata"] for each in crds]
    wanted = {each["name"]: each["annotations"]["sandpod.dev/spec-digest"] for each in metadata}
    assert upgraded.digests == rolled_back.digests == wanted
