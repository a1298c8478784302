"""What nodes say of themselves, where the operator may look at them.

A node reports for each handler of its container runtime whether pods can have a user namespace of their own. For a
RuntimeClass that is not enough, since gVisor's handler reports support and then starts no such pod: the administrator
declares it with an annotation on the class.
"""

import asyncio
import time
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from sandpod_api import names
from sandpod_api.templates import SandboxTemplateSpec, Toleration
from sandpod_kube import resources
from sandpod_kube.client import KubeClient
from sandpod_kube.errors import DeniedError, NotFoundError
from sandpod_operator.model.observed import Kernel

_REFRESH: Final = 300.0  # seconds; nodes come and change rarely, and a list of thousands is not small
_KEEPS_AWAY: Final = frozenset({"NoSchedule", "NoExecute"})


class _Node(NamedTuple):
    labels: Mapping[str, str]
    taints: list[tuple[str, str, str]]  # key, value and effect of those that keep pods away
    handlers: set[str]  # that can give a pod its own user namespace; the empty name is the default one


class _RuntimeClass(NamedTuple):
    """The default stands for pods without one."""

    handler: str = ""  # of the node's container runtime
    declared: bool = True  # whether its annotation says that it may be used with a user namespace
    node_selector: Mapping[str, str] = {}  # where its pods run


class Nodes:
    """The cluster's nodes. Every answer is the cautious one where the operator may not look.

    Each call raises ClusterError where the API server does not answer.
    """

    def __init__(self, cluster: KubeClient) -> None:
        self._cluster = cluster
        self._lock = asyncio.Lock()
        self._read_at = -_REFRESH
        self._nodes: list[_Node] = []
        self._classes: dict[str | None, _RuntimeClass] = {}

    async def kernel(self, node: str) -> Kernel:
        """Return a node's kernel, an unknown one where the operator may not look."""
        try:
            manifest = await self._cluster.get(resources.NODES, "", node)
        except DeniedError:
            return Kernel()
        info = (manifest.get("status") or {}).get("nodeInfo") or {}
        return Kernel(str(info.get("bootID", "")), str(info.get("kernelVersion", "")))

    async def give_user_namespaces(self, spec: SandboxTemplateSpec) -> bool:
        """Return whether every node that may run the template's pods can give each a user namespace of its own.

        One that can't would never start a pod that asks, and the scheduler does not know of it.
        """
        name = spec.runtime_class_name
        async with self._lock:
            if time.monotonic() - self._read_at >= _REFRESH:
                await self._refresh()
            if name is not None and name not in self._classes:
                try:
                    found = await self._cluster.get(resources.RUNTIME_CLASSES, "", name)
                except (DeniedError, NotFoundError):
                    return False
                annotations = found["metadata"].get("annotations") or {}
                self._classes[name] = _RuntimeClass(
                    handler=found["handler"],
                    declared=annotations.get(names.ANNOTATION_USER_NAMESPACES) == "true",
                    node_selector=(found.get("scheduling") or {}).get("nodeSelector") or {},
                )
        runtime = self._classes[name]
        wanted = {**runtime.node_selector, **spec.node_selector}.items()
        nodes = [node for node in self._nodes if wanted <= node.labels.items() and _takes(node, spec.tolerations)]
        return runtime.declared and bool(nodes) and all(runtime.handler in node.handlers for node in nodes)

    async def _refresh(self) -> None:
        try:
            self._nodes = [_node(each) async for each in self._cluster.pages(resources.NODES, "")]
        except DeniedError:
            self._nodes = []  # and not asked again for each pod
        self._classes = {None: _RuntimeClass()}
        self._read_at = time.monotonic()


def _node(manifest: dict[str, Any]) -> _Node:
    taints = (manifest.get("spec") or {}).get("taints") or ()
    handlers = (manifest.get("status") or {}).get("runtimeHandlers") or ()
    lasting = (t for t in taints if t["effect"] in _KEEPS_AWAY and not t["key"].startswith("node.kubernetes.io/"))
    return _Node(
        labels=manifest["metadata"].get("labels") or {},
        taints=[(taint["key"], taint.get("value", ""), taint["effect"]) for taint in lasting],
        handlers={h.get("name", "") for h in handlers if (h.get("features") or {}).get("userNamespaces")},
    )


def _takes(node: _Node, tolerations: list[Toleration]) -> bool:
    return all(
        any(
            each.key in {"", key} and (each.operator == "Exists" or each.value == value) and each.effect in {"", effect}
            for each in tolerations
        )
        for key, value, effect in node.taints
    )
