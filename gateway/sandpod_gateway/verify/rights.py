"""What the chart lets the accounts of gateway and operator do, and what an account may do by roles and their bindings.

Rights are pairs of a verb and a resource, which is written as kubectl does, with the name of an object after a colon:
`get pods`, `patch sandboxes.sandpod.dev/status`, `get secrets:keys`.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

Rights = dict[str, tuple[str, ...]]
Right = tuple[str, str]
Held = dict[str, set[Right]]
"""Rights by namespace; `EVERYWHERE` for those of a ClusterRoleBinding."""
EVERYWHERE: Final = "*"

READ: Final = ("get", "list", "watch")
ALL: Final = (*READ, "create", "update", "patch", "delete", "deletecollection")

GATEWAY: Final[Rights] = {
    "sandboxes.sandpod.dev": (*READ, "create", "patch", "delete"),
    "sandboxtemplates.sandpod.dev": ("get", "list"),
    "sandboxpools.sandpod.dev": ("list",),
    "pods/exec": ("get", "create"),
    "events": ("list",),
}
# With the settings kubernetes.secrets and kubernetes.scale_pools.
GATEWAY_SECRETS: Final[Rights] = {"secrets": ("get", "create")}
GATEWAY_SCALE: Final[Rights] = {"sandboxpools.sandpod.dev/scale": ("patch",)}
GATEWAY_RELEASE: Final[Rights] = {"configmaps": (*READ, "create", "patch", "delete")}
OPERATOR: Final[Rights] = {
    "sandboxes.sandpod.dev": (*READ, "create", "patch", "delete"),
    "sandboxes.sandpod.dev/status": ("patch",),
    "sandboxpools.sandpod.dev": READ,
    "sandboxpools.sandpod.dev/status": ("patch",),
    "sandboxtemplates.sandpod.dev": READ,
    "pods": (*READ, "create", "patch", "delete"),
    "pods/resize": ("patch",),
    "persistentvolumeclaims": ("create",),
    "networkpolicies.networking.k8s.io": (*READ, "create", "patch", "delete"),
    "events": ("create",),
    "leases.coordination.k8s.io": ("list", "watch", "create", "patch"),
}
NODES: Final[Rights] = {"nodes": ("get", "list"), "runtimeclasses.node.k8s.io": ("get",)}
LEASES: Final[Rights] = {"leases.coordination.k8s.io": ("get", "create", "update")}
# With tenants on first use. An admission policy of the chart limits what the operator does with the last two.
_TENANTS_GATEWAY: Final[Rights] = {"sandboxtenants.sandpod.dev": ("list", "watch", "create")}
_TENANTS_OPERATOR: Final[Rights] = {"sandboxtenants.sandpod.dev": READ, "sandboxtenants.sandpod.dev/status": ("patch",)}
_TENANTS_EVERYWHERE: Final[Rights] = {
    "namespaces": ("get", "create", "patch"),
    "rolebindings.rbac.authorization.k8s.io": ("create", "patch"),
}
_TENANTS_INSIDE: Final[Rights] = {
    "resourcequotas": ("list", "create", "patch", "delete"),
    "limitranges": ("list", "create", "patch", "delete"),
    "sandboxtemplates.sandpod.dev": ("create", "patch", "delete"),
    "sandboxpools.sandpod.dev": ("create", "patch", "delete"),
    "horizontalpodautoscalers.autoscaling": ("list", "create", "patch", "delete"),
}
# Rights to single objects of the release, by their name.
_NAMED: Final = {
    "gateway": {(verb, "secrets") for verb in (*READ, "patch")},
    "operator": {("get", "configmaps"), ("bind", "clusterroles.rbac.authorization.k8s.io")},
}
# What every account has for the API server to be of any use: discovery, and questions about itself.
_FOR_ALL: Final = (
    "system:basic-user",
    "system:discovery",
    "system:public-info-viewer",
    "system:service-account-issuer-discovery",
)

# What would do most harm, which neither account has anywhere.
HARMFUL: Final[tuple[Right, ...]] = (
    *(("list", resource) for resource in ("secrets", "serviceaccounts")),
    *(
        ("create", resource)
        for resource in ("serviceaccounts/token", "pods/ephemeralcontainers", "pods/attach", "pods/portforward")
    ),
    *((verb, "daemonsets.apps") for verb in ("create", "patch")),
    ("create", "nodes/proxy"),
    ("update", "pods"),
    ("patch", "nodes"),
    ("create", "persistentvolumes"),
    *((verb, "roles.rbac.authorization.k8s.io") for verb in ("create", "patch", "escalate", "bind")),
    *((verb, "clusterroles.rbac.authorization.k8s.io") for verb in ("create", "patch", "escalate")),
    ("create", "clusterrolebindings.rbac.authorization.k8s.io"),
    ("delete", "validatingadmissionpolicies.admissionregistration.k8s.io"),
    ("delete", "validatingadmissionpolicybindings.admissionregistration.k8s.io"),
    ("create", "mutatingwebhookconfigurations.admissionregistration.k8s.io"),
    ("patch", "customresourcedefinitions.apiextensions.k8s.io"),
    ("delete", "resourcequotas"),
    ("impersonate", "users"),
    ("impersonate", "serviceaccounts"),
    ("approve", "signers.certificates.k8s.io"),
    ("*", "*"),
)


def pairs(rights: Rights) -> set[Right]:
    """Return rights one by one."""
    return {(verb, resource) for resource, verbs in rights.items() for verb in verbs}


def granted(component: str, options: Mapping[str, bool]) -> dict[str, set[Right]]:
    """Return what the chart grants at most, by `sandboxes`, `release` and `everywhere`."""
    first_use = options["first_use"]
    if component == "gateway":
        own = pairs(GATEWAY)
        own |= pairs(GATEWAY_SECRETS) if options["secrets"] else set()
        own |= pairs(GATEWAY_SCALE) if options["scale_pools"] else set()
        release = pairs(GATEWAY_RELEASE) | (pairs(_TENANTS_GATEWAY) if first_use else set())
        return {"sandboxes": own, "release": release, "everywhere": set()}
    own = pairs(OPERATOR) | (pairs(_TENANTS_INSIDE) if first_use else set())
    release = pairs(LEASES) | (pairs(_TENANTS_OPERATOR) if first_use else set())
    return {
        "sandboxes": own,
        "release": release,
        "everywhere": pairs(NODES) | (pairs(_TENANTS_EVERYWHERE) if first_use else set()),
    }


def beyond(component: str, held: Held, facts: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return rights that are not the chart's: namespace, verb, resource."""
    most = granted(component, facts["options"])
    found = []
    for scope, rights in held.items():
        place = (
            "everywhere"
            if scope == EVERYWHERE
            else "sandboxes"
            if scope in facts["sandboxes"]
            else "release"
            if scope == facts["release"]
            else ""
        )
        for verb, resource in rights:
            plain, colon, _ = resource.partition(":")
            named = colon and place in {"release", "everywhere"} and (verb, plain) in _NAMED[component]
            if not named and (verb, resource) not in most.get(place, set()):
                found.append((scope, verb, resource))
    return found


def held_by(namespace: str, account: str, roles: Iterable[dict[str, Any]], bindings: Iterable[dict[str, Any]]) -> Held:
    """Return what a service account may do by Roles, ClusterRoles and their bindings, its groups' among them."""
    rules = {
        (role["kind"], role["metadata"].get("namespace", ""), role["metadata"]["name"]): role.get("rules") or []
        for role in roles
    }
    found: Held = {}
    for binding in bindings:
        if binding["metadata"]["name"] in _FOR_ALL or not _reaches(binding, namespace, account):
            continue
        reference, place = binding["roleRef"], binding["metadata"].get("namespace", "")
        key = (reference["kind"], place if reference["kind"] == "Role" else "", reference["name"])
        found.setdefault(place or EVERYWHERE, set()).update(rights_of(rules.get(key, [])))
    return found


def _reaches(binding: Mapping[str, Any], namespace: str, account: str) -> bool:
    groups = {"system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated"}
    for subject in binding.get("subjects") or []:
        kind, name = subject["kind"], subject["name"]
        own = subject.get("namespace") or binding["metadata"].get("namespace", "")
        if kind == "ServiceAccount" and (own, name) == (namespace, account):
            return True
        if (kind == "Group" and name in groups) or (
            kind == "User" and name == f"system:serviceaccount:{namespace}:{account}"
        ):
            return True
    return False


def rights_of(rules: Iterable[Mapping[str, Any]]) -> set[Right]:
    """Return the rights of a role's rules, one by one; a URL that is no resource begins with a slash."""
    found: set[Right] = set()
    for rule in rules:
        only = [f":{each}" for each in rule.get("resourceNames") or []] or [""]
        targets = [
            _written(resource, group) + name
            for group in rule.get("apiGroups") or []
            for resource in rule.get("resources") or []
            for name in only
        ]
        found |= {
            (verb, target) for verb in rule["verbs"] for target in [*targets, *(rule.get("nonResourceURLs") or [])]
        }
    return found


def _written(resource: str, group: str) -> str:
    name, slash, part = resource.partition("/")
    return f"{name}.{group}{slash}{part}" if group else resource
