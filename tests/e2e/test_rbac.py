"""What gateway and operator may do, asked of the cluster itself: all that they need, and nothing more.

`kubectl auth can-i` shows what matters most. The same question is then asked for every verb of every resource that
either of them might want, many in one go, and last the API server's own list of all rules is compared, so that a right
that nobody thought of asking for is found too.
"""

import json
from typing import Any, Final

import pytest

from sandpod_gateway.verify.rights import (
    ALL,
    GATEWAY,
    GATEWAY_RELEASE,
    GATEWAY_SECRETS,
    LEASES,
    NODES,
    OPERATOR,
    READ,
    Right,
    Rights,
)
from support.cluster.cluster import Cluster

# In the sandboxes' namespace, the release's namespace, and everywhere.
GRANTED: Final[dict[tuple[str, str], Rights]] = {
    ("gateway", "sandboxes"): GATEWAY | GATEWAY_SECRETS,
    ("gateway", "release"): GATEWAY_RELEASE,
    ("gateway", "everywhere"): {},
    ("operator", "sandboxes"): OPERATOR | NODES,
    ("operator", "release"): LEASES | NODES,
    ("operator", "everywhere"): NODES,
}
CASES: Final = sorted(GRANTED)
# Rights to one object, by its name. Whoever asks without a name gets a no.
NAMED: Final[dict[tuple[str, str], set[Right]]] = {
    ("gateway", "release"): {
        *((verb, "secrets:sandpod-gateway-links") for verb in ("get", "patch")),
        *((verb, "secrets:sandpod-keys") for verb in READ),
    },
    ("operator", "release"): {("get", "configmaps:sandpod-operator-config")},
}

# Resources, beside those of the rights above, by which a broken gateway or operator would do the most harm.
TEMPTING: Final = (
    "secrets",
    "configmaps",
    "serviceaccounts",
    "serviceaccounts/token",
    "services",
    "replicationcontrollers",
    "resourcequotas",
    "limitranges",
    "pods/attach",
    "pods/ephemeralcontainers",
    "pods/eviction",
    "pods/log",
    "pods/portforward",
    "pods/proxy",
    "pods/status",
    "nodes",
    "nodes/proxy",
    "namespaces",
    "persistentvolumes",
    "sandboxes.sandpod.dev/finalizers",
    # Only where tenants are made on first use.
    "sandboxtenants.sandpod.dev",
    "sandboxtenants.sandpod.dev/status",
    "sandboxpools.sandpod.dev/scale",
    "daemonsets.apps",
    "deployments.apps",
    "jobs.batch",
    "roles.rbac.authorization.k8s.io",
    "rolebindings.rbac.authorization.k8s.io",
    "clusterroles.rbac.authorization.k8s.io",
    "clusterrolebindings.rbac.authorization.k8s.io",
    "customresourcedefinitions.apiextensions.k8s.io",
    "validatingwebhookconfigurations.admissionregistration.k8s.io",
    "validatingadmissionpolicies.admissionregistration.k8s.io",
    "validatingadmissionpolicybindings.admissionregistration.k8s.io",
    "certificatesigningrequests.certificates.k8s.io",
    "runtimeclasses.node.k8s.io",
)
RESOURCES: Final = sorted({*TEMPTING, *GATEWAY, *OPERATOR, *LEASES})
SPECIAL: Final[tuple[Right, ...]] = (
    ("escalate", "roles.rbac.authorization.k8s.io"),
    ("bind", "roles.rbac.authorization.k8s.io"),
    ("bind", "clusterroles.rbac.authorization.k8s.io"),
    ("impersonate", "users"),
    ("impersonate", "serviceaccounts"),
    ("approve", "signers.certificates.k8s.io"),
)


def account(cluster: Cluster, component: str) -> str:
    return f"--as=system:serviceaccount:{cluster.namespace}:sandpod-{component}"


def namespace_of(cluster: Cluster, scope: str) -> str:
    """Return the namespace that is meant; empty means all of them and what belongs to none."""
    return {"sandboxes": cluster.sandboxes, "release": cluster.namespace, "everywhere": ""}[scope]


def question(namespace: str, verb: str, resource: str) -> dict[str, Any]:
    """Return the object that `kubectl auth can-i` sends."""
    name, _, subresource = resource.partition("/")
    kind, _, group = name.partition(".")
    attributes = {"namespace": namespace, "verb": verb, "resource": kind, "group": group, "subresource": subresource}
    return {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }


async def allowed(cluster: Cluster, user: str, namespace: str, wanted: list[Right]) -> set[Right]:
    """Return those of the rights that the account has."""
    stdin = "\n---\n".join(json.dumps(question(namespace, verb, resource)) for verb, resource in wanted)
    out = await cluster.kubectl(
        # Validation would ask for the schema with the account's own rights.
        *("create", "-f", "-", "--validate=false", "-o", r"jsonpath={.status.allowed}{'\n'}", user),
        stdin=stdin,
    )
    answers = out.split()
    assert len(answers) == len(wanted)
    return {right for right, answer in zip(wanted, answers, strict=True) if answer == "true"}


@pytest.mark.promise("least-rights")
@pytest.mark.parametrize(("component", "scope"), CASES)
async def test_each_needed_verb_is_allowed_and_each_extra_verb_is_refused(
    cluster: Cluster, component: str, scope: str
) -> None:
    wanted = [(verb, resource) for resource in RESOURCES for verb in ALL] + list(SPECIAL)
    granted = {(verb, resource) for resource, verbs in GRANTED[component, scope].items() for verb in verbs}
    found = await allowed(cluster, account(cluster, component), namespace_of(cluster, scope), wanted)
    assert found == granted


async def listed(cluster: Cluster, user: str, namespace: str) -> set[Right]:
    """Return all rights that an account has in a namespace, as the API server lists them."""
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectRulesReview",
        "spec": {"namespace": namespace},
    }
    out = await cluster.kubectl("create", "-f", "-", "--validate=false", "-o", "json", user, stdin=json.dumps(review))
    status: dict[str, Any] = json.loads(out)["status"]
    assert not status["incomplete"]
    rights: set[Right] = set()
    for rule in status["resourceRules"]:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                name, slash, subresource = resource.partition("/")
                full = f"{name}.{group}" if group else name
                only = [f":{each}" for each in rule.get("resourceNames", [])] or [""]
                rights |= {(verb, f"{full}{slash}{subresource}{each}") for verb in rule["verbs"] for each in only}
    return rights


@pytest.mark.parametrize(("component", "scope"), [case for case in CASES if case[1] != "everywhere"])
async def test_list_of_all_rights_has_nothing_else(cluster: Cluster, component: str, scope: str) -> None:
    namespace = namespace_of(cluster, scope)
    # What every account of the cluster may do, as asking for its own rights, is not of the chart's making.
    everyone = await listed(cluster, f"--as=system:serviceaccount:{cluster.namespace}:nobody", namespace)
    own = await listed(cluster, account(cluster, component), namespace)
    granted = {(verb, resource) for resource, verbs in GRANTED[component, scope].items() for verb in verbs}
    assert own - everyone == granted | NAMED.get((component, scope), set())
