"""User namespaces are used where every node that may run a pod says that its runtime has them, and nowhere else."""

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, cast

import pytest

from sandpod_kube.errors import DeniedError, NotFoundError, UnreachableError
from sandpod_kube.resources import NODES, Resource
from sandpod_operator.controllers import nodes as nodes_module
from sandpod_operator.controllers.nodes import Nodes
from sandpod_operator.model.observed import Kernel
from support.operator.world import a_template

if TYPE_CHECKING:
    from sandpod_kube.client import KubeClient


def node(*handlers: str, labels: dict[str, str] | None = None, taints: tuple[dict[str, str], ...] = ()) -> Any:
    """A node whose handlers of those names have user namespaces, in the shape of Kubernetes 1.34."""
    told = [{"name": name, "features": {"recursiveReadOnlyMounts": True, "userNamespaces": True}} for name in handlers]
    plain = [{"name": "old", "features": {"recursiveReadOnlyMounts": True, "userNamespaces": False}}, {"name": "bare"}]
    return {
        "metadata": {"name": "n", "labels": labels},
        "spec": {"taints": list(taints)} if taints else {},
        "status": {"runtimeHandlers": [*told, *plain], "nodeInfo": {"bootID": "b", "kernelVersion": "6.1"}},
    }


def runtime_class(handler: str, said: str | None = "true", **scheduling: Any) -> Any:
    annotations = {"sandpod.dev/user-namespaces": said} if said is not None else None
    return {"metadata": {"annotations": annotations}, "handler": handler, "scheduling": scheduling or None}


class Api:
    """What the API server answers, and how often it was asked."""

    def __init__(self, *nodes: Any, classes: dict[str, Any] | None = None, error: Exception | None = None) -> None:
        self.nodes = nodes
        self.classes = classes or {}
        self.error = error
        self.asked: list[str] = []

    async def get(self, resource: Resource, namespace: str, name: str) -> dict[str, Any]:
        self.asked.append(f"{resource.kind} {name}{namespace}")
        if self.error is not None:
            raise self.error
        if resource is NODES:
            return dict(self.nodes[0])
        if name not in self.classes:
            raise NotFoundError(404, "NotFound", "no such class")
        return dict(self.classes[name])

    async def pages(self, resource: Resource, namespace: str) -> AsyncIterator[dict[str, Any]]:
        self.asked.append(f"{resource.plural}{namespace}")
        if self.error is not None:
            raise self.error
        for each in self.nodes:
            yield each


def a_nodes(api: Api) -> Nodes:
    return Nodes(cast("KubeClient", api))


SICK = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}
GPU = {"key": "gpu", "value": "yes", "effect": "NoSchedule"}
SOFT = {"key": "gpu", "value": "yes", "effect": "PreferNoSchedule"}
TOLERATION = {"key": "gpu", "operator": "Equal", "value": "yes"}
CASES: dict[str, tuple[list[Any], dict[str, Any], bool]] = {
    "the only node can": ([node("")], {}, True),
    "the only node can't": ([node("runc")], {}, False),
    "a node says nothing": ([{"metadata": {"name": "n"}, "status": {}}], {}, False),
    "no node": ([], {}, False),
    "one of two can't": ([node(""), node()], {}, False),
    "the one that can't is not selected": ([node("", labels={"a": "b"}), node()], {"nodeSelector": {"a": "b"}}, True),
    "none is selected": ([node("")], {"nodeSelector": {"a": "b"}}, False),
    "the one that can't is tainted": ([node(""), node(taints=(GPU,))], {}, True),
    "the one that can't is tainted for others": ([node(""), node(taints=(GPU,))], {"tolerations": [TOLERATION]}, False),
    "its toleration is for another value": (
        [node(""), node(taints=(GPU,))],
        {"tolerations": [{**TOLERATION, "value": "no"}]},
        True,
    ),
    "its toleration is for another effect": (
        [node(""), node(taints=(GPU,))],
        {"tolerations": [{**TOLERATION, "effect": "NoExecute"}]},
        True,
    ),
    "all taints are tolerated": ([node(""), node(taints=(GPU,))], {"tolerations": [{"operator": "Exists"}]}, False),
    "the one that can't is shunned only": ([node(""), node(taints=(SOFT,))], {}, False),
    "the one that can't is sick and may recover": ([node(""), node(taints=(SICK,))], {}, False),
}


@pytest.mark.parametrize("case", CASES)
async def test_every_node_that_may_run_the_pod_has_to_say_that_it_can(case: str) -> None:
    nodes, template, possible = CASES[case]
    assert await a_nodes(Api(*nodes)).give_user_namespaces(a_template(**template).spec) is possible


CLASSES: dict[str, tuple[Any, bool]] = {
    "declared": (runtime_class("kata"), True),
    "declared, of a handler that can't": (runtime_class("old"), False),
    "declared, of a handler that says nothing": (runtime_class("bare"), False),
    "not declared": (runtime_class("kata", None), False),
    "declared not to": (runtime_class("kata", "false"), False),
    "declared, on nodes of its own": (runtime_class("kata", nodeSelector={"a": "b"}), False),
}


@pytest.mark.parametrize("case", CLASSES)
async def test_runtime_class_gives_one_where_it_says_so_and_its_handler_too(case: str) -> None:
    made, possible = CLASSES[case]
    api = Api(node("", "kata"), node("", labels={"a": "b"}) if "own" in case else node("kata"), classes={"it": made})
    assert await a_nodes(api).give_user_namespaces(a_template(runtimeClassName="it").spec) is possible


async def test_without_the_right_to_look_or_without_the_class_nothing_is_claimed() -> None:
    refused = DeniedError(403, "Forbidden", "nodes is forbidden")
    closed = Api(node(""), error=refused)
    nodes = a_nodes(closed)
    assert [await nodes.give_user_namespaces(a_template().spec) for _ in range(3)] == [False] * 3
    assert closed.asked == ["nodes"]
    assert await a_nodes(Api(node(""))).give_user_namespaces(a_template(runtimeClassName="gone").spec) is False
    assert await a_nodes(Api(node(""), error=refused)).kernel("n") == Kernel()
    assert await a_nodes(Api(node(""))).kernel("n") == Kernel("b", "6.1")


async def test_api_server_that_does_not_answer_is_no_answer() -> None:
    with pytest.raises(UnreachableError):
        await a_nodes(Api(error=UnreachableError("late"))).give_user_namespaces(a_template().spec)


async def test_nodes_and_classes_are_read_once_for_many_pods_and_again_after_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    api = Api(node("", "kata"), classes={"it": runtime_class("kata")})
    nodes = a_nodes(api)
    for _ in range(3):
        assert await nodes.give_user_namespaces(a_template(runtimeClassName="it").spec)
    assert api.asked == ["nodes", "RuntimeClass it"]
    api.nodes = (node(),)
    monkeypatch.setattr(nodes_module, "_REFRESH", 0.0)
    assert not await nodes.give_user_namespaces(a_template(runtimeClassName="it").spec)
