"""The API server refuses every pod that is weaker than the operator's, each with its sentence, and takes all of those.

All pods are sent at once and as a dry run, so that none of them is made; no image is needed. The namespace is the
test's own and bound to the chart's policy: among the sandboxes Pod Security would refuse most of them first, and the
LimitRange would give limits to those that have none.
"""

import asyncio
import json
import re
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Final

import pytest

from sandpod_gateway.verify.weaker_pods import BAD_CONTAINERS, REFUSED, Change, Pod, field
from support.cluster.admission_cases import (
    ADMITTED,
    EQUAL,
    OWN,
    WEAK,
    build,
    with_container,
)
from support.cluster.cluster import Cluster, ClusterError, until
from support.operator.process import namespace, run

DENIED: Final = re.compile(
    r'pods "([a-z0-9-]+)" is forbidden: ValidatingAdmissionPolicy .* with binding .* denied request: (.*)'
)


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
    policy = json.loads(run("get", "validatingadmissionpolicies", "sandboxes.sandpod.sandpod", "-o", "json"))
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


# Of a pod that is there: the start of the sentence, and what is changed. All stays as it was but its network profile,
# and its requests by a resize.
FIXED: Final = ("app.kubernetes.io/managed-by", "sandpod.dev/sandbox", "sandpod.dev/template")
CHANGES: Final[dict[str, tuple[str, str, Any]]] = {
    "network": ("", "/metadata/labels/sandpod.dev~1network", "web"),
    "image": ("A container's image is changed", "/spec/containers/0/image", "another:1"),
    "requests": ("", "/spec/containers/0/resources/requests/memory", "130Mi"),
    "limits": ("A container's limits are changed", "/spec/containers/0/resources/limits/memory", "2Gi"),
    **{key: ("The pod's labels", f"/metadata/labels/{key.replace('/', '~1')}", "another") for key in FIXED},
}


@pytest.fixture(scope="module")
def changed(space: Space) -> dict[str, str]:
    """Return what came of each change, as of a pod that is made."""
    command = ["patch", "pod", "waiting", "-n", space.cluster.sandboxes, "--dry-run=server", "--type=json"]

    def answer(change: tuple[str, str, Any]) -> str:
        _, path, value = change
        patch = json.dumps([{"op": "replace", "path": path, "value": value}])
        place = ["--subresource=resize"] if "/resources/" in path else []
        return send([*command, *place, "-p", patch], {})[1].get("waiting", "")

    return {name: answer(change) for name, change in CHANGES.items()}


@pytest.mark.promise("pod-immutable")
@pytest.mark.parametrize("name", CHANGES)
def test_pod_that_is_there_may_get_another_network_profile_or_requests_only(changed: dict[str, str], name: str) -> None:
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
