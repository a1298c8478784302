"""`sandpod verify` on a release of the test's own: green as installed, and each promise red once it is broken.

What is broken is the release's own, or harms no other sandbox: they are closed by policies of their own.
"""

from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from sandpod_api.names import LABEL_SANDBOX
from sandpod_gateway.backends.kubernetes.settings import KubernetesSettings
from sandpod_gateway.verify import cluster as verify_cluster
from sandpod_gateway.verify.model import Status, judged
from sandpod_gateway.verify.rows import ROWS
from support.cluster import writing
from support.cluster.cluster import Cluster
from support.cluster.nodes import on_every_node
from support.cluster.release import LITTLE, helm, image, remove, run
from support.servers.admission_webhook import Pod, webhook

CHART: Final = str(Path(__file__).resolve().parents[2] / "charts" / "sandpod")
NAMESPACE: Final = "sandpod-verify"
BOXES: Final = "sandpod-verify-boxes"
SPACES: Final = (BOXES, f"{BOXES}-other")
RBAC: Final = "rbac.authorization.k8s.io"

pytestmark = pytest.mark.asyncio(loop_scope="module")


def values() -> dict[str, Any]:
    small = {"cpu": "1", "cpuRequest": "20m", "memory": "256Mi", "memoryRequest": "64Mi"}
    template = {"resources": small, "preimport": [], "workspace": {"size": "32Mi"}, "tmpSize": "32Mi"}
    # Where the network is open, sandboxes serve and say so: what else is broken can be tried in them.
    config = {"probe_interval": 3600, "allow_open_network": True}
    return {
        "gateway": {**image("gateway"), **LITTLE, "replicas": 1},
        "operator": {**image("operator"), **LITTLE, "replicas": 1, "config": config},
        "sandboxes": {
            "namespace": BOXES,
            "keepNamespaces": False,
            **image("sandbox"),
            "templates": {"default": template},
            "pools": {"default": None},
        },
        "tenants": {"other": {}},
    }


# Rows whose programs are left out where a sandbox is not walled in.
STRAINING: Final = {
    *("memory-bounded", "processes-bounded", "open-files-bounded", "disk-bounded", "cpu-bounded", "runner-attacked"),
}
# Rows that are broken in unit tests alone, and why they can't be here.
UNBROKEN: Final = {
    "host-invisible": "It is about local sandboxes.",
    "network-host": "It is about local sandboxes.",
    "kernel-isolated": "It takes a RuntimeClass whose pods have the node's kernel, as test_kernel.py has.",
    "interfaces-own": "On the node's network, policies and the rows about them mean nothing.",
    "network-ipv6": "The cluster has no IPv6.",
    "links-stay-inside": "It is kept by the runner's own code, which no setting weakens.",
    "escape-descriptors": "It takes a container runtime with that hole.",
    "cap-sys-resource": "The runner gives it up before it starts a program.",
    "cap-sys-rawio": "It takes /dev/mem, which nodes that are containers do not have.",
    "admission-claim-fixed": "The rule is in the CRD, which belongs to all releases.",
}


@pytest.fixture(scope="module")
def release(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    assert cluster.namespace != NAMESPACE
    file = tmp_path_factory.mktemp("verify") / "values.yaml"
    file.write_text(yaml.safe_dump(values()), encoding="utf-8")
    try:
        helm("install", NAMESPACE, CHART, "--create-namespace", "--values", str(file))
        yield
    finally:
        remove(NAMESPACE, *SPACES)


async def verified() -> dict[str, tuple[Status, str]]:
    """Return what came of each row."""
    evidence = await verify_cluster.collect(KubernetesSettings(), NAMESPACE, None)
    findings = (judged(row, "kubernetes", evidence) for row in ROWS)
    return {finding.row.id: (finding.verdict.status, finding.verdict.seen) for finding in findings}


def of(found: dict[str, tuple[Status, str]], *statuses: Status) -> dict[str, str]:
    return {name: seen for name, (status, seen) in found.items() if status in statuses}


async def test_release_as_installed_keeps_every_promise(release: None) -> None:
    assert release is None
    found = await verified()
    assert of(found, Status.FAIL, Status.NOT_TRIED) == {}
    assert of(found, Status.NOT_APPLICABLE).keys() == {"host-invisible", "network-host", "kernel-isolated"}


def privileged(pod: Pod) -> None:
    """Let a sandbox's pod be all that a container can be."""
    spec = pod["spec"]
    spec.update(hostPID=True, hostIPC=True, automountServiceAccountToken=True, dnsPolicy="ClusterFirst")
    spec["securityContext"] = {"runAsUser": 0}
    for field in ("hostUsers", "dnsConfig"):
        spec.pop(field, None)
    [container] = spec["containers"]
    container["securityContext"] = {"privileged": True, "runAsUser": 0}
    for name, path in (("node", "/"), ("runtime", "/run/containerd"), ("debug", "/sys/kernel/debug")):
        spec["volumes"].append({"name": name, "hostPath": {"path": path}})
        container["volumeMounts"].append({"name": name, "mountPath": "/host" if name == "node" else path})


def greedy(pod: Pod) -> None:
    """Let a sandbox's pod take what it likes, and share its folders with others."""
    spec = pod["spec"]
    spec.pop("hostUsers", None)  # so that all have the same user
    [container] = spec["containers"]
    container["resources"] = {"requests": {"cpu": "20m", "memory": "64Mi"}}
    wider = {"SANDPOD_MEMORY_LIMIT": str(2**40), "SANDPOD_PROCESSES": "30000", "SANDPOD_OPEN_FILES": "100000"}
    wider["SANDPOD_WORKSPACE_BYTES"] = str(2**40)
    for variable in container["env"]:
        variable.update({"value": wider[variable["name"]]} if variable["name"] in wider else {})
    for volume in spec["volumes"]:
        if volume["name"] in {"workspace", "tmp"}:
            volume.pop("emptyDir")
            volume["hostPath"] = {"path": f"/var/tmp/sandpod-verify-{volume['name']}", "type": "Directory"}


class Changes:
    """Changes every new pod of a sandbox, and none of those that are tried, by one webhook for each namespace.

    They stay as they are while the change becomes another: each API server learns of a webhook in its time.
    """

    def __init__(self) -> None:
        self.change = privileged

    def __call__(self, pod: Pod) -> list[dict[str, Any]]:
        made = deepcopy(pod)
        if LABEL_SANDBOX in pod["metadata"].get("labels", {}):
            self.change(made)
        return [{"op": "replace", "path": "/spec", "value": made["spec"]}]


@contextmanager
def changing(folder: Path) -> Iterator[Changes]:
    """Have every new pod of a sandbox changed."""
    changes = Changes()
    with ExitStack() as stack:
        for space in SPACES:
            (folder / space).mkdir()
            stack.enter_context(webhook(space, changes, folder / space))
        yield changes


def grants() -> list[dict[str, Any]]:
    """Return roles and bindings by which the accounts may do more than the chart lets them."""
    rules = [
        {"apiGroups": [""], "resources": ["secrets"], "verbs": ["list"]},
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["patch"]},
    ]
    role = {"apiVersion": f"{RBAC}/v1", "kind": "ClusterRole", "metadata": {"name": NAMESPACE}, "rules": rules}
    accounts = [
        {"kind": "ServiceAccount", "name": f"sandpod-{component}", "namespace": NAMESPACE}
        for component in ("gateway", "operator")
    ]
    programs = {"kind": "Group", "name": f"system:serviceaccounts:{BOXES}", "apiGroup": RBAC}
    reference = {"apiGroup": RBAC, "kind": "ClusterRole", "name": NAMESPACE}
    widest = {
        "apiVersion": f"{RBAC}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": NAMESPACE},
        "roleRef": reference,
        "subjects": [*accounts, programs],
    }
    elsewhere = {
        "apiVersion": f"{RBAC}/v1",
        "kind": "RoleBinding",
        "metadata": {"name": NAMESPACE, "namespace": "default"},
        "roleRef": reference,
        "subjects": accounts,
    }
    return [role, widest, elsewhere]


def opening(space: str) -> dict[str, Any]:
    """Return a policy that opens all of a namespace's pods."""
    spec = {"podSelector": {}, "policyTypes": ["Ingress", "Egress"], "ingress": [{}], "egress": [{}]}
    metadata = {"name": "opens-all", "namespace": space}
    return {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": metadata, "spec": spec}


# Where nobody answers at these addresses, the node does. And somebody there has shared memory, and folders for all.
ADDRESSES: Final = ("169.254.169.254/32", "1.1.1.1/32")
SHARED: Final = " ".join(f"/var/tmp/sandpod-verify-{name}" for name in ("workspace", "tmp"))
SEGMENT: Final = "/var/tmp/sandpod-verify-segment"
ON_NODE: Final = f"""
for each in {" ".join(ADDRESSES)}; do ip addr add $each dev lo || true; done
mkdir -p {SHARED}
chmod 777 {SHARED}
nsenter -t 1 -i ipcmk -M 4096 | tr -dc 0-9 > {SEGMENT}
"""
OFF_NODE: Final = f"""
for each in {" ".join(ADDRESSES)}; do ip addr del $each dev lo || true; done
nsenter -t 1 -i ipcrm -m "$(cat {SEGMENT})" || true
rm -rf {SHARED} {SEGMENT}
"""


@pytest.fixture
async def nothing_guarded(cluster: Cluster, release: None) -> AsyncIterator[None]:
    """Take away all that the chart has put beside the sandboxes, and open what it closes."""
    assert release is None
    made = [*grants(), *map(opening, (*SPACES, NAMESPACE))]
    try:
        for each in made:
            writing.apply(each)
        run("kubectl", "delete", "validatingadmissionpolicybindings", f"sandboxes.{NAMESPACE}.sandpod")
        for space in SPACES:
            level = {"pod-security.kubernetes.io/enforce": "privileged"}
            writing.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": space, "labels": level}})
            run("kubectl", "delete", "-n", space, "resourcequota,networkpolicy", "-l", "helm.sh/chart")
            run("kubectl", "delete", "-n", space, "limitrange", "--all")
        await on_every_node(cluster, ON_NODE)
        yield
    finally:
        for each in made:
            writing.remove(each)
        await on_every_node(cluster, OFF_NODE)


async def test_each_promise_that_is_broken_turns_red(nothing_guarded: None, tmp_path: Path) -> None:
    assert nothing_guarded is None
    with changing(tmp_path) as changes:
        found = await verified()
        changes.change = greedy
        more = await verified()
    # Programs that would take what they can get, or kill what they see, are kept from a node that nothing protects.
    assert of(found, Status.NOT_TRIED).keys() == STRAINING
    red = {*of(found, Status.FAIL), *of(more, Status.FAIL)}
    assert red == {row.id for row in ROWS} - UNBROKEN.keys(), of(more, Status.NOT_TRIED)
