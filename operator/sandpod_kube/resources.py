"""The kinds of objects that Sandpod reads or writes, and the paths where the API server has them."""

from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from sandpod_api import names


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind of object."""

    group: str  # empty for the core
    version: str
    plural: str  # its name in paths
    kind: str  # its name in objects
    selector: str = ""  # label selector of those objects that concern the operator; empty means all
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """Return what objects of the kind have as apiVersion."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def header(self) -> dict[str, str]:
        """Return the first two fields of the kind's objects."""
        return {"apiVersion": self.api_version, "kind": self.kind}

    def path(self, namespace: str, name: str = "") -> str:
        """Return the path of an object, or of the namespace's collection."""
        root = "/apis" if self.group else "/api"
        place = f"/namespaces/{namespace}" if self.namespaced else ""
        return f"{root}/{self.api_version}{place}/{self.plural}" + (f"/{name}" if name else "")


_OURS = f"{names.LABEL_MANAGED_BY}={names.MANAGED_BY}"

SANDBOXES: Final = Resource(names.GROUP, names.VERSION, names.SANDBOXES, "Sandbox")
TEMPLATES: Final = Resource(names.GROUP, names.VERSION, names.TEMPLATES, "SandboxTemplate")
POOLS: Final = Resource(names.GROUP, names.VERSION, names.POOLS, "SandboxPool")
TENANTS: Final = Resource(names.GROUP, names.VERSION, names.TENANTS, "SandboxTenant")
PODS: Final = Resource("", "v1", "pods", "Pod", f"{_OURS},{names.LABEL_SANDBOX}")
VOLUME_CLAIMS: Final = Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim")
EVENTS: Final = Resource("", "v1", "events", "Event")
SECRETS: Final = Resource("", "v1", "secrets", "Secret")
CONFIG_MAPS: Final = Resource("", "v1", "configmaps", "ConfigMap")
NODES: Final = Resource("", "v1", "nodes", "Node", namespaced=False)
RUNTIME_CLASSES: Final = Resource("node.k8s.io", "v1", "runtimeclasses", "RuntimeClass", namespaced=False)
# All of them, since those of others can open what ours close.
POLICIES: Final = Resource("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy")
LEASES: Final = Resource("coordination.k8s.io", "v1", "leases", "Lease", _OURS)

WATCHED: Final = (SANDBOXES, TEMPLATES, POOLS, PODS, POLICIES, LEASES)
"""What the operator watches in every sandbox namespace."""


class Key(NamedTuple):
    """What one reconcile is about. A namespace's own key (kind Namespace, empty name) is about its policies."""

    kind: str
    namespace: str
    name: str


NAMESPACE: Final = "Namespace"
NAMESPACES: Final = Resource("", "v1", "namespaces", NAMESPACE, namespaced=False)
_OF_TENANT: Final = f"{names.LABEL_MANAGED_BY}={names.MANAGED_BY_OPERATOR}"
TENANT_CONTENT: Final = tuple(
    replace(each, selector=_OF_TENANT)
    for each in (
        POOLS,
        TEMPLATES,
        Resource("autoscaling", "v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler"),
        Resource("", "v1", "resourcequotas", "ResourceQuota"),
        Resource("", "v1", "limitranges", "LimitRange"),
    )
)
"""What the operator deletes from a tenant's namespace once the chart's values no longer have it."""
ROLE_BINDINGS: Final = Resource("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding")


def key_of(resource: Resource, manifest: dict[str, Any]) -> Key:
    """Return the key of an object."""
    metadata = manifest["metadata"]
    return Key(resource.kind, metadata.get("namespace", ""), metadata["name"])
