"""Reads what rows judge of a cluster's objects, and asks the API server what it would take and allow."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from copy import deepcopy
from typing import Any, Final

from sandpod_api import names
from sandpod_gateway.verify import weaker_pods
from sandpod_gateway.verify.model import Facts, Untried
from sandpod_gateway.verify.release import PART_OF, Release
from sandpod_gateway.verify.rights import HARMFUL, Right, held_by
from sandpod_kube.client import KubeClient
from sandpod_kube.errors import ClusterError, RefusedError
from sandpod_kube.resources import NAMESPACES, NODES, PODS, POLICIES, SANDBOXES, Resource

Json = dict[str, Any]

_RBAC: Final = "rbac.authorization.k8s.io"
_ROLES: Final = tuple(
    Resource(_RBAC, "v1", plural, kind, namespaced=False)
    for plural, kind in (("roles", "Role"), ("clusterroles", "ClusterRole"))
)
_BINDINGS: Final = tuple(
    Resource(_RBAC, "v1", plural, kind, namespaced=False)
    for plural, kind in (("rolebindings", "RoleBinding"), ("clusterrolebindings", "ClusterRoleBinding"))
)
_QUOTAS: Final = Resource("", "v1", "resourcequotas", "ResourceQuota")
_ALL_PODS: Final = Resource("", "v1", "pods", "Pod")
_SERVICES: Final = Resource("", "v1", "services", "Service")
_ENDPOINTS: Final = Resource("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice")
_REVIEWS: Final = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
_AT_ONCE: Final = 8  # requests
# Left out: the API server refuses them before any policy is asked, or a LimitRange makes them as they must be.
_ELSEWHERE: Final = (
    "runtime-class",
    "account",
    "priority",
    "annotated-apparmor",
    "resource-claims",
    "csi",
    "no-cpu",
    "no-memory",
    "no-storage",
    "no-limits",
)
_UID: Final = 1000
_LIMITS: Final = {"cpu": "100m", "memory": "64Mi", "ephemeral-storage": "64Mi"}
_REQUESTS: Final = {"cpu": "1m", "memory": "1Mi", "ephemeral-storage": "1Mi"}
_DNS: Final = 53
_NODE_PORTS: Final = (10250, 10255, 22)


async def collected(items: AsyncIterator[Json]) -> list[Json]:
    """Return all of them."""
    return [each async for each in items]


async def namespaces(client: KubeClient, release: Release) -> Facts:
    """Return labels, policies and quotas of the namespaces of sandboxes."""
    found: Json = {}
    for name in release.sandboxes:
        space = await client.get(NAMESPACES, "", name)
        found[name] = {
            "labels": space["metadata"].get("labels") or {},
            "policies": await collected(client.pages(POLICIES, name)),
            "quotas": await collected(client.pages(_QUOTAS, name)),
        }
    return {"namespaces": found}


async def pods(client: KubeClient, release: Release) -> Facts:
    """Return all pods among the sandboxes."""
    return {"pods": [pod for name in release.sandboxes async for pod in client.pages(_ALL_PODS, name)]}


async def rights(client: KubeClient, release: Release) -> Facts:
    """Return what the accounts may do, by roles and bindings and by the API server's own word."""
    roles = [role for resource in _ROLES async for role in client.pages(resource, "")]
    bindings = [binding for resource in _BINDINGS async for binding in client.pages(resource, "")]
    components: Json = {}
    for component, account in release.accounts.items():
        held = held_by(release.namespace, account, roles, bindings)
        questions = [
            (scope, right)
            for scope in (*release.sandboxes[:1], release.namespace, "kube-system", "")
            for right in HARMFUL
        ]
        components[component] = {
            "account": f"{release.namespace}:{account}",
            "held": {scope: sorted(found) for scope, found in held.items()},
            "allowed": await _allowed(client, f"system:serviceaccount:{release.namespace}:{account}", questions),
            "questions": len(questions),
        }
    programs = {
        f"{name}:default": sorted(
            right for found in held_by(name, "default", roles, bindings).values() for right in found
        )
        for name in release.sandboxes
    }
    return {
        "components": components,
        "programs": programs,
        "sandboxes": list(release.sandboxes),
        "release": release.namespace,
        "options": dict(release.options),
    }


async def _allowed(client: KubeClient, user: str, questions: Iterable[tuple[str, Right]]) -> list[str]:
    """Return those rights of a user that the API server affirms."""
    room = asyncio.Semaphore(_AT_ONCE)
    namespace = user.split(":")[2]
    groups = ["system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated"]

    async def ask(scope: str, verb: str, resource: str) -> str:
        name, _, part = resource.partition("/")
        kind, _, group = name.partition(".")
        attributes = {"namespace": scope, "verb": verb, "resource": kind, "group": group, "subresource": part}
        spec = {"user": user, "groups": groups, "resourceAttributes": attributes}
        body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
        async with room:
            answer = await client.ask(_REVIEWS, body)
        return f"{verb} {resource} in {scope or 'all namespaces'}" if answer["status"].get("allowed") else ""

    answers = await asyncio.gather(*(ask(scope, *right) for scope, right in questions))
    return [answer for answer in answers if answer]


async def admission(client: KubeClient, namespace: str, sandbox: str) -> Facts | Untried:
    """Return what the API server says of pods that are weaker than a sandbox's, and of changes of a Sandbox."""
    pod = await client.get(PODS, namespace, sandbox)
    room = asyncio.Semaphore(_AT_ONCE)

    async def sent(manifest: Json) -> str:
        async with room:
            try:
                await client.try_create(_ALL_PODS, manifest, namespace)
            except RefusedError as error:
                return str(error)
        return ""

    weak = _weak(_like(pod))
    answers = dict(zip(weak, await asyncio.gather(*map(sent, weak.values())), strict=True))
    changes = {
        "its claim": {"spec": {"claim": {"owner": "user:somebody-else"}}},
        "its template": {"spec": {"templateRef": {"name": "another"}}},
    }
    refused = {}
    for what, change in changes.items():
        try:
            await client.try_patch(SANDBOXES, namespace, sandbox, change)
            refused[what] = ""
        except RefusedError as error:
            refused[what] = str(error)
    return {"control": await sent(_like(pod)), "answers": answers, "changes": refused}


def _like(pod: Json) -> Json:
    """Return a new pod that is locked down as a sandbox's is, whatever became of the one that is there."""
    user = {"runAsNonRoot": True, "runAsUser": _UID, "runAsGroup": _UID, "seccompProfile": {"type": "RuntimeDefault"}}
    container = {
        "name": names.CONTAINER,
        "image": pod["spec"]["containers"][0]["image"],
        "resources": {"limits": _LIMITS, "requests": _REQUESTS},
        "securityContext": {
            **user,
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "privileged": False,
            "readOnlyRootFilesystem": True,
        },
    }
    spec = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "restartPolicy": "Never",
        "activeDeadlineSeconds": 3600,
        "securityContext": {**user, "fsGroup": _UID},
        "containers": [container],
        "volumes": [{"name": "tmp", "emptyDir": {"sizeLimit": "1Mi"}}],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"generateName": "sandpod-verify-"}, "spec": spec}


def _weak(base: Json) -> dict[str, Json]:
    """Return pods by name, each weaker than the base in one thing."""
    found: dict[str, Json] = {}
    for name, (_, change) in weaker_pods.BAD.items():
        found[name] = deepcopy(base)
        change(found[name])
    for name, (_, change) in {**weaker_pods.BAD_CONTAINERS, **weaker_pods.BAD_LASTING, **weaker_pods.BAD_MAIN}.items():
        found[name] = deepcopy(base)
        change(found[name]["spec"]["containers"][0])
    return {name: pod for name, pod in found.items() if name not in _ELSEWHERE}


async def places(client: KubeClient, release: Release) -> dict[str, dict[str, list[str]]]:
    """Return what must not be reached, by group and by way: tcp, udp or ping."""
    nodes = await _or_none(client.pages(NODES, ""))
    addresses = [
        a["address"] for node in nodes for a in node["status"].get("addresses", []) if a["type"] == "InternalIP"
    ]
    api = await client.get(_SERVICES, "default", "kubernetes")
    servers = [f"{_host(ip)}:443" for ip in _ips(api)]
    async for each in client.pages(_ENDPOINTS, "default"):
        if each["metadata"].get("labels", {}).get("kubernetes.io/service-name") == "kubernetes":
            ports = [port["port"] for port in each.get("ports") or []]
            servers += [
                f"{_host(ip)}:{port}"
                for end in each.get("endpoints") or []
                for ip in end["addresses"]
                for port in ports
            ]
    named = [
        s
        for s in await _or_none(client.pages(_SERVICES, "kube-system"))
        if any(p["port"] == _DNS for p in s["spec"].get("ports") or [])
    ]
    dns = [f"{_host(ip)}:53" for service in named for ip in _ips(service)]
    return {
        "api-server": {"tcp": servers},
        "nodes": {"tcp": [f"{_host(ip)}:{port}" for ip in addresses for port in _NODE_PORTS]},
        "components": {"tcp": await _components(client, release)},
        "dns": {"tcp": dns, "udp": dns},
        "icmp": {"ping": [*addresses[:3], "1.1.1.1"]},
    }


async def _components(client: KubeClient, release: Release) -> list[str]:
    """Return each port of the release's Services and pods."""
    found = []
    async for service in client.pages(Resource("", "v1", "services", "Service", PART_OF), release.namespace):
        found += [f"{_host(ip)}:{port['port']}" for ip in _ips(service) for port in service["spec"].get("ports") or []]
    async for pod in client.pages(_ALL_PODS, release.namespace):
        ports = [p["containerPort"] for c in pod["spec"]["containers"] for p in c.get("ports") or []]
        found += [f"{_host(pod['status']['podIP'])}:{port}" for port in ports if pod["status"].get("podIP")]
    return list(dict.fromkeys(found))


def _ips(service: Json) -> list[str]:
    return [ip for ip in service["spec"].get("clusterIPs") or [] if ip != "None"]


def _host(address: str) -> str:
    return f"[{address}]" if ":" in address else address


async def _or_none(items: AsyncIterator[Json]) -> list[Json]:
    """Return all of them, or none where they may not be read."""
    try:
        return await collected(items)
    except ClusterError:
        return []
