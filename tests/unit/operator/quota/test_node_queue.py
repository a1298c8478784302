"""Claims that no node takes: few of them have pods, their owners come in turn, and none holds up the rest for long."""

from typing import Any, Final

from sandpod_api.conditions import ConditionType, find
from sandpod_api.types import Sandbox
from sandpod_kube.resources import SANDBOXES, TEMPLATES, Key
from sandpod_operator.quota.node_queue import COUNTS, MOST, NodeQueue
from support.operator.world import NOW, SPACE, World, running, sandbox_object, template_object

FULL: Final = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes: no cpu."}


class FullNodes(World):
    """No node takes a pod, unless the test says so."""

    async def claims(self, *claims: str, template: str = "python") -> None:
        """Make Sandboxes; the owner is named before a hyphen."""
        for name in claims:
            made = sandbox_object(name, claimed=0)
            made["metadata"]["creationTimestamp"] = made["spec"]["claim"]["time"]
            made["spec"]["claim"]["owner"] = name.partition("-")[0]
            made["spec"]["templateRef"]["name"] = template
            await self.given(SANDBOXES, made)
            await self.looked_at()

    async def looked_at(self) -> None:
        """The scheduler has looked at each pod."""
        while new := [k for k, pod in self.api.objects.items() if k.kind == "Pod" and "status" not in pod]:
            for key in new:
                await self.change(key, status={"phase": "Pending", "conditions": [FULL]})

    async def taken(self, name: str) -> None:
        """A node has room for that pod."""
        key = Key("Pod", SPACE, name)
        await self.change(key, spec={**self.api.objects[key]["spec"], "nodeName": "node-1"}, status=running())
        await self.looked_at()

    def pods(self) -> set[str]:
        return set(self.named("Pod"))


async def full_nodes(**templates: Any) -> FullNodes:
    world = FullNodes()
    world.close_namespace()
    await world.given(TEMPLATES, template_object(**templates))
    return world


def many(*numbers: int) -> list[str]:
    return [f"many-{number:02}" for number in numbers]


async def test_few_claims_have_pods_and_who_has_none_in_the_schedulers_queue_is_next() -> None:
    world = await full_nodes()
    await world.claims(*many(*range(20)), "one-00")
    assert world.pods() == {*many(*range(MOST))}
    ready = find(world.sandbox("one-00").status.conditions, ConditionType.READY)
    assert ready is not None
    assert ready.reason == "Unschedulable"
    assert ready.message == "No node can run the pod: Others of its template wait for a node before it."
    await world.taken("many-00")
    assert world.pods() == {*many(0, 1, 2, 3), "one-00"}
    await world.taken("one-00")
    assert world.pods() == {*many(0, 1, 2, 3, 4), "one-00"}


async def test_caller_who_gives_up_lets_the_next_one_in() -> None:
    world = await full_nodes()
    await world.claims(*many(*range(6)))
    for gone in (5, 1):  # one that waits behind, and one that has a pod
        await world.gone(Key("Sandbox", SPACE, f"many-{gone:02}"))
        await world.looked_at()
    assert world.pods() - {"many-01"} == {*many(0, 2, 3, 4)}


async def test_claims_that_no_node_ever_takes_hold_up_others_for_a_moment_alone() -> None:
    world = await full_nodes()
    await world.claims(*many(*range(6)))
    await world.after(COUNTS.total_seconds() - 1)
    assert world.pods() == {*many(0, 1, 2, 3)}
    await world.after(1)
    assert world.pods() == {*many(0, 1, 2, 3, 4, 5)}


async def test_claims_of_another_template_wait_for_nodes_of_their_own() -> None:
    world = await full_nodes()
    other = template_object()
    other["metadata"]["name"] = "other"
    await world.given(TEMPLATES, other)
    await world.claims(*many(*range(5)))
    await world.claims("other-00", template="other")
    assert world.pods() == {*many(0, 1, 2, 3), "other-00"}


def test_claim_that_was_let_in_is_not_held_behind_itself() -> None:
    woken: list[Key] = []
    queue = NodeQueue(woken.append, lambda: NOW)
    claims = [Sandbox.model_validate(sandbox_object(name, claimed=0)) for name in many(*range(MOST + 1))]
    for claim in claims[:MOST]:
        queue.note(claim, lacks_node=True, placed=False)
    assert queue.held(claims[MOST]) is not None
    queue.gone(claims[0].metadata.uid)
    assert [key.name for key in woken] == many(MOST)
    for _ in range(2):  # as where the quota refuses its pod
        assert queue.held(claims[MOST]) is None
