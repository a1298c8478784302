"""States of the world, by name, each with the status that it must give: together they reach every reason a Sandbox has.

Called by `unit/operator/status/test_sandbox.py`, and by the test that all reasons are reached.
"""

import json
from datetime import timedelta
from typing import Any, NamedTuple

from sandpod_api import names
from sandpod_api.base import rfc3339
from sandpod_api.conditions import Reason
from sandpod_operator.model.observed import Kernel, ObservedSandbox, Refusal
from sandpod_operator.model.pod import Pod
from support.operator.world import (
    NOW,
    a_pod,
    a_sandbox,
    a_template,
    ago,
    condition,
    ended,
    pod_object,
    running,
    waiting,
)

# It was ready once: what it had in it can be lost.
LIVED = {"startTime": rfc3339(ago(30)), "podName": "box", "nodeName": "node-1", "image": "sandpod/sandbox:test"}


def observed(**parts: Any) -> ObservedSandbox:
    return ObservedSandbox(**{"sandbox": a_sandbox(claimed=30), "template": a_template(), **parts})


def refused(reason: Reason, message: str) -> Refusal:
    return Refusal(reason=reason, message=message, attempts=1, until=NOW + timedelta(seconds=5))


def unschedulable(message: str = "0/1 nodes: too little cpu.") -> dict[str, Any]:
    why = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    return {"phase": "Pending", "conditions": [why]}


def disrupted(reason: str) -> dict[str, Any]:
    why = {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": "Taken away."}
    return {"phase": "Failed", "conditions": [why]}


def told_to_go(reason: str) -> Pod:
    """A pod that still runs, and that somebody deletes who says why."""
    status = running()
    status["conditions"] += disrupted(reason)["conditions"]
    return a_pod(status=status, deletionTimestamp=rfc3339(NOW))


class Case(NamedTuple):
    """A state, and what it must give: conditions as `Type=Status/Reason`, the phase, part of Ready's message."""

    state: ObservedSandbox
    conditions: str
    phase: str
    message: str = ""


NODE = Kernel("node-boot", "6.1.0-node")
GVISOR = a_template(runtimeClassName="gvisor")


def sees(boot_id: str | None, release: str) -> Pod:
    """A running pod whose sandbox has told which kernel it sees."""
    told = {"terminated": {"exitCode": 0, "message": json.dumps({"boot_id": boot_id, "release": release})}}
    return a_pod(status={**running(), "initContainerStatuses": [{"name": "kernel", "state": told}]})


NO_CLAIM = unschedulable('0/1 nodes are available: persistentvolumeclaim "box-1" not found.')
KEPT: dict[str, Any] = {"claimed": 30, "workspace": {"persistent": True}}
RESUMED = {"volumeClaim": "box-1", "conditions": [condition("Suspended", "True", "Suspended", since=9)]}

CLOSED = Pod.model_validate({**pod_object(status=running()), "spec": {"dnsPolicy": "None"}})

SERVES = {"name": names.CONTAINER, "env": [{"name": names.ENV_ALLOW_OPEN_NETWORK, "value": "1"}]}
SERVES_OPEN = Pod.model_validate({**pod_object(status=running()), "spec": {"containers": [SERVES]}})

CASES: dict[str, Case] = {
    "no pod yet": Case(observed(), "PodScheduled=False/PodPending Ready=False/PodPending", "Pending"),
    "template missing": Case(
        observed(template=None),
        "PodScheduled=False/TemplateNotFound Ready=False/TemplateNotFound",
        "Pending",
        "'python'",
    ),
    "claim not seen by the scheduler yet": Case(
        observed(sandbox=a_sandbox(**KEPT), pod=a_pod(status=NO_CLAIM)),
        "PodScheduled=False/Unschedulable Ready=False/Unschedulable",
        "Pending",
    ),
    "claim deleted while it was suspended": Case(
        observed(sandbox=a_sandbox(**KEPT, status=RESUMED), pod=a_pod(status=NO_CLAIM)),
        "PodScheduled=False/WorkspaceLost Ready=False/WorkspaceLost Suspended=False/Resumed",
        "Failed",
        'persistentvolumeclaim "box-1" not found',
    ),
    "profile missing": Case(
        observed(sandbox=a_sandbox(claimed=30, network="web")),
        "PodScheduled=False/ProfileNotFound Ready=False/ProfileNotFound",
        "Pending",
        "no network profile 'web'",
    ),
    "profile opens what no sandbox may reach": Case(
        observed(
            sandbox=a_sandbox(claimed=30, network="web"),
            template=a_template(networkProfiles=[{"name": "web"}]),
            opened="10.96.0.1:443",
        ),
        "PodScheduled=False/ProfileRefused Ready=False/ProfileRefused",
        "Pending",
        "'web' opens 10.96.0.1:443, which no sandbox may reach.",
    ),
    "profile is being changed": Case(
        observed(
            sandbox=a_sandbox(claimed=30, network="web"),
            template=a_template(networkProfiles=[{"name": "web"}]),
            pod=a_pod(status=running()),
        ),
        "NetworkIsolated=True/Probed NetworkApplied=False/Applying Ready=True/Ready",
        "Ready",
    ),
    "profile has DNS that the pod has not": Case(
        observed(
            sandbox=a_sandbox(claimed=30, network="web"),
            template=a_template(networkProfiles=[{"name": "web", "dns": True}]),
            pod=CLOSED,
        ),
        "NetworkIsolated=True/Probed NetworkApplied=False/ProfileRefused Ready=True/Ready",
        "Ready",
    ),
    "quota": Case(
        observed(refusal=refused(Reason.QUOTA_EXCEEDED, "exceeded quota: pods, limited: pods=2")),
        "PodScheduled=False/QuotaExceeded Ready=False/QuotaExceeded",
        "Pending",
        "limited: pods=2",
    ),
    "admission": Case(
        observed(refusal=refused(Reason.ADMISSION_REFUSED, "violates PodSecurity")),
        "PodScheduled=False/AdmissionRefused Ready=False/AdmissionRefused",
        "Pending",
        "violates PodSecurity",
    ),
    "pod of an earlier sandbox": Case(
        observed(name_taken=True), "Ready=False/PodPending", "Pending", "A pod of that name"
    ),
    "pod without a node": Case(
        observed(pod=a_pod()),
        "PodScheduled=False/PodPending NetworkIsolated=Unknown/ProbePending Ready=False/Starting",
        "Pending",
    ),
    "unschedulable": Case(
        observed(pod=a_pod(status=unschedulable())),
        "PodScheduled=False/Unschedulable Ready=False/Unschedulable",
        "Pending",
        "0/1 nodes: too little cpu.",
    ),
    "container is made": Case(
        observed(pod=a_pod(status=waiting("ContainerCreating"))),
        "PodScheduled=True/Scheduled NetworkIsolated=Unknown/ProbePending Ready=False/Starting",
        "Pending",
    ),
    "image can't be pulled": Case(
        observed(pod=a_pod(status=waiting("ErrImagePull", "registry says: no such image"))),
        "PodScheduled=True/Scheduled Ready=False/ImagePullFailed",
        "Pending",
        "registry says: no such image",
    ),
    "image pull waits": Case(
        observed(pod=a_pod(status=waiting("ImagePullBackOff"))), "Ready=False/ImagePullFailed", "Pending"
    ),
    "image name is none": Case(
        observed(pod=a_pod(status=waiting("InvalidImageName"))), "Ready=False/ImagePullFailed", "Pending"
    ),
    "image is never pulled": Case(
        observed(pod=a_pod(status=waiting("ErrImageNeverPull"))), "Ready=False/ImagePullFailed", "Pending"
    ),
    "container can't be configured": Case(
        observed(pod=a_pod(status=waiting("CreateContainerConfigError", "secret not found"))),
        "Ready=False/StartFailed",
        "Failed",
        "secret not found",
    ),
    "container can't be run": Case(
        observed(pod=a_pod(status=ended(128, reason="StartError", message="exec: python3: not found"))),
        "Ready=False/StartFailed",
        "Failed",
        "exec: python3: not found",
    ),
    "container runtime failed": Case(
        observed(pod=a_pod(status=ended(128, reason="StartError", message="failed to start shim: ttrpc: closed"))),
        "Ready=False/StartRetried",
        "Pending",
        "ttrpc: closed",
    ),
    "runner never became ready": Case(
        observed(pod=a_pod(status=ended(137))), "Ready=False/StartFailed", "Failed", "exit code 137"
    ),
    "ready and held": Case(
        observed(pod=a_pod(status=running())),
        "PodScheduled=True/Scheduled NetworkIsolated=True/Probed Ready=True/Ready Expired=False/Alive",
        "Ready",
    ),
    "ready and warm": Case(
        observed(sandbox=a_sandbox(), pod=a_pod(status=running())), "Ready=True/Ready Expired=False/Alive", "Warm"
    ),
    "kernel not told of": Case(
        observed(template=GVISOR, pod=a_pod(status=running()), kernel=NODE),
        "KernelIsolated=Unknown/ProbePending Ready=False/Starting",
        "Pending",
        "kernel is not known",
    ),
    "kernel not compared": Case(
        observed(template=GVISOR, pod=sees("b", "4.4.0")),
        "KernelIsolated=Unknown/ProbePending Ready=False/Starting",
        "Pending",
    ),
    "kernel of its own": Case(
        observed(template=GVISOR, pod=sees("b", NODE.release), kernel=NODE),
        "KernelIsolated=True/Probed Ready=True/Ready",
        "Ready",
    ),
    "kernel of its own without a boot id": Case(
        observed(template=GVISOR, pod=sees("", "4.4.0"), kernel=NODE),
        "KernelIsolated=True/Probed Ready=True/Ready",
        "Ready",
    ),
    "kernel of the node": Case(
        observed(template=GVISOR, pod=sees(NODE.boot_id, "4.4.0"), kernel=NODE),
        "KernelIsolated=False/KernelShared Ready=False/KernelShared",
        "Failed",
        NODE.release,
    ),
    "kernel of the node without a boot id": Case(
        observed(template=GVISOR, pod=sees("", NODE.release), kernel=NODE),
        "KernelIsolated=False/KernelShared Ready=False/KernelShared",
        "Failed",
    ),
    "kernel told of in words that make no sense": Case(
        observed(template=GVISOR, pod=sees(None, "4.4.0"), kernel=NODE),
        "KernelIsolated=False/KernelShared Ready=False/KernelShared",
        "Failed",
        "is invalid",
    ),
    "kernel with nodes that may not be looked at": Case(
        observed(template=GVISOR, pod=sees("b", "4.4.0"), kernel=Kernel()),
        "KernelIsolated=Unknown/NodeUnknown Ready=True/Ready",
        "Ready",
    ),
    "network open": Case(
        observed(pod=a_pod(status=ended(78, message="NetworkOpen: reached 10.96.0.1:443"))),
        "NetworkIsolated=False/NetworkOpen Ready=False/NetworkOpen",
        "Failed",
        "reached 10.96.0.1:443",
    ),
    "network open, which is allowed": Case(
        observed(pod=a_pod(status=ended(78, message="NetworkOpen: reached 10.96.0.1:443")), open_allowed=True),
        "NetworkIsolated=False/NetworkOpen Ready=False/OpenNetworkAllowed",
        "Pending",
        "reached 10.96.0.1:443",
    ),
    "network open, and it serves all the same": Case(
        observed(pod=SERVES_OPEN, open_allowed=True),
        "NetworkIsolated=False/NetworkOpen Ready=True/Ready",
        "Ready",
    ),
    "network open, which is not allowed any more": Case(
        observed(sandbox=a_sandbox(claimed=30, status=LIVED), pod=SERVES_OPEN),
        "NetworkIsolated=False/NetworkOpen Ready=False/NetworkOpen",
        "Failed",
        "no longer allows that",
    ),
    "network opened while it ran": Case(
        observed(
            sandbox=a_sandbox(claimed=30, status=LIVED),
            pod=a_pod(status=ended(78, message="NetworkOpen: reached 10.96.0.1:443")),
            open_allowed=True,
        ),
        "NetworkIsolated=False/NetworkOpen Ready=False/NetworkOpen",
        "Failed",
        "reached 10.96.0.1:443",
    ),
    "exit code 78 without that message": Case(
        observed(pod=a_pod(status=ended(78, message="something else"))),
        "NetworkIsolated=Unknown/ProbePending Ready=False/StartFailed",
        "Failed",
    ),
    "runner ended": Case(
        observed(sandbox=a_sandbox(claimed=30, status=LIVED), pod=a_pod(status=ended(1, message="it broke"))),
        "NetworkIsolated=True/Probed Ready=False/PodFailed",
        "Failed",
        "it broke",
    ),
    "out of memory": Case(
        observed(sandbox=a_sandbox(claimed=30, status=LIVED), pod=a_pod(status=ended(137, reason="OOMKilled"))),
        "Ready=False/OutOfMemory",
        "Failed",
    ),
    "deadline": Case(
        observed(pod=a_pod(status={"phase": "Failed", "reason": "DeadlineExceeded"})),
        "Ready=False/PodFailed",
        "Failed",
        "activeDeadlineSeconds",
    ),
    "evicted by the kubelet": Case(
        observed(pod=a_pod(status={"phase": "Failed", "reason": "Evicted", "message": "Usage exceeds 256Mi"})),
        "Ready=False/Evicted",
        "Failed",
        "Usage exceeds 256Mi",
    ),
    "preempted": Case(
        observed(pod=a_pod(status=disrupted("PreemptionByScheduler"))), "Ready=False/Evicted", "Failed", "Taken away."
    ),
    "drained": Case(
        observed(sandbox=a_sandbox(claimed=30, status=LIVED), pod=told_to_go("EvictionByEvictionAPI")),
        "Ready=False/Evicted",
        "Failed",
        "Taken away.",
    ),
    "node given up": Case(
        observed(sandbox=a_sandbox(claimed=30, status=LIVED), pod=told_to_go("DeletionByTaintManager")),
        "Ready=False/NodeLost",
        "Failed",
        "Taken away.",
    ),
    "node deleted": Case(
        observed(pod=a_pod(status=disrupted("DeletionByPodGC"))), "Ready=False/NodeLost", "Failed", "Taken away."
    ),
    "node shut down": Case(
        observed(pod=a_pod(status={"phase": "Failed", "reason": "NodeShutdown"})), "Ready=False/NodeLost", "Failed"
    ),
    "refused by the kubelet": Case(
        observed(pod=a_pod(status={"phase": "Failed", "reason": "OutOfcpu"})),
        "Ready=False/StartFailed",
        "Failed",
        "OutOfcpu",
    ),
    "pod deleted under it": Case(
        observed(sandbox=a_sandbox(claimed=30, status=LIVED)), "Ready=False/NodeLost", "Failed", "its files with it"
    ),
    "pod being deleted under it": Case(
        observed(
            sandbox=a_sandbox(claimed=30, status=LIVED),
            pod=a_pod(status=running(), deletionTimestamp=rfc3339(NOW)),
        ),
        "Ready=False/NodeLost",
        "Failed",
    ),
    "started, and its node has not told that it is ready": Case(
        observed(pod=a_pod(status=running(ready=False, containers_ready=False))),
        "NetworkIsolated=True/Probed Ready=True/Ready",
        "Ready",
    ),
    "another container of its pod is not ready any more": Case(
        observed(
            sandbox=a_sandbox(claimed=30, status=LIVED),
            pod=a_pod(status=running(ready=False, containers_ready=False)),
        ),
        "NetworkIsolated=True/Probed Ready=True/Ready",
        "Ready",
    ),
    "node does not report": Case(
        observed(sandbox=a_sandbox(claimed=30, status=LIVED), pod=a_pod(status=running(ready=False))),
        "Ready=False/NodeLost",
        "Failed",
        "node does not report",
    ),
    "suspended": Case(
        observed(sandbox=a_sandbox(claimed=30, operatingMode="Suspended", status=LIVED)),
        "PodScheduled=False/Suspended Ready=False/Suspended Suspended=True/Suspended",
        "Suspended",
        "its files are gone",
    ),
    "resumed": Case(
        observed(sandbox=a_sandbox(claimed=30, status={"conditions": [condition("Suspended", "True", "Suspended")]})),
        "Ready=False/PodPending Suspended=False/Resumed NetworkIsolated=Unknown/ProbePending",
        "Pending",
    ),
    "ttl over": Case(
        observed(sandbox=a_sandbox(claimed=30, lifetime={"ttl": 20, "idleTimeout": 20}), pod=a_pod(status=running())),
        "Ready=False/TTLExpired Expired=True/TTLExpired",
        "Expired",
        "ttl",
    ),
    "idle": Case(
        observed(sandbox=a_sandbox(claimed=30, lifetime={"ttl": 90, "idleTimeout": 30}), pod=a_pod(status=running())),
        "Ready=False/IdleTimeout Expired=True/IdleTimeout",
        "Expired",
    ),
}
