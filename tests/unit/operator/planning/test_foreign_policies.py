"""Policies of others that open something to sandboxes: which these are, and how they are told of and forgotten."""

from typing import Any

import pytest

from sandpod_api import names
from sandpod_api.types import NetworkProfile
from sandpod_kube.resources import POLICIES, TEMPLATES, Key
from sandpod_operator.planning.network_policies import MAX_WIDENING, build_deny_all, build_profile, find_widening
from support.operator.world import SPACE, World, a_template, metadata, template_object

OPEN = {"policyTypes": ["Egress"], "egress": [{}]}
MINE = {names.LABEL_MANAGED_BY: names.MANAGED_BY}


def policy(name: str = "theirs", *, labels: Any = None, selector: Any = None, **spec: Any) -> dict[str, Any]:
    """One that opens all egress of all pods, unless it is told otherwise."""
    made = metadata(name, **({"labels": labels} if labels else {}))
    return {"metadata": made, "spec": {"podSelector": selector or {}, **(spec or OPEN)}}


def opened(manifest: dict[str, Any]) -> tuple[str, ...]:
    found = find_widening(manifest, {"python"})
    return tuple(found.message.split(" opens ")[1].split(" to ")[0].split(" and ")) if found is not None else ()


def need(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"key": key, "operator": operator, **({"values": list(values)} if values else {})}


@pytest.mark.parametrize(
    ("spec", "directions"),
    [
        (OPEN, ("egress",)),
        ({"policyTypes": ["Ingress"], "ingress": [{"from": [{"podSelector": {}}]}]}, ("ingress",)),
        ({"policyTypes": ["Ingress", "Egress"], "ingress": [{}], "egress": [{}]}, ("ingress", "egress")),
        ({"ingress": [{}]}, ("ingress",)),
        ({"egress": [{}]}, ("egress",)),
        ({"policyTypes": ["Ingress", "Egress"]}, ()),
        ({"policyTypes": ["Ingress", "Egress"], "egress": []}, ()),
        # Rules of a direction that it is not about do nothing.
        ({"policyTypes": ["Ingress"], "egress": [{}]}, ()),
    ],
)
def test_directions_are_those_in_which_it_allows_anything(spec: dict[str, Any], directions: tuple[str, ...]) -> None:
    assert opened(policy(**spec)) == directions


@pytest.mark.parametrize(
    "selector",
    [
        {},
        {"matchLabels": MINE},
        {"matchLabels": {**MINE, names.LABEL_TEMPLATE: "python", names.LABEL_NETWORK: "none"}},
        {"matchExpressions": [need(names.LABEL_SANDBOX, "Exists")]},
        {"matchExpressions": [need(names.LABEL_MANAGED_BY, "In", "helm", "sandpod")]},
        {"matchExpressions": [need(names.LABEL_NETWORK, "In", "a", "b"), need(names.LABEL_NETWORK, "NotIn", "a")]},
        {"matchExpressions": [need(names.LABEL_NETWORK, "NotIn", "none")]},
        {"matchExpressions": [need("app", "NotIn", "web"), need("job", "DoesNotExist")]},
    ],
)
def test_policy_that_can_select_a_sandbox_is_told_of(selector: dict[str, Any]) -> None:
    assert opened(policy(selector=selector)) == ("egress",)


@pytest.mark.parametrize(
    "selector",
    [
        {"matchLabels": {"app": "web"}},
        {"matchLabels": {names.LABEL_MANAGED_BY: "Helm"}},
        {"matchLabels": {**MINE, "app": "web"}},
        {"matchExpressions": [need("app", "Exists")]},
        {"matchExpressions": [need("app", "In", "web", "db")]},
        {"matchExpressions": [need(names.LABEL_SANDBOX, "DoesNotExist")]},
        {"matchExpressions": [need(names.LABEL_MANAGED_BY, "NotIn", "sandpod")]},
        {"matchExpressions": [need(names.LABEL_NETWORK, "In", "a"), need(names.LABEL_NETWORK, "NotIn", "a")]},
        {"matchLabels": {names.LABEL_NETWORK: "a"}, "matchExpressions": [need(names.LABEL_NETWORK, "In", "b")]},
    ],
)
def test_policy_that_no_sandbox_can_be_selected_by_is_none_of_ours_to_tell(selector: dict[str, Any]) -> None:
    assert opened(policy(selector=selector)) == ()


def test_sandpods_own_are_not_told_of() -> None:
    profile = NetworkProfile.model_validate({"name": "web", "egress": [{"cidr": "0.0.0.0/0"}]})
    made = build_profile(a_template(), profile)
    assert opened(made) == ()
    # Its template is gone, and Kubernetes takes it away with that.
    assert find_widening(made, set()) is None
    assert opened(build_deny_all(SPACE)) == ()


def test_labels_alone_make_no_policy_sandpods_own() -> None:
    assert opened(policy(labels=MINE)) == ("egress",)
    assert opened(policy(labels={**MINE, names.LABEL_TEMPLATE: "nowhere"})) == ("egress",)
    assert opened(policy(labels={names.LABEL_TEMPLATE: "python"})) == ("egress",)


def told(world: World) -> list[tuple[str, str, str]]:
    return [(e.key.name, e.reason, e.kind) for e in world.events if e.resource is POLICIES]


def measured(world: World) -> set[str]:
    """Return the policies that the metric names."""
    found = (s for m in world.metrics.registry.collect() for s in m.samples)
    return {s.labels["policy"] for s in found if s.name == "sandpod_network_policy_widening" and s.value == 1}


async def test_policy_is_told_of_and_measured_until_it_is_deleted(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    world.close_namespace()
    await world.given(POLICIES, policy())
    assert set(told(world)) == {("theirs", "NetworkWidened", "Warning")}
    assert world.events[0].message.startswith(
        "It is not one of Sandpod's and opens egress to sandbox pods. Policies are additive: delete it"
    )
    assert measured(world) == {"theirs"}
    assert "NetworkPolicy boxes/theirs is none of Sandpod's" in caplog.text
    # Nothing is done about it but that.
    assert world.api.writes == [("apply", "NetworkPolicy")]
    await world.gone(Key("NetworkPolicy", SPACE, "theirs"))
    assert measured(world) == set()


async def test_policy_that_is_narrowed_is_forgotten() -> None:
    world = World()
    await world.given(POLICIES, policy())
    assert measured(world) == {"theirs"}
    await world.change(Key("NetworkPolicy", SPACE, "theirs"), spec=policy(selector={"matchLabels": {"a": "b"}})["spec"])
    assert measured(world) == set()


async def test_policy_is_told_of_again_with_every_full_list_since_events_are_forgotten() -> None:
    world = World()
    await world.given(POLICIES, policy())
    before = len(told(world))
    await world.dispatcher.resync()
    await world.settle()
    assert len(told(world)) == before + 1
    # Of the same words, so that the API server takes it only where it is not there any more.
    assert len({e.message for e in world.events}) == 1


async def test_only_so_many_policies_are_told_of() -> None:
    world = World()
    for number in range(MAX_WIDENING + 5):
        world.store.put(POLICIES, world.api.set(POLICIES, policy(f"p{number:03}")))
    world.close_namespace()
    await world.settle()
    assert len(measured(world)) == MAX_WIDENING


async def test_policy_of_somebody_else_that_names_a_template_is_left_alone() -> None:
    world = World()
    await world.given(POLICIES, policy(labels={names.LABEL_TEMPLATE: "python"}))
    await world.given(TEMPLATES, template_object())
    assert Key("NetworkPolicy", SPACE, "theirs") in world.api.objects
