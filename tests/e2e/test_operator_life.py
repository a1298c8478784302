"""Sandboxes under a real operator: how they start, why they don't, and how they end."""

import asyncio
import json
from collections.abc import Iterator

import pytest

from support.cluster.cluster import Cluster, until
from support.operator.process import IMAGE, Objects, OperatorProcess, namespace, running

pytestmark = pytest.mark.usefixtures("operator")


@pytest.fixture(scope="module")
def operator(objects: Objects, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperatorProcess]:
    with running(tmp_path_factory.mktemp("operator") / "log", objects.namespace) as made:
        asyncio.run(objects.template())
        yield made


def conditions(status: dict[str, object]) -> set[str]:
    listed = status["conditions"]
    assert isinstance(listed, list)
    return {f"{c['type']}={c['status']}/{c['reason']}" for c in listed}


async def test_sandbox_becomes_ready_and_describe_tells_its_story(objects: Objects) -> None:
    await objects.sandbox("good")
    status = await objects.phase("good", "Ready")
    assert conditions(status) == {
        "PodScheduled=True/Scheduled",
        "NetworkIsolated=True/Probed",
        "NetworkApplied=True/Applied",
        "Ready=True/Ready",
        "Expired=False/Alive",
    }
    assert status["image"] == IMAGE

    async def told() -> str:
        text = await objects.cluster.kubectl("describe", "sbx", "good", "-n", objects.namespace)
        return text if "PodCreated" in text and "accepts runs on" in text else ""

    await until("the story in describe", told, within=60)
    pod = await objects.cluster.pod_of("good")
    owner = pod["metadata"]["ownerReferences"][0]
    assert (owner["kind"], owner["name"], owner["controller"]) == ("Sandbox", "good", True)


async def test_namespace_is_closed_and_stays_closed(objects: Objects) -> None:
    await objects.sandbox("closed")
    await objects.phase("closed", "Ready")
    await objects.cluster.kubectl("delete", "netpol", "sandpod-deny-all", "-n", objects.namespace)
    opened = json.dumps({"spec": {"egress": [{}], "podSelector": {"matchLabels": {"nobody": "at-all"}}}})

    async def spec() -> dict[str, object]:
        found: dict[str, object] = (await objects.cluster.get("networkpolicies", "sandpod-deny-all")).get("spec", {})
        return found

    async def closed() -> bool:
        found = await spec()
        selector = {
            "matchLabels": {"app.kubernetes.io/managed-by": "sandpod"},
            "matchExpressions": [{"key": "sandpod.dev/sandbox", "operator": "Exists"}],
        }
        return found == {"podSelector": selector, "policyTypes": ["Ingress", "Egress"]}

    await until("deny-all is back", closed, within=60)
    await objects.cluster.kubectl(
        "patch", "netpol", "sandpod-deny-all", "-n", objects.namespace, "--type=merge", "-p", opened
    )
    await until("deny-all is as it must be", closed, within=60)


@pytest.mark.promise("start-failures")
async def test_image_that_does_not_exist_is_told_within_seconds(objects: Objects) -> None:
    await objects.template("missing", image="nosuch.invalid/x:1")
    await objects.sandbox("no-image", templateRef={"name": "missing"})
    assert "nosuch.invalid/x:1" in await objects.reason("no-image", "ImagePullFailed", within=60)


@pytest.mark.promise("start-failures")
async def test_sandbox_that_fits_no_node_is_told(objects: Objects) -> None:
    await objects.template("huge", resources={"cpu": "1000", "cpuRequest": "1000"})
    await objects.sandbox("too-big", templateRef={"name": "huge"})
    assert "Insufficient cpu" in await objects.reason("too-big", "Unschedulable", within=60)


async def test_template_that_does_not_exist_is_told_and_found_when_it_comes(objects: Objects) -> None:
    await objects.sandbox("early", templateRef={"name": "late"})
    assert "'late'" in await objects.reason("early", "TemplateNotFound")
    await objects.template("late")
    await objects.phase("early", "Ready")


async def test_pod_that_admission_refuses_is_told(objects: Objects) -> None:
    await objects.template("strange", runtimeClassName="no-such-class")
    await objects.sandbox("refused", templateRef={"name": "strange"})
    assert "no-such-class" in await objects.reason("refused", "AdmissionRefused")


async def test_image_without_a_runner_is_told(objects: Objects) -> None:
    await objects.template("plain", image=await objects.pause_image(), imagePullPolicy="Never")
    await objects.sandbox("no-runner", templateRef={"name": "plain"})
    assert "set `runner: Injected` in the template" in await objects.reason("no-runner", "StartFailed")


@pytest.mark.promise("network-enforced")
async def test_profile_that_opens_what_no_sandbox_may_reach_is_told_and_no_pod_made(objects: Objects) -> None:
    await objects.template("open", networkProfiles=[{"name": "all", "egress": [{"cidr": "0.0.0.0/0"}]}])
    await objects.sandbox("leaky", templateRef={"name": "open"}, network="all")
    assert "'all' opens" in await objects.reason("leaky", "ProfileRefused")
    assert "leaky" not in {p["metadata"]["name"] for p in await objects.cluster.items("pods")}
    narrow = {"name": "all", "egress": [{"cidr": "192.0.2.0/24"}]}
    await objects.template("open", networkProfiles=[narrow])
    await objects.phase("leaky", "Ready")


async def test_deleted_pod_of_a_held_sandbox_is_told_and_not_made_anew(objects: Objects) -> None:
    await objects.sandbox("lost")
    await objects.phase("lost", "Ready")
    await objects.cluster.kubectl("delete", "pod", "lost", "-n", objects.namespace)
    status = await objects.phase("lost", "Failed")
    assert status["reason"] == "NodeLost"
    await objects.gone("sandboxes", "lost")
    await objects.gone("pods", "lost")


async def test_runner_that_ends_is_told(objects: Objects) -> None:
    await objects.sandbox("ended")
    await objects.phase("ended", "Ready")
    # Process 1 can't be killed from inside; the deadline ends it from outside, as a node would.
    patch = json.dumps({"spec": {"activeDeadlineSeconds": 1}})
    await objects.cluster.kubectl("patch", "pod", "ended", "-n", objects.namespace, "-p", patch)
    assert "activeDeadlineSeconds" in await objects.reason("ended", "PodFailed")


async def test_unused_sandbox_expires_is_told_and_goes(objects: Objects) -> None:
    await objects.sandbox("idle")
    await objects.phase("idle", "Ready")
    await change(objects, "idle", lifetime={"idleTimeout": 1})
    status = await objects.phase("idle", "Expired")
    assert status["reason"] == "IdleTimeout"
    await objects.gone("pods", "idle")
    await objects.gone("sandboxes", "idle")


async def test_deleted_sandbox_takes_its_pod_with_it(objects: Objects) -> None:
    await objects.sandbox("closed-by-hand")
    await objects.phase("closed-by-hand", "Ready")
    await objects.cluster.kubectl("delete", "sbx", "closed-by-hand", "-n", objects.namespace)
    await objects.gone("pods", "closed-by-hand")


async def change(objects: Objects, name: str, **spec: object) -> None:
    patch = json.dumps({"spec": spec})
    await objects.cluster.kubectl("patch", "sbx", name, "-n", objects.namespace, "--type=merge", "-p", patch)


@pytest.mark.promise("status-kept", "start-failures")
async def test_quota_is_told_and_exactly_one_pod_is_made_once_there_is_room(
    cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> None:
    assert cluster.namespace
    with namespace("quota") as own:
        objects = Objects(cluster=own)
        quota = {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "none"},
            "spec": {"hard": {"pods": "0"}},
        }
        await objects.put(quota)
        log = tmp_path_factory.mktemp("quota") / "log"
        operator = OperatorProcess(log, own.sandboxes)
        try:
            await operator.is_active()
            await objects.template()
            await objects.sandbox("waits")
            assert "exceeded quota" in await objects.reason("waits", "QuotaExceeded", within=60)
            await objects.put({**quota, "spec": {"hard": {"pods": "5"}}})
            await objects.phase("waits", "Ready", within=90)
            assert [p["metadata"]["name"] for p in await own.items("pods")] == ["waits"]
        finally:
            operator.kill()
