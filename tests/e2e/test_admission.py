"""The API server refuses every pod that is weaker than the operator's, each with its sentence, and takes all of those.

All pods are sent at once and as a dry run, so that none of them is made; no image is needed. The namespace is the
test's own and bound to the chart's policy: among the sandboxes Pod Security would refuse most of them first, and the
LimitRange would give limits to those that have none.
"""

import asyncio
import json
import re
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Final

import pytest

from sandpod_api.types import NetworkProfile
from sandpod_operator.manifests.pod import build_pod
from support.cluster.cluster import Cluster, ClusterError, until
from support.operator.process import namespace, run
from support.operator.world import a_sandbox, a_template, settings

Pod = dict[str, Any]
Change = Callable[[Pod], object]

CLOSED: Final = NetworkProfile(name="none")
OPEN: Final = NetworkProfile(name="web", dns=True)
DENIED: Final = re.compile(
    r'pods "([a-z0-9-]+)" is forbidden: ValidatingAdmissionPolicy .* with binding .* denied request: (.*)'
)


def build(profile: NetworkProfile = CLOSED, *, default: bool | None = None, warm: bool = True, **template: Any) -> Pod:
    sandbox = a_sandbox(claimed=None if warm else 0, network=profile.name)
    return build_pod(sandbox, a_template(**template), profile, settings(host_users=default))


# The operator's pods, with each thing that a template can say about them. One more needs a runtime, see below.
OWN: Final[dict[str, Pod]] = {
    "own-plain": build(),
    "own-claimed": build(warm=False),
    "own-disk": build(workspace={"medium": "Disk"}),
    "own-persistent": build(workspace={"persistent": True}),
    "own-injected": build(
        runner="Injected", image="ruby:3.3", languages=[{"name": "ruby", "command": ["ruby", "{file}"]}]
    ),
    "own-user-namespace": build(hostUsers=False),
    "own-default-user-namespace": build(default=False),
    "own-shared-user-namespace": build(hostUsers=True, default=False),
    "own-profile": build(OPEN, networkProfiles=[{"name": "web", "dns": True}]),
    "own-placed": build(nodeSelector={"pool": "sandboxes"}, tolerations=[{"key": "sandboxes"}]),
    "own-pull-secret": build(imagePullSecrets=["registry"]),
    "own-apparmor": build(appArmorProfile={"type": "Localhost", "localhostProfile": "sandbox"}),
    "own-preimport": build(preimport=["numpy"], limits={"processes": 99}),
}


def said_by_the_pod() -> Pod:
    """Return a pod whose container says no more than it must itself."""
    made = build()
    context = made["spec"]["containers"][0]["securityContext"]
    for key in made["spec"]["securityContext"]:
        context.pop(key, None)
    return made


# No pods of the operator's, and as locked down.
EQUAL: Final[dict[str, Pod]] = {"equal-said-by-the-pod": said_by_the_pod()}


def pod(**fields: Any) -> Change:
    """Set fields of the pod's spec."""
    return lambda made: made["spec"].update(fields)


def context(**fields: Any) -> Change:
    """Set fields of the pod's security context."""
    return lambda made: made["spec"]["securityContext"].update(fields)


def without(field: str) -> Change:
    """Leave a field of the pod's spec out."""
    return lambda made: made["spec"].pop(field)


def volume(**source: Any) -> Change:
    return lambda made: made["spec"]["volumes"].append({"name": "more", **source})


def annotated(made: Pod) -> None:
    key = "container.apparmor.security.beta.kubernetes.io/sandbox"
    made["metadata"]["annotations"] = {key: "unconfined"}


def nameless_user(made: Pod) -> None:
    del made["spec"]["securityContext"]["runAsUser"]
    del made["spec"]["containers"][0]["securityContext"]["runAsUser"]


def filterless(made: Pod) -> None:
    del made["spec"]["securityContext"]["seccompProfile"]
    del made["spec"]["containers"][0]["securityContext"]["seccompProfile"]


ADMITTED, REFUSED = "sandpod-test-admitted", "sandpod-test-refused"  # RuntimeClasses; the first is in values.yaml


def injected(made: Pod) -> None:
    made["spec"]["containers"].insert(0, {**deepcopy(made["spec"]["containers"][0]), "name": "proxy"})


UNCONFINED: Final = {"type": "Unconfined"}
TOKEN: Final = {"serviceAccountToken": {"path": "token"}}

# Of a pod: the start of the sentence, and what is wrong.
BAD: Final[dict[str, tuple[str, Change]]] = {
    "host-network": ("The pod uses the node's network", pod(hostNetwork=True)),
    "host-pid": ("The pod sees the node's processes", pod(hostPID=True)),
    "host-ipc": ("The pod shares memory and semaphores", pod(hostIPC=True)),
    "host-users": ("The pod asks for the node's user namespace", pod(hostUsers=True)),
    "node-name": ("The pod names its node", pod(nodeName="a-node")),
    "resource-claims": ("The pod claims devices", pod(resourceClaims=[{"name": "gpu", "resourceClaimName": "gpu"}])),
    "runtime-class": ("The pod's RuntimeClass is none of those", pod(runtimeClassName=REFUSED)),
    "priority": ("The pod's priority is above 0", pod(priorityClassName="system-node-critical")),
    "injected": ("The pod has a container that is none of a sandbox's", injected),
    "host-path": ("A volume is of a kind", volume(hostPath={"path": "/"})),
    "secret": ("A volume is of a kind", volume(secret={"secretName": "x"})),
    "config-map": ("A volume is of a kind", volume(configMap={"name": "x"})),
    "projected-token": ("A volume is of a kind", volume(projected={"sources": [TOKEN]})),
    "downward": ("A volume is of a kind", volume(downwardAPI={})),
    "nfs": ("A volume is of a kind", volume(nfs={"server": "10.0.0.1", "path": "/"})),
    "csi": ("A volume is of a kind", volume(csi={"driver": "x.example"})),
    "token": ("The pod gets a service account token", pod(automountServiceAccountToken=True)),
    "token-unsaid": ("The pod gets a service account token", without("automountServiceAccountToken")),
    "account": ("The pod has a service account of its own", pod(serviceAccountName="other")),
    "service-links": ("The pod's environment tells", without("enableServiceLinks")),
    "host-aliases": ("The pod gives names", pod(hostAliases=[{"ip": "10.0.0.1", "hostnames": ["a.example"]}])),
    "restart-always": ("The pod or a container starts again", without("restartPolicy")),
    "restart-on-failure": ("The pod or a container starts again", pod(restartPolicy="OnFailure")),
    "no-deadline": ("The pod may run for ever", without("activeDeadlineSeconds")),
    "far-deadline": ("The pod may run for ever", pod(activeDeadlineSeconds=14 * 86400 + 3601)),
    "shared-processes": ("The pod's containers see each other", pod(shareProcessNamespace=True)),
    "user-unsaid": ("A container's user is root or is not named", nameless_user),
    "fs-group": ("A container is in the group root", context(fsGroup=0)),
    "more-groups": ("A container is in the group root", context(supplementalGroups=[5])),
    "pod-seccomp": ("A container's system calls are not filtered", context(seccompProfile=UNCONFINED)),
    "seccomp-unsaid": ("A container's system calls are not filtered", filterless),
    "pod-apparmor": ("A container is without its AppArmor profile", context(appArmorProfile=UNCONFINED)),
    "annotated-apparmor": ("A container is without its AppArmor profile", annotated),
    "pod-selinux": ("The pod or a container chooses its SELinux", context(seLinuxOptions={"type": "spc_t"})),
    "pod-windows": ("The pod or a container has options for Windows", context(windowsOptions={"runAsUserName": "x"})),
    "sysctls": ("The pod changes the kernel's parameters", context(sysctls=[{"name": "kernel.msgmax", "value": "1"}])),
}


def field(**fields: Any) -> Change:
    """Set fields of a container."""
    return lambda container: container.update(fields)


def security(**fields: Any) -> Change:
    """Set fields of a container's security context; None leaves one out."""

    def change(container: dict[str, Any]) -> None:
        merged = {**container["securityContext"], **fields}
        container["securityContext"] = {key: value for key, value in merged.items() if value is not None}

    return change


def variable(**source: Any) -> Change:
    """Give a container a variable from elsewhere."""
    return field(env=[{"name": "MORE", "valueFrom": source}])


def limited(*names: str) -> Change:
    """Give a container no other limits than these."""
    return field(resources={"limits": dict.fromkeys(names, "1Gi")})


PORT: Final = {"containerPort": 80}
HTTP: Final = {"httpGet": {"host": "10.0.0.1", "port": 80}}
KEY: Final = {"name": "x", "key": "y"}

# Of any container, also one that a debugger adds.
BAD_CONTAINERS: Final[dict[str, tuple[str, Change]]] = {
    "secret-variable": ("A container takes its environment", variable(secretKeyRef=KEY)),
    "config-variable": ("A container takes its environment", variable(configMapKeyRef=KEY)),
    "all-variables": ("A container takes its environment", field(envFrom=[{"secretRef": {"name": "x"}}])),
    "privileged": ("A container is privileged", security(privileged=True, allowPrivilegeEscalation=True)),
    "escalation": ("A container may gain privileges", security(allowPrivilegeEscalation=True)),
    "escalation-unsaid": ("A container may gain privileges", security(allowPrivilegeEscalation=None)),
    "capability-added": ("A container has cap", security(capabilities={"drop": ["ALL"], "add": ["NET_RAW"]})),
    "capability-kept": ("A container has cap", security(capabilities={"drop": ["NET_RAW"]})),
    "capabilities-unsaid": ("A container has cap", security(capabilities=None)),
    "maybe-root": ("A container may start as root", security(runAsNonRoot=False)),
    "root": ("A container's user is root", security(runAsUser=0)),
    "root-group": ("A container is in the group root", security(runAsGroup=0)),
    "writable": ("A container's root file system", security(readOnlyRootFilesystem=False)),
    "writable-unsaid": ("A container's root file system", security(readOnlyRootFilesystem=None)),
    "seccomp": ("A container's system calls are not filtered", security(seccompProfile=UNCONFINED)),
    "apparmor": ("A container is without its AppArmor profile", security(appArmorProfile=UNCONFINED)),
    "selinux": ("The pod or a container chooses its SELinux", security(seLinuxOptions={"level": "s0"})),
    "windows": ("The pod or a container has options for Win", security(windowsOptions={"runAsUserName": "x"})),
    "proc-mount": ("A container sees all of /proc", security(procMount="Unmasked")),
}
# Kubernetes itself lets no debugger's container have these.
BAD_LASTING: Final[dict[str, tuple[str, Change]]] = {
    "port": ("A container names ports", field(ports=[PORT])),
    "host-port": ("A container names ports", field(ports=[{**PORT, "hostPort": 80}])),
    "no-cpu": ("A container is without bounds", limited("memory", "ephemeral-storage")),
    "no-memory": ("A container is without bounds", limited("cpu", "ephemeral-storage")),
    "no-storage": ("A container is without bounds", limited("cpu", "memory")),
    "no-limits": ("A container is without bounds", field(resources={})),
}
# And these only the pod's main container, and the next only one that starts before it.
BAD_MAIN: Final[dict[str, tuple[str, Change]]] = {
    "liveness": ("A probe or a lifecycle hook", field(livenessProbe=HTTP)),
    "readiness": ("A probe or a lifecycle hook", field(readinessProbe={"tcpSocket": {"port": 80}})),
    "startup": ("A probe or a lifecycle hook", field(startupProbe={"grpc": {"port": 80}})),
    "hook": ("A probe or a lifecycle hook", field(lifecycle={"preStop": HTTP})),
}
BAD_INIT: Final[dict[str, tuple[str, Change]]] = {
    "sidecar": ("The pod or a container starts again", field(restartPolicy="Always")),
}
PLACES: Final = {
    "containers": {**BAD_CONTAINERS, **BAD_LASTING, **BAD_MAIN},
    "initContainers": {**BAD_CONTAINERS, **BAD_LASTING, **BAD_INIT},
    "ephemeralContainers": BAD_CONTAINERS,
}


def with_container(place: str, change: Change, *, base: Pod | None = None) -> Pod:
    """Return a pod with one container that is changed."""
    made = deepcopy(base) if base else build(runner="Injected", hostUsers=False)
    spec = made["spec"]
    if place == "ephemeralContainers":
        main = spec["containers"][0]
        spec[place] = [{"name": "debugger", "image": "x", "securityContext": deepcopy(main["securityContext"])}]
    change(spec[place][0])
    return made


def weak_pods() -> dict[str, tuple[str, Pod]]:
    """Return all bad pods by name, each with the start of its sentence."""
    found: dict[str, tuple[str, Pod]] = {}
    for name, (sentence, change) in BAD.items():
        found[name] = (sentence, build())
        change(found[name][1])
    for place in ("containers", "initContainers"):
        for name, (sentence, change) in PLACES[place].items():
            found[f"{place.lower()}-{name}"] = (sentence, with_container(place, change))
    return found


WEAK: Final = weak_pods()


@dataclass(frozen=True)
class Space:
    """A namespace with the policy in force.

    Attributes:
        policy: The chart's.
        answers: What came of all pods: the sentence, or nothing for those taken.
        waiting: A pod there that no node takes.
    """

    cluster: Cluster
    policy: dict[str, Any]
    answers: dict[str, str]
    waiting: Pod


def send(command: list[str], thing: dict[str, Any]) -> tuple[str, dict[str, str]]:
    """Give kubectl something, and return what it printed and the sentence of each pod that the policy refused."""
    done = subprocess.run(
        ["kubectl", *command], input=json.dumps(thing), capture_output=True, text=True, check=False, timeout=120
    )
    refused: dict[str, str] = {}
    for line in done.stderr.splitlines():
        denied = DENIED.search(line)
        assert denied or line.startswith("Warning:"), line
        if denied:
            refused[denied[1]] = denied[2]
    return done.stdout, refused


def try_out(namespace: str, pods: dict[str, Pod]) -> dict[str, str]:
    """Send all pods as a dry run and return what each was answered, by name."""
    for name, made in pods.items():
        made["metadata"] |= {"name": name, "namespace": namespace}
    items = {"apiVersion": "v1", "kind": "List", "items": list(pods.values())}
    command = ["create", "-f", "-", "--dry-run=server", "--validate=false", "-o", "name"]
    printed, refused = send(command, items)
    answers = {**{line.removeprefix("pod/"): "" for line in printed.splitlines()}, **refused}
    assert set(answers) == set(pods)
    return answers


def chart_policy() -> dict[str, Any]:
    chosen = "app.kubernetes.io/instance=sandpod,app.kubernetes.io/component=sandboxes"
    [policy] = json.loads(run("get", "validatingadmissionpolicies", "-l", chosen, "-o", "json"))["items"]
    assert isinstance(policy, dict)
    return policy


def objects(namespace: str, policy: dict[str, Any]) -> dict[str, Any]:
    """Return what the pods need: a binding of the policy, a service account, and the RuntimeClasses that two name."""
    label = {"kubernetes.io/metadata.name": namespace}
    binding = {
        "apiVersion": policy["apiVersion"],
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": namespace},
        "spec": {
            "policyName": policy["metadata"]["name"],
            "validationActions": ["Deny"],
            "matchResources": {"namespaceSelector": {"matchLabels": label}},
        },
    }
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "other", "namespace": namespace}}
    runtimes = [
        {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": name}, "handler": "runsc"}
        for name in (ADMITTED, REFUSED)
    ]
    return {"apiVersion": "v1", "kind": "List", "items": [binding, account, *runtimes]}


@pytest.fixture(scope="module")
def space(cluster: Cluster) -> Iterator[Space]:
    assert cluster.sandboxes
    policy = chart_policy()
    with namespace("admission", level="privileged") as own:
        name = own.sandboxes
        made = json.dumps(objects(name, policy))
        run("apply", "-f", "-", stdin=made)
        try:
            asyncio.run(in_force(own))
            runtime = {"own-runtime-class": build(runtimeClassName=ADMITTED)}
            waiting = build(nodeSelector={"sandpod.dev/no": "node"}, hostUsers=False)
            # Its Sandbox does not exist, so that it would be deleted as its orphan.
            del waiting["metadata"]["ownerReferences"]
            waiting["metadata"] |= {"name": "waiting", "namespace": name}
            stored = json.loads(run("create", "-f", "-", "-o", "json", stdin=json.dumps(waiting)))
            # The scheduler writes it too.
            del stored["metadata"]["resourceVersion"]
            pods = {**OWN, **runtime, **EQUAL, **{weak: made for weak, (_, made) in WEAK.items()}}
            yield Space(own, policy, try_out(name, deepcopy(pods)), stored)
        finally:
            run("delete", "-f", "-", "--wait=false", stdin=made)


async def in_force(own: Cluster) -> None:
    """Wait until the namespace refuses a pod by the policy: API server and accounts follow in their own time."""
    bad = WEAK["host-pid"][1]
    bad["metadata"] |= {"name": "host-pid", "namespace": own.sandboxes}

    async def look() -> bool:
        command = ["create", "-f", "-", "--dry-run=server"]
        try:
            await own.kubectl(*command, stdin=json.dumps(bad))
        except ClusterError as error:
            return DENIED.search(str(error)) is not None
        return False

    await until("the policy is in force", look, within=60)


@pytest.mark.promise("every-rule")
@pytest.mark.parametrize("name", [*OWN, "own-runtime-class", *EQUAL])
def test_pod_of_the_operators_or_an_equal_one_is_taken(space: Space, name: str) -> None:
    assert not space.answers[name]


@pytest.mark.promise("weaker-pod")
@pytest.mark.parametrize("name", WEAK)
def test_weaker_pod_is_refused_with_its_sentence(space: Space, name: str) -> None:
    assert space.answers[name].startswith(WEAK[name][0])


# Of a pod that is there: the start of the sentence, and what is changed. All but the network profile stay as they were.
FIXED: Final = ("app.kubernetes.io/managed-by", "sandpod.dev/sandbox", "sandpod.dev/template")
CHANGES: Final[dict[str, tuple[str, str, Any]]] = {
    "network": ("", "/metadata/labels/sandpod.dev~1network", "web"),
    "image": ("A container's image is changed", "/spec/containers/0/image", "another:1"),
    **{key: ("The pod's labels", f"/metadata/labels/{key.replace('/', '~1')}", "another") for key in FIXED},
}


@pytest.fixture(scope="module")
def changed(space: Space) -> dict[str, str]:
    """Return what came of each change, as of a pod that is made."""
    command = ["patch", "pod", "waiting", "-n", space.cluster.sandboxes, "--dry-run=server", "--type=json"]

    def answer(change: tuple[str, str, Any]) -> str:
        _, path, value = change
        patch = json.dumps([{"op": "replace", "path": path, "value": value}])
        return send([*command, "-p", patch], {})[1].get("waiting", "")

    return {name: answer(change) for name, change in CHANGES.items()}


@pytest.mark.promise("pod-immutable")
@pytest.mark.parametrize("name", CHANGES)
def test_pod_that_is_there_may_get_another_network_profile_and_nothing_else(changed: dict[str, str], name: str) -> None:
    start = CHANGES[name][0]
    assert changed[name].startswith(start)
    assert bool(changed[name]) == bool(start)


@pytest.mark.promise("every-rule")
def test_every_rule_of_the_policy_has_a_pod_that_breaks_it(space: Space, changed: dict[str, str]) -> None:
    broken = {answer for answer in (*space.answers.values(), *changed.values()) if answer}
    assert {rule["message"] for rule in space.policy["spec"]["validations"]} == broken


def test_api_server_finds_no_fault_in_the_policy(space: Space) -> None:
    assert space.policy["status"]["typeChecking"] == {}


@pytest.mark.promise("debug-container")
def test_weaker_container_can_not_be_added_to_debug_a_pod_and_an_equal_one_can(space: Space) -> None:
    path = f"/api/v1/namespaces/{space.cluster.sandboxes}/pods/waiting/ephemeralcontainers?dryRun=All"

    def answer(change: Change) -> str:
        made = with_container("ephemeralContainers", change, base=space.waiting)
        return send(["replace", "--raw", path, "-f", "-"], made)[1].get("waiting", "")

    assert not answer(field())
    with ThreadPoolExecutor(4) as pool:
        answers = dict(
            zip(BAD_CONTAINERS, pool.map(answer, [rule[1] for rule in BAD_CONTAINERS.values()]), strict=True)
        )
    assert [name for name, (start, _) in BAD_CONTAINERS.items() if not answers[name].startswith(start)] == []


async def test_pod_that_was_taken_can_be_changed_and_deleted(space: Space) -> None:
    where = ("waiting", "-n", space.cluster.sandboxes, "--dry-run=server")
    await space.cluster.kubectl("label", "pod", *where, "more=yes")
    finalizer = json.dumps({"metadata": {"finalizers": ["sandpod.dev/test"]}})
    await space.cluster.kubectl("patch", "pod", *where, "--type=merge", "-p", finalizer)
    status = json.dumps({"status": {"phase": "Running"}})
    await space.cluster.kubectl("patch", "pod", *where, "--subresource=status", "--type=merge", "-p", status)
    await space.cluster.kubectl("delete", "pod", *where)


@pytest.mark.promise("weaker-pod")
def test_policy_holds_among_the_sandboxes(cluster: Cluster) -> None:
    pods = {"good": build(), "bad": build()}
    pods["bad"]["spec"]["restartPolicy"] = "Always"
    answers = try_out(cluster.sandboxes, pods)
    assert not answers["good"]
    assert answers["bad"].startswith("The pod or a container starts again")
