"""Sandboxes under a real operator: how they start, why they don't, and how they end."""

import asyncio
from typing import Any

import pytest

from support.cluster.cluster import until
from support.operator.process import IMAGE, Managed, Objects, OperatorProcess


@pytest.fixture(scope="module")
def objects(managed_namespaces: Managed) -> Objects:
    return managed_namespaces.namespaces["life"]


@pytest.fixture(scope="module")
def operator(managed_namespaces: Managed) -> OperatorProcess:
    return managed_namespaces.operator


def conditions(status: dict[str, object]) -> set[str]:
    listed = status["conditions"]
    assert isinstance(listed, list)
    return {f"{c['type']}={c['status']}/{c['reason']}" for c in listed}


async def test_sandbox_becomes_ready_describe_tells_its_story_and_its_pod_goes_with_it(objects: Objects) -> None:
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
    for reason in ("PodCreated", "Ready"):
        await objects.event("good", reason)
    text = await objects.cluster.kubectl("describe", "sbx", "good", "-n", objects.namespace)
    assert "PodCreated" in text
    assert "accepts runs on" in text
    pod = await objects.cluster.pod_of("good")
    owner = pod["metadata"]["ownerReferences"][0]
    assert (owner["kind"], owner["name"], owner["controller"]) == ("Sandbox", "good", True)
    await objects.delete("sandboxes", "good")
    await objects.gone("pods", "good")


async def test_namespace_is_closed_and_stays_closed(objects: Objects) -> None:
    async def closed() -> bool:
        found = (await objects.cluster.get("networkpolicies", "sandpod-deny-all")).get("spec", {})
        selector = {
            "matchLabels": {"app.kubernetes.io/managed-by": "sandpod"},
            "matchExpressions": [{"key": "sandpod.dev/sandbox", "operator": "Exists"}],
        }
        return bool(found == {"podSelector": selector, "policyTypes": ["Ingress", "Egress"]})

    await until("deny-all is there", closed, within=60)
    await objects.delete("networkpolicies", "sandpod-deny-all")
    await until("deny-all is back", closed, within=60)
    opened = {"spec": {"egress": [{}], "podSelector": {"matchLabels": {"nobody": "at-all"}}}}
    await objects.patch("networkpolicies", "sandpod-deny-all", opened)
    await until("deny-all is as it must be", closed, within=60)


@pytest.mark.promise("start-failures")
async def test_sandbox_that_can_not_start_says_why(objects: Objects) -> None:
    """What it says is there within seconds, for all at once: none holds up another."""
    plain = {"image": await objects.pause_image(), "imagePullPolicy": "Never"}
    failures: dict[str, tuple[dict[str, Any], str, str]] = {
        "no-image": ({"image": "nosuch.invalid/x:1"}, "ImagePullFailed", "nosuch.invalid/x:1"),
        "no-room": ({"resources": {"cpu": "1000", "cpuRequest": "1000"}}, "Unschedulable", "Insufficient cpu"),
        "no-class": ({"runtimeClassName": "no-such-class"}, "AdmissionRefused", "no-such-class"),
        "no-runner": (plain, "StartFailed", "set `runner: Injected` in the template"),
    }
    for name, (template, _, _) in failures.items():
        await objects.template(name, **template)
        await objects.sandbox(name, templateRef={"name": name})

    async def says(name: str) -> bool:
        _, reason, words = failures[name]
        return words in await objects.reason(name, reason, within=60)

    said = dict(zip(failures, await asyncio.gather(*map(says, failures)), strict=True))
    assert said == dict.fromkeys(failures, True)


@pytest.mark.promise("network-enforced")
async def test_sandbox_waits_for_its_template_and_until_its_profile_opens_nothing_that_must_stay_closed(
    objects: Objects,
) -> None:
    await objects.sandbox("early", templateRef={"name": "late"}, network="all")
    assert "'late'" in await objects.reason("early", "TemplateNotFound")
    await objects.parked("late", networkProfiles=[{"name": "all", "egress": [{"cidr": "0.0.0.0/0"}]}])
    assert "'all' opens" in await objects.reason("early", "ProfileRefused")
    assert not await objects.cluster.get("pods", "early")
    await objects.parked("late", networkProfiles=[{"name": "all", "egress": [{"cidr": "192.0.2.0/24"}]}])
    await objects.has_pod("early")


async def deleted_pod(objects: Objects) -> None:
    """What holds a sandbox learns that its pod is gone, and no other is made for it."""
    await objects.delete("pods", "lost")
    status = await objects.phase("lost", "Failed")
    assert status["reason"] == "NodeLost"
    await objects.gone("sandboxes", "lost")
    await objects.gone("pods", "lost")


async def ended_runner(objects: Objects) -> None:
    """Process 1 can't be killed from inside; the deadline ends it from outside, as a node would."""
    await objects.patch("pods", "ended", {"spec": {"activeDeadlineSeconds": 1}})
    assert "activeDeadlineSeconds" in await objects.reason("ended", "PodFailed")


async def unused(objects: Objects) -> None:
    """A sandbox expires, says so and goes, with its pod."""
    await objects.patch("sandboxes", "idle", {"spec": {"lifetime": {"idleTimeout": 1}}})
    status = await objects.phase("idle", "Expired")
    assert status["reason"] == "IdleTimeout"
    await objects.gone("pods", "idle")
    await objects.gone("sandboxes", "idle")


async def test_pod_that_lost_its_owner_is_swept_away(objects: Objects) -> None:
    await objects.parked()
    await objects.sandbox("orphan", templateRef={"name": "parked"})
    await objects.has_pod("orphan")
    await objects.patch("pods", "orphan", {"metadata": {"ownerReferences": None}})
    await objects.delete("sandboxes", "orphan")
    await objects.gone("pods", "orphan")


async def test_sandboxes_end_as_their_pod_or_time_does_and_say_so(objects: Objects) -> None:
    """Side by side, since what has ended stays for a while so that it can be read."""
    ends = {"lost": deleted_pod, "ended": ended_runner, "idle": unused}
    for name in ends:
        await objects.sandbox(name)
    for name in ends:
        await objects.phase(name, "Ready")
    await asyncio.gather(*(end(objects) for end in ends.values()))


async def test_heartbeat_comes_back_through_the_watch(operator: OperatorProcess) -> None:
    ages: list[float] = []

    async def fell() -> bool:
        lines = (await asyncio.to_thread(operator.get, "/metrics")).splitlines()
        line = next(line for line in lines if line.startswith("sandpod_operator_watch_age_seconds{"))
        ages.append(float(line.rpartition(" ")[2]))
        return len(ages) > 1 and ages[-1] < ages[-2]

    await until("a heartbeat's event arrives", fell, within=60)
