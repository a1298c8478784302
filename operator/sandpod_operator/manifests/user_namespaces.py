"""Whether a template's pods can have a user namespace of their own: as each node that may run them reports.

A node reports it for each handler of its container runtime. For a RuntimeClass that is not enough, since gVisor's
handler reports support and then starts no such pod: the administrator declares it with an annotation on the class.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from sandpod_api import names
from sandpod_api.templates import SandboxTemplateSpec, Toleration

_KEEPS_AWAY = frozenset({"NoSchedule", "NoExecute"})


@dataclass(frozen=True, slots=True)
class NodeRuntimes:
    """What a node reports about its container runtime, and where it stands for the scheduler."""

    labels: Mapping[str, str]
    taints: tuple[tuple[str, str, str], ...]  # key, value and effect of those that keep pods away
    handlers: frozenset[str]  # that can give a pod its own user namespace; the empty name is the default one

    @classmethod
    def of_node(cls, manifest: dict[str, Any]) -> Self:
        """Return what a Node object reports."""
        taints = (manifest.get("spec") or {}).get("taints") or ()
        handlers = (manifest.get("status") or {}).get("runtimeHandlers") or ()
        return cls(
            labels=manifest["metadata"].get("labels") or {},
            taints=tuple(
                (each["key"], each.get("value", ""), each["effect"])
                for each in taints
                if each["effect"] in _KEEPS_AWAY and not each["key"].startswith("node.kubernetes.io/")
            ),
            handlers=frozenset(
                each.get("name", "") for each in handlers if (each.get("features") or {}).get("userNamespaces")
            ),
        )


@dataclass(frozen=True, slots=True)
class RuntimeClass:
    """A RuntimeClass; the default stands for pods without one."""

    handler: str = ""  # of the node's container runtime
    declared: bool = True  # whether its annotation says that it may be used with a user namespace
    node_selector: Mapping[str, str] = field(default_factory=dict)  # where its pods run

    @classmethod
    def of(cls, manifest: dict[str, Any]) -> Self:
        """Return what a RuntimeClass object declares."""
        annotations = manifest["metadata"].get("annotations") or {}
        return cls(
            handler=manifest["handler"],
            declared=annotations.get(names.ANNOTATION_USER_NAMESPACES) == "true",
            node_selector=(manifest.get("scheduling") or {}).get("nodeSelector") or {},
        )


def possible(spec: SandboxTemplateSpec, runtime: RuntimeClass, nodes: Sequence[NodeRuntimes]) -> bool:
    """Return whether every node that may run the template's pods can give each a user namespace of its own.

    One that can't would never start a pod that asks, and the scheduler does not know of it.
    """
    wanted = {**runtime.node_selector, **spec.node_selector}.items()
    eligible = [node for node in nodes if wanted <= node.labels.items() and _takes(node, spec.tolerations)]
    return runtime.declared and bool(eligible) and all(runtime.handler in node.handlers for node in eligible)


def _takes(node: NodeRuntimes, tolerations: list[Toleration]) -> bool:
    return all(
        any(
            each.key in {"", key} and (each.operator == "Exists" or each.value == value) and each.effect in {"", effect}
            for each in tolerations
        )
        for key, value, effect in node.taints
    )
