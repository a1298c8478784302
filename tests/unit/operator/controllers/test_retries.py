"""A pod that the container runtime failed to start is tried anew, once; all else that keeps one from it is final."""

from typing import Any

import pytest

from sandpod_api import names
from sandpod_api.conditions import Reason
from sandpod_kube.errors import ConflictError
from sandpod_kube.resources import POOLS, SANDBOXES, TEMPLATES, Key, Resource
from sandpod_operator.status.failures import runtime_fault
from support.operator.world import (
    SPACE,
    World,
    a_pod,
    ended,
    metadata,
    running,
    sandbox_object,
    template_object,
    waiting,
)

POD = Key("Pod", SPACE, "box")
RUNC = "failed to create containerd task: failed to create shim task: OCI runtime create failed: runc create failed: "
FAULTS = [
    RUNC + "unable to start container process: can't get final child's PID from pipe: EOF",
    RUNC + "unable to apply cgroup configuration: unlinkat /sys/fs/cgroup/kubepods/x: device or resource busy",
    "failed to create containerd task: failed to create shim task: context deadline exceeded",
    "failed to start shim: start failed: fork/exec /usr/bin/containerd-shim-runc-v2: resource temporarily unavailable",
    "failed to create containerd task: failed to create shim task: ttrpc: closed: unknown",
    "namespace path: lstat /proc/4711/ns/ipc: no such file or directory",
]
LASTING = [
    RUNC + 'unable to start container process: exec: "nosuch": executable file not found in $PATH',
    RUNC + 'unable to start container process: exec: "/bin/x": permission denied',
    RUNC + "unable to start container process: exec /bin/x: exec format error",
    RUNC
    + 'unable to start container process: chdir to cwd ("/workspace") set in config.json failed: permission denied',
    RUNC + 'error mounting "/var/lib/x" to rootfs at "/etc/passwd": not a directory',
    RUNC + "container init was OOM-killed (memory limit too low?)",
    f"stat {names.RUNNER_HOME}/bin/python3: no such file or directory",
    'creating container: cannot find "x": error finding executable "x" in PATH',
]


def failed(message: str) -> dict[str, Any]:
    return ended(128, reason="StartError", message=message)


@pytest.mark.parametrize("message", FAULTS)
def test_fault_of_the_runtime_may_pass(message: str) -> None:
    assert runtime_fault(a_pod(status=failed(message))) == message
    assert runtime_fault(a_pod(status=waiting("CreateContainerError", message))) == message
    assert runtime_fault(a_pod(status=waiting("RunContainerError", message))) == message
    first = {"name": "runner", "state": {"terminated": {"exitCode": 128, "reason": "StartError", "message": message}}}
    assert runtime_fault(a_pod(status={"phase": "Failed", "initContainerStatuses": [first]})) == message


@pytest.mark.parametrize("message", LASTING)
def test_fault_of_command_image_or_mounts_does_not_pass(message: str) -> None:
    assert runtime_fault(a_pod(status=failed(message))) is None
    assert runtime_fault(a_pod(status=waiting("CreateContainerError", message))) is None


@pytest.mark.parametrize(
    "status",
    [
        {"phase": "Pending"},
        running(),
        waiting("ContainerCreating"),
        waiting("CreateContainerConfigError", "secret not found"),
        waiting("ImagePullBackOff", FAULTS[0]),
        # It ran, and what it says is its own.
        ended(1, message=FAULTS[0]),
        ended(137, reason="OOMKilled", message=FAULTS[0]),
        ended(128, reason="StartError"),
        {**failed(FAULTS[0]), "reason": "Evicted"},
    ],
)
def test_anything_else_is_no_fault_of_the_runtime(status: dict[str, Any]) -> None:
    assert runtime_fault(a_pod(status=status)) is None


async def new_world() -> World:
    world = World()
    world.close_namespace()
    await world.given(TEMPLATES, template_object())
    made = sandbox_object(claimed=0)
    await world.given(SANDBOXES, made)
    return world


def uid(world: World) -> str:
    found: str = world.api.objects[POD]["metadata"]["uid"]
    return found


async def test_fresh_pod_is_tried_and_the_sandbox_becomes_ready() -> None:
    world = await new_world()
    first = uid(world)
    await world.pod_becomes("box", failed(FAULTS[0]))
    assert uid(world) != first
    status = world.sandbox().status
    assert (status.phase, status.retried_pod) == ("Pending", first)
    assert [(e.reason, e.kind) for e in world.events][1:] == [("StartRetried", "Warning"), ("PodCreated", "Normal")]
    await world.pod_becomes("box", running())
    status = world.sandbox().status
    assert (status.phase, status.retried_pod) == ("Ready", None)


async def test_second_fault_is_final_and_told_with_its_words() -> None:
    world = await new_world()
    await world.pod_becomes("box", failed(FAULTS[0]))
    second = uid(world)
    await world.pod_becomes("box", failed(FAULTS[1]))
    status = world.sandbox().status
    assert (status.phase, status.reason) == ("Failed", Reason.START_FAILED)
    assert any("resource busy" in c.message for c in status.conditions if c.type == "Ready")
    assert uid(world) == second
    await world.after(world.settings.failed_pod_grace)
    assert world.named("Pod") == []


async def test_operator_that_restarts_between_the_two_still_tries_only_once() -> None:
    world = await new_world()
    await world.pod_becomes("box", failed(FAULTS[0]))
    world.start()
    await world.dispatcher.resync()
    await world.settle()
    await world.pod_becomes("box", failed(FAULTS[0]))
    assert world.sandbox().status.phase == "Failed"


async def test_lasting_fault_is_final_at_once() -> None:
    world = await new_world()
    first = uid(world)
    await world.pod_becomes("box", failed(LASTING[0]))
    assert (world.sandbox().status.phase, world.sandbox().status.reason) == ("Failed", Reason.START_FAILED)
    assert uid(world) == first


async def test_pool_is_not_blocked_by_a_sandbox_that_is_tried_anew() -> None:
    world = World()
    world.close_namespace()
    await world.given(TEMPLATES, template_object())
    spec = {"templateRef": {"name": "python"}, "replicas": 1}
    await world.given(POOLS, {"metadata": metadata("warm"), "spec": spec})
    (name,) = world.named("Sandbox")
    await world.pod_becomes(name, failed(FAULTS[0]))
    await world.after(1)
    assert world.named("Sandbox") == [name]
    assert "PoolBlocked" not in [e.reason for e in world.events]
    await world.start_all()
    await world.after(1)
    assert world.pool().status.ready_replicas == 1


async def test_warm_sandbox_that_failed_counts_once_though_its_deletion_is_tried_twice() -> None:
    world = World()
    world.close_namespace()
    await world.given(TEMPLATES, template_object())
    await world.given(POOLS, {"metadata": metadata("warm"), "spec": {"templateRef": {"name": "python"}, "replicas": 1}})
    [name] = world.named("Pod")
    delete, tries = world.api.delete, 0

    async def changed_meanwhile(
        resource: Resource, namespace: str, key: str, preconditions: dict[str, str]
    ) -> dict[str, Any]:
        nonlocal tries
        tries += resource is SANDBOXES
        if resource is SANDBOXES and tries == 1:
            raise ConflictError(409, "Conflict", "the object has been modified")
        return await delete(resource, namespace, key, preconditions)

    world.api.delete = changed_meanwhile  # type: ignore[method-assign,assignment]  # an API server with other writers
    await world.pod_becomes(name, ended(1))
    await world.after(6)
    assert tries == 2
    assert [backoff.failures for backoff in world.state.backoffs.values()] == [1]
