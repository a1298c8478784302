"""Another network profile for a sandbox that runs: what is put in force, what is refused and why, and what is told."""

from typing import Any

import pytest

from sandpod_api import names
from sandpod_api.conditions import Condition, ConditionType, Reason, find
from sandpod_api.metadata_addresses import METADATA
from sandpod_kube.resources import PODS, SANDBOXES, TEMPLATES, Key
from sandpod_operator.manifests.pod import build_pod, find_profile
from sandpod_operator.model.observed import ObservedSandbox
from sandpod_operator.model.pod import Pod
from sandpod_operator.status.network import network_applied, probed, to_relabel
from support.operator.world import (
    SPACE,
    World,
    a_pod,
    a_sandbox,
    a_template,
    running,
    sandbox_object,
    settings,
    template_object,
)

WEB = {"name": "web", "egress": [{"cidr": "192.0.2.0/24", "ports": [443]}]}
NAMED = {"name": "named", "dns": True}
POD = Key("Pod", SPACE, "box")
BOX = Key("Sandbox", SPACE, "box")


def pod_under(profile: str, **template: Any) -> Pod:
    """A pod as the operator makes it and as it runs then, on a node with an address."""
    sandbox, made = a_sandbox(network=profile), a_template(**template)
    found = find_profile(sandbox, made)
    assert found is not None
    return Pod.model_validate(
        {**build_pod(sandbox, made, found, settings()), "status": {**running(), "hostIP": "198.51.100.7"}}
    )


def wish(network: str, *profiles: dict[str, Any], pod: Pod | None = None) -> ObservedSandbox:
    """A sandbox that began without a network, unless another pod is given, and is to have that profile."""
    return ObservedSandbox(
        sandbox=a_sandbox(claimed=30, network=network),
        template=a_template(networkProfiles=list(profiles)),
        pod=pod_under("none") if pod is None else pod,
    )


def applied(state: ObservedSandbox) -> Condition:
    found = network_applied(state)
    assert found is not None
    return found


def test_profile_of_the_template_is_to_be_put_in_force() -> None:
    state = wish("web", WEB)
    assert to_relabel(state) == "web"
    assert (applied(state).status, applied(state).reason) == ("False", Reason.APPLYING)


def test_profile_that_is_in_force_is_told_and_left_alone() -> None:
    state = wish("web", WEB, pod=pod_under("web", networkProfiles=[WEB]))
    assert to_relabel(state) is None
    assert (applied(state).status, applied(state).message) == ("True", "Network profile 'web' is in force.")


def test_no_network_is_always_to_be_had_even_with_the_template_gone() -> None:
    state = ObservedSandbox(sandbox=a_sandbox(claimed=30), pod=pod_under("web", networkProfiles=[WEB]))
    assert to_relabel(state) == "none"


@pytest.mark.parametrize(
    ("state", "reason", "words"),
    [
        (wish("other", WEB), Reason.PROFILE_NOT_FOUND, "no network profile 'other'. 'none' stays in force."),
        (wish("named", NAMED), Reason.PROFILE_REFUSED, "has DNS, which a pod can get only at its start"),
        (
            ObservedSandbox(sandbox=a_sandbox(claimed=30, network="web"), pod=pod_under("none")),
            Reason.TEMPLATE_NOT_FOUND,
            "SandboxTemplate 'python'",
        ),
        (
            wish("web", pod=pod_under("web", networkProfiles=[WEB])),
            Reason.PROFILE_NOT_FOUND,
            "no network profile 'web'. Nothing is open.",
        ),
    ],
)
def test_refused_profile_is_told_and_the_pod_left_alone(state: ObservedSandbox, reason: Reason, words: str) -> None:
    assert to_relabel(state) is None
    told = applied(state)
    assert (told.status, told.reason) == ("False", reason)
    assert words in told.message


@pytest.mark.parametrize(
    ("egress", "opened"),
    [
        ([{"cidr": "0.0.0.0/0"}], "10.96.0.1:443"),
        ([{"cidr": "0.0.0.0/0", "exceptCidrs": ["10.0.0.0/8"]}], "198.51.100.7:10250"),
        ([{"cidr": "0.0.0.0/0", "exceptCidrs": ["10.0.0.0/8", "198.51.100.0/24"]}], "169.254.169.254:80"),
        ([{"cidr": "192.0.2.0/24"}, {"cidr": "10.96.0.10/32"}], "10.96.0.10:53"),
    ],
)
def test_profile_that_opens_what_the_runner_tried_in_vain_is_refused(egress: list[Any], opened: str) -> None:
    state = wish("wide", {"name": "wide", "egress": egress})
    assert to_relabel(state) is None
    assert applied(state).message == f"'wide' opens {opened}, which no sandbox may reach. 'none' stays in force."


def test_addresses_are_those_that_this_pod_tried_with_its_nodes_own_among_them() -> None:
    assert list(probed(pod_under("none"))) == [
        "10.96.0.1:443",
        "198.51.100.7:10250",
        *METADATA,
        "10.96.0.10:53",
    ]
    assert list(probed(a_pod())) == []


async def test_sandbox_whose_profile_opens_what_it_may_not_reach_has_no_pod_until_that_is_narrowed() -> None:
    world = World()
    world.close_namespace()
    await world.given(TEMPLATES, template_object(networkProfiles=[{**WEB, "egress": [{"cidr": "0.0.0.0/0"}]}]))
    await world.given(SANDBOXES, sandbox_object(claimed=0, network="web"))
    await world.start_all()
    assert POD not in world.api.objects
    assert (world.sandbox().status.phase, world.sandbox().status.reason) == ("Pending", Reason.PROFILE_REFUSED)
    await world.change(Key("SandboxTemplate", SPACE, "python"), spec=template_object(networkProfiles=[WEB])["spec"])
    assert label(world) == "web"


async def ready_world() -> World:
    world = World()
    world.close_namespace()
    await world.given(TEMPLATES, template_object(networkProfiles=[WEB]))
    await world.given(SANDBOXES, sandbox_object(claimed=0))
    await world.start_all()
    return world


async def changed(world: World, network: str) -> None:
    old = world.api.objects[BOX]
    meta = {**old["metadata"], "generation": old["metadata"]["generation"] + 1}
    await world.change(BOX, metadata=meta, spec={**old["spec"], "network": network})


def label(world: World) -> str:
    found: str = world.api.objects[POD]["metadata"]["labels"][names.LABEL_NETWORK]
    return found


async def test_live_sandbox_gets_another_profile_and_back_and_tells_it() -> None:
    world = await ready_world()
    uid = world.api.objects[POD]["metadata"]["uid"]
    assert world.sandbox().status.network == "none"
    for network in ("web", "none"):
        await changed(world, network)
        status = world.sandbox().status
        assert (label(world), status.network, status.phase) == (network, network, "Ready")
        assert {"NetworkApplied", "NetworkIsolated"} <= {c.type for c in status.conditions if c.status == "True"}
    assert world.api.objects[POD]["metadata"]["uid"] == uid
    assert [e.message for e in world.events if e.reason == "NetworkChanged"] == [
        "Network profile 'web' has replaced 'none'.",
        "Network profile 'none' has replaced 'web'.",
    ]


async def test_refused_change_is_told_once_and_undone_by_the_wish_for_what_is_in_force() -> None:
    world = await ready_world()
    world.api.writes.clear()
    await changed(world, "other")
    assert (label(world), world.sandbox().status.network) == ("none", "none")
    assert world.api.writes == [("patch_status", "Sandbox")]
    assert [(e.reason, e.kind) for e in world.events][-1] == (Reason.PROFILE_NOT_FOUND, "Warning")
    await changed(world, "none")
    found = find(world.sandbox().status.conditions, ConditionType.NETWORK_APPLIED)
    assert found is not None
    assert found.status == "True"
    assert [e.reason for e in world.events].count(Reason.PROFILE_NOT_FOUND) == 1


async def test_refused_profile_is_put_in_force_once_the_template_has_it() -> None:
    world = await ready_world()
    await changed(world, "late")
    assert label(world) == "none"
    spec = template_object(networkProfiles=[WEB, {**WEB, "name": "late"}])["spec"]
    await world.change(Key("SandboxTemplate", SPACE, "python"), spec=spec)
    assert (label(world), world.sandbox().status.network) == ("late", "late")


async def test_pod_that_changed_meanwhile_is_looked_at_again_before_its_label_is_changed() -> None:
    world = await ready_world()
    # The event of this has not come yet.
    world.api.set(PODS, {**world.api.objects[POD], "status": {**running(), "hostIP": "192.0.2.9"}})
    await changed(world, "web")
    assert label(world) == "web"


async def test_sandbox_that_is_over_keeps_what_was_told() -> None:
    world = await ready_world()
    await changed(world, "web")
    await world.gone(POD)
    await changed(world, "none")
    status = world.sandbox().status
    assert (status.phase, status.network) == ("Failed", "web")
