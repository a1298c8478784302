"""What gateway and operator may do, asked of the cluster itself: all that they need, and nothing more.

`kubectl auth can-i` answers for each verb. The list of all rules is compared too, so that a right that nobody thought
of asking for is found.
"""

import json
from typing import Any, Final

import pytest

from e2e.cluster import Cluster

READ: Final = ("get", "list", "watch")
ALL: Final = (*READ, "create", "update", "patch", "delete", "deletecollection")
OURS: Final = "sandpod.dev"

Rights = dict[str, tuple[str, ...]]

GATEWAY: Final[Rights] = {
    "sandboxes.sandpod.dev": (*READ, "create", "patch", "delete"),
    "sandboxtemplates.sandpod.dev": READ,
    "pods/exec": ("get", "create"),
}
OPERATOR: Final[Rights] = {
    "sandboxes.sandpod.dev": (*READ, "create", "patch", "delete"),
    "sandboxes.sandpod.dev/status": ("patch",),
    "sandboxpools.sandpod.dev": READ,
    "sandboxpools.sandpod.dev/status": ("patch",),
    "sandboxtemplates.sandpod.dev": READ,
    "pods": (*READ, "create", "delete"),
    "persistentvolumeclaims": ("create",),
    "networkpolicies.networking.k8s.io": (*READ, "create", "patch"),
    "events": ("create", "patch"),
}
LEASES: Final[Rights] = {"leases.coordination.k8s.io": ("get", "create", "update", "patch")}

# In the sandboxes' namespace, the release's namespace, and everywhere.
GRANTED: Final[dict[tuple[str, str], Rights]] = {
    ("gateway", "sandboxes"): GATEWAY,
    ("gateway", "release"): {},
    ("gateway", "everywhere"): {},
    ("operator", "sandboxes"): OPERATOR,
    ("operator", "release"): LEASES,
    ("operator", "everywhere"): {},
}
CASES: Final = sorted(GRANTED)

# Asked about one by one, beside every verb of what is granted: the ways by which a broken gateway or operator would do
# the most harm.
TEMPTING: Final[Rights] = {
    "secrets": READ,
    "configmaps": ("get", "patch"),
    "serviceaccounts/token": ("create",),
    "pods/exec": ("get", "create"),
    "pods/attach": ("get", "create"),
    "pods/portforward": ("get", "create"),
    "pods/ephemeralcontainers": ("patch",),
    "pods/log": ("get",),
    "pods/eviction": ("create",),
    "pods": ALL,
    "deployments.apps": ("create", "patch", "delete"),
    "networkpolicies.networking.k8s.io": ALL,
    "resourcequotas": ("patch", "delete"),
    "limitranges": ("patch", "delete"),
    "roles.rbac.authorization.k8s.io": ("create", "patch", "bind", "escalate"),
    "rolebindings.rbac.authorization.k8s.io": ("create", "patch"),
    "leases.coordination.k8s.io": ("delete", "patch"),
}
CLUSTER_WIDE: Final[Rights] = {
    "nodes": ("get", "list", "patch"),
    "namespaces": ("get", "list", "create", "patch", "delete"),
    "persistentvolumes": ("list",),
    "clusterroles.rbac.authorization.k8s.io": ("create", "bind", "escalate"),
    "clusterrolebindings.rbac.authorization.k8s.io": ("create",),
    "customresourcedefinitions.apiextensions.k8s.io": ("get", "patch", "delete"),
    "users": ("impersonate",),
}


def account(cluster: Cluster, component: str) -> str:
    return f"--as=system:serviceaccount:{cluster.namespace}:sandpod-{component}"


def place(cluster: Cluster, scope: str) -> list[str]:
    return {
        "sandboxes": ["--namespace", cluster.sandboxes],
        "release": ["--namespace", cluster.namespace],
        "everywhere": ["--all-namespaces"],
    }[scope]


async def may(cluster: Cluster, component: str, scope: str, verb: str, resource: str) -> bool:
    """Ask the cluster. A subresource is asked for with its own option."""
    name, _, subresource = resource.partition("/")
    options = [f"--subresource={subresource}"] if subresource else []
    answer = await cluster.kubectl(
        "auth", "can-i", verb, name, *options, *place(cluster, scope), account(cluster, component), check=False
    )
    assert answer.strip() in {"yes", "no"}, (verb, resource, answer)
    return answer.strip() == "yes"


@pytest.mark.parametrize(("component", "scope"), CASES)
async def test_each_verb_that_is_needed_is_allowed(cluster: Cluster, component: str, scope: str) -> None:
    granted = GRANTED[component, scope]
    refused = [
        (verb, resource)
        for resource, verbs in granted.items()
        for verb in verbs
        if not await may(cluster, component, scope, verb, resource)
    ]
    assert refused == []


@pytest.mark.parametrize(("component", "scope"), CASES)
async def test_each_extra_verb_is_refused(cluster: Cluster, component: str, scope: str) -> None:
    granted = GRANTED[component, scope]
    known: Rights = {**TEMPTING, **(CLUSTER_WIDE if scope == "everywhere" else {}), **dict.fromkeys(granted, ALL)}
    allowed = [
        (verb, resource)
        for resource, verbs in known.items()
        for verb in verbs
        if verb not in granted.get(resource, ()) and await may(cluster, component, scope, verb, resource)
    ]
    assert allowed == []


async def rules(cluster: Cluster, user: str, namespace: str) -> set[tuple[str, str]]:
    """Return all pairs of verb and resource that an account has in a namespace, as the API server lists them."""
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectRulesReview",
        "spec": {"namespace": namespace},
    }
    out = await cluster.kubectl("create", "-f", "-", "-o", "json", user, stdin=json.dumps(review))
    status: dict[str, Any] = json.loads(out)["status"]
    assert not status["incomplete"]
    return {
        (verb, f"{name}.{group}/{sub}".rstrip("./").replace("./", "/"))
        for rule in status["resourceRules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for name, _, sub in [resource.partition("/")]
        for verb in rule["verbs"]
    }


@pytest.mark.parametrize(("component", "scope"), [case for case in CASES if case[1] != "everywhere"])
async def test_list_of_all_rights_has_nothing_else(cluster: Cluster, component: str, scope: str) -> None:
    namespace = cluster.sandboxes if scope == "sandboxes" else cluster.namespace
    # What every account of the cluster may do, as asking for its own rights, is not of the chart's making.
    everyone = await rules(cluster, f"--as=system:serviceaccount:{cluster.namespace}:nobody", namespace)
    own = await rules(cluster, account(cluster, component), namespace)
    granted = {(verb, resource) for resource, verbs in GRANTED[component, scope].items() for verb in verbs}
    assert own - everyone == granted
