"""Tenants that are made on first use, in a release of the test's own: a caller's first call, and the operator's rights.

The second gateway is this process, which uses the cluster as a gateway does.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import httpx2
import pytest
import yaml

from sandpod_api.names import API_VERSION
from sandpod_gateway.auth.callers import owner_of
from sandpod_gateway.backends.base import Backend
from sandpod_gateway.backends.factory import create_backend
from sandpod_gateway.backends.kubernetes.settings import KubernetesSettings
from support.cluster import writing
from support.cluster.admission_cases import build
from support.cluster.callers import Caller, Reply
from support.cluster.cluster import Cluster, node_url, until
from support.cluster.reading import call, read
from support.cluster.release import LITTLE, SMALL, done, helm, image, remove, run
from support.command_line import sandpod
from support.gateway.backends import started
from support.gateway.peer import talk

CHART: Final = Path(__file__).resolve().parents[2] / "charts" / "sandpod"
NAMESPACE: Final = "sandpod-first"
SANDBOXES: Final = "sandpod-first-boxes"
FRESH: Final = f"{SANDBOXES}-fresh"
TAKEN: Final = f"{SANDBOXES}-taken"
OPERATOR: Final = f"--as=system:serviceaccount:{NAMESPACE}:sandpod-operator"
TENANTS: Final = f"/apis/{API_VERSION}/namespaces/{NAMESPACE}/sandboxtenants"


@dataclass(frozen=True)
class Release:
    """Keys of two tenants: one that nobody has heard of, and one whose namespace is somebody else's."""

    fresh: Caller
    taken: Caller
    cluster: Cluster


def values(entries: list[dict[str, Any]]) -> dict[str, Any]:
    templates = {"default": {"resources": SMALL, "preimport": []}}
    return {
        "auth": {"keys": entries},
        "gateway": {**image("gateway"), **LITTLE, "replicas": 1, "service": {"type": "NodePort"}},
        "operator": {**image("operator"), **LITTLE, "replicas": 1},
        "sandboxes": {
            "namespace": SANDBOXES,
            "keepNamespaces": False,
            **image("sandbox"),
            "templates": templates,
            "pools": {"default": None},
        },
        "tenantsOnFirstUse": {
            "enabled": True,
            "each": {"quota": {"hard": {"pods": "3"}}, "pools": {"default": {"replicas": 0}}},
        },
    }


@pytest.fixture(scope="module")
def release(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Release]:
    assert cluster.namespace != NAMESPACE
    made = [
        json.loads(asyncio.run(sandpod("keys", "create", "--user", "ann", "--tenant", tenant, "--output", "json")))
        for tenant in ("fresh", "taken")
    ]
    file = tmp_path_factory.mktemp("first") / "values.yaml"
    file.write_text(yaml.safe_dump(values([each["entry"] for each in made])), encoding="utf-8")
    try:
        writing.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": TAKEN}})
        helm("install", NAMESPACE, str(CHART), "--create-namespace", "--skip-crds", "--values", str(file))
        url = node_url(NAMESPACE)
        asyncio.run(until("the node's port leads to the gateway", partial(answers, url), within=60))
        fresh, taken = (Caller(f"{url}/mcp", each["key"]) for each in made)
        yield Release(fresh, taken, Cluster(namespace=NAMESPACE, sandboxes=SANDBOXES))
    finally:
        remove(NAMESPACE, SANDBOXES, FRESH, TAKEN)


async def answers(url: str) -> bool:
    """Return whether a gateway is there: the port is, some time after the Service."""
    async with httpx2.AsyncClient() as client:
        try:
            return (await client.get(f"{url}/healthz")).is_success
        except httpx2.TransportError:
            return False


@pytest.fixture
async def second_gateway() -> AsyncIterator[Backend]:
    settings = KubernetesSettings(namespace=SANDBOXES, first_use_namespace=NAMESPACE, warm_streams=0)
    async with started(create_backend("kubernetes", kubernetes=settings)) as backend:
        yield backend


@pytest.mark.promise("tenants-on-first-use", "tenants-apart")
async def test_first_call_of_a_new_tenant_is_answered_from_a_namespace_of_its_own_that_another_gateway_finds(
    release: Release, second_gateway: Backend
) -> None:
    async with release.fresh.connect() as session:
        assert (await session.python("print(6 * 7)"))["stdout"] == "42\n"
        [listed] = (await session.call("list_sandboxes"))["sandboxes"]
        assert SANDBOXES not in str(listed)
        async with talk(second_gateway, listed["sandbox"]) as peer:
            assert (await peer.output("print('also here')"))[0] == "also here\n"
        assert [each.name for each in await second_gateway.list(owner_of("fresh", "ann"))] == [listed["sandbox"]]
        assert not (await session.close(listed["sandbox"])).is_error
    check_namespace()
    [tenant] = [each for each in call("GET", TENANTS)["items"] if each["metadata"]["name"] == "fresh"]
    [ready] = tenant["status"]["conditions"]
    assert (tenant["status"]["namespace"], ready["status"], ready["reason"]) == (FRESH, "True", "Provisioned")
    # The operator began anew in its process, with its Lease.
    assert set((await Cluster(namespace=NAMESPACE, sandboxes=SANDBOXES).restarts()).values()) == {0}


def check_namespace() -> None:
    """Look at what the namespace of the new tenant has."""
    labels = call("GET", f"/api/v1/namespaces/{FRESH}")["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"
    closed = read("networkpolicies", FRESH, "sandpod-namespace")["spec"]
    assert (closed["podSelector"], closed["policyTypes"], "egress" in closed) == ({}, ["Ingress", "Egress"], False)
    assert read("resourcequotas", FRESH, "sandpod-namespace")["spec"]["hard"]["pods"] == "3"
    assert call("GET", f"/api/v1/namespaces/{FRESH}/limitranges/sandpod-namespace")["spec"]["limits"]
    assert read("sandboxpools", FRESH, "default")["spec"]["templateRef"] == {"name": "default"}
    # The policy for pods among the sandboxes holds here too.
    weak = build()
    weak["metadata"] = {"name": "weak", "namespace": FRESH}
    weak["spec"]["automountServiceAccountToken"] = True
    assert "with binding 'sandboxes.sandpod-first.sandpod-tenants' denied" in refused("create", of=[weak])


def refused(*command: str, of: list[dict[str, Any]] | None = None) -> str:
    """Return what kubectl says of a command, or of the manifests that it is given, all of which must be refused."""
    stdin = None if of is None else "\n---\n".join(map(json.dumps, of))
    files = () if of is None else ("-f", "-", "--validate=false")
    ended = run("kubectl", *command, *files, "--dry-run=server", stdin=stdin)
    assert ended.returncode == 1
    assert ended.stdout == ""
    return ended.stderr


def binding(namespace: str, role: str, account: str = "sandpod-operator") -> dict[str, Any]:
    group = "rbac.authorization.k8s.io"
    return {
        "apiVersion": f"{group}/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "more", "namespace": namespace},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": NAMESPACE}],
    }


def space(name: str, **labels: str) -> dict[str, Any]:
    own = {
        "sandpod.dev/release-namespace": NAMESPACE,
        "sandpod.dev/tenant": name.removeprefix(f"{SANDBOXES}-"),
        "pod-security.kubernetes.io/enforce": "restricted",
    }
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": {**own, **labels}}}


@pytest.mark.promise("tenants-on-first-use", "least-rights")
async def test_operator_can_make_and_change_namespaces_of_tenants_alone(release: Release) -> None:
    async with release.fresh.connect() as session:
        assert not (await session.call("list_sandboxes")).is_error  # so that the tenant is there
    role, gateway = f"sandpod-operator-{NAMESPACE}-tenant", f"sandpod-gateway-{NAMESPACE}-sandboxes"
    tried = {
        "a namespace of another name": space("other-fresh"),
        "one of a tenant of another name": space(f"{SANDBOXES}-more", **{"sandpod.dev/tenant": "less"}),
        "one without Pod Security": space(f"{SANDBOXES}-more", **{"pod-security.kubernetes.io/enforce": "privileged"}),
        "one of another release": space(f"{SANDBOXES}-more", **{"sandpod.dev/release-namespace": "kube-system"}),
        "rights in kube-system": binding("kube-system", role),
        "rights in the release's namespace": binding(NAMESPACE, role),
        "rights in a chart's namespace of sandboxes": binding(SANDBOXES, role),
        "all rights in a tenant's": binding(FRESH, "cluster-admin"),
        "those of the gateway for itself": binding(FRESH, gateway),
        "its own for somebody else": binding(FRESH, role, "default"),
    }
    said = refused("create", OPERATOR, of=list(tried.values()))
    assert said.count("Error from server (Forbidden)") == len(tried), said
    assert said.count("is not that of a tenant of this release") == 6, said
    for name, labels in (
        (FRESH, {"sandpod.dev/release-namespace": None}),
        (FRESH, {"pod-security.kubernetes.io/enforce": "baseline"}),
        (TAKEN, space(TAKEN)["metadata"]["labels"]),
        ("kube-system", space("kube-system")["metadata"]["labels"]),
    ):
        change = json.dumps({"metadata": {"labels": labels}})
        assert "(Forbidden)" in refused("patch", "namespace", name, OPERATOR, "--type=merge", "-p", change)
    allowed = run(
        "kubectl",
        "create",
        OPERATOR,
        "-f",
        "-",
        "--dry-run=server",
        "--validate=false",
        stdin=json.dumps(space(f"{SANDBOXES}-more")),
    )
    assert allowed.returncode == 0, allowed.stderr


@pytest.mark.promise("tenants-on-first-use")
async def test_namespace_of_somebody_else_is_not_adopted(release: Release) -> None:
    before = call("GET", f"/api/v1/namespaces/{TAKEN}")["metadata"]["resourceVersion"]
    async with release.taken.connect() as session:
        reply = await session.python("print(1)")
    assert (reply.error, reply["message"]) == ("forbidden", "This server can have no tenant taken.")

    async def reason() -> str:
        [tenant] = [each for each in call("GET", TENANTS)["items"] if each["metadata"]["name"] == "taken"]
        return str(tenant["status"]["conditions"][0]["reason"])

    assert await until("the tenant has a condition", reason, within=60) == "NamespaceTaken"
    assert call("GET", f"/api/v1/namespaces/{TAKEN}")["metadata"]["resourceVersion"] == before
    assert read("networkpolicies", TAKEN)["items"] == []


@pytest.mark.promise("tenants-on-first-use", "end-known")
async def test_namespace_that_is_deleted_ends_its_runs_with_a_code_and_comes_back_by_itself(release: Release) -> None:
    begun = asyncio.Event()

    async def hear(_: str) -> None:
        begun.set()

    async with release.fresh.connect() as session:
        code = "import time\nprint('begun', flush=True)\nwhile True: time.sleep(1)\n"
        run = asyncio.create_task(session.python(code, timeout=300, on_output=hear))
        async with asyncio.timeout(120):
            await begun.wait()
        before = call("GET", f"/api/v1/namespaces/{FRESH}")["metadata"]["uid"]
        writing.remove({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": FRESH}})
        async with asyncio.timeout(60):
            lost = await run
        assert (lost["outcome"], lost["stdout"]) == ("sandbox_lost", "begun\n")
        refusals: list[Reply] = []

        async def works() -> bool:
            reply = await session.python("print(6 * 7)")
            refusals.extend([reply] if reply.is_error else [])
            return reply.data.get("stdout") == "42\n"

        await until("the tenant has a namespace again", works, within=120)
    assert all(each.error and each["next"] for each in refusals), refusals
    assert FRESH not in f"{lost} {refusals}"
    assert call("GET", f"/api/v1/namespaces/{FRESH}")["metadata"]["uid"] != before
    check_namespace()
    assert set((await release.cluster.restarts()).values()) == {0}


async def test_release_that_keeps_nothing_leaves_what_others_made_and_the_tenants(release: Release) -> None:
    """Whose namespace stays, closed, with what is in it. This is the last of these tests."""
    async with release.fresh.connect() as session:
        assert not (await session.call("list_sandboxes")).is_error  # and it is counted
    done("helm", "uninstall", "sandpod", "--namespace", NAMESPACE)
    kinds = (
        *("clusterroles", "clusterrolebindings", "validatingadmissionpolicies", "validatingadmissionpolicybindings"),
        *("namespaces", "configmaps", "secrets", "services", "serviceaccounts", "pods", "deployments", "leases"),
        *("roles", "rolebindings", "networkpolicies", "resourcequotas", "limitranges", "poddisruptionbudgets"),
        *("sandboxes", "sandboxpools", "sandboxtemplates", "sandboxtenants"),
    )
    columns = "custom-columns=:.kind,:.metadata.namespace,:.metadata.name"
    own = {"ConfigMap kube-root-ca.crt", "ServiceAccount default"}

    async def left() -> set[str]:
        listed = await release.cluster.kubectl("get", ",".join(kinds), "-A", "--no-headers", "-o", columns)
        rows = [line.split() for line in listed.splitlines()]
        of = [row for row in rows if row[1] in {NAMESPACE, SANDBOXES} or (row[1] == "<none>" and NAMESPACE in row[2])]
        return {f"{kind} {name}" for kind, _, name in of} - own

    async def gone() -> bool:
        return await left() == stays

    spaces = {f"Namespace {name}" for name in (NAMESPACE, FRESH, TAKEN)}
    stays = spaces | {f"SandboxTenant {name}" for name in ("fresh", "taken")}
    await until("all but the tenants has gone", gone, within=60)
