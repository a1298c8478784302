"""Pods that are less restricted than a sandbox's, each in one thing: what the API server must refuse.

Each case has the start of the admission policy's sentence and a change of a pod, or of one of its containers.
"""

from collections.abc import Callable
from copy import deepcopy
from typing import Any, Final

Pod = dict[str, Any]
Change = Callable[[Pod], object]


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
    """Add a volume to the pod."""
    return lambda made: made["spec"]["volumes"].append({"name": "more", **source})


def annotated(made: Pod) -> None:
    """Turn AppArmor off as it was done before there was a field for it."""
    key = "container.apparmor.security.beta.kubernetes.io/sandbox"
    made["metadata"]["annotations"] = {key: "unconfined"}


def nameless_user(made: Pod) -> None:
    """Name no user, of the pod or of its container."""
    del made["spec"]["securityContext"]["runAsUser"]
    del made["spec"]["containers"][0]["securityContext"]["runAsUser"]


def filterless(made: Pod) -> None:
    """Say nothing of system calls, of the pod or of its container."""
    del made["spec"]["securityContext"]["seccompProfile"]
    del made["spec"]["containers"][0]["securityContext"]["seccompProfile"]


REFUSED: Final = "sandpod-test-refused"
"""A RuntimeClass that no policy admits; the API server refuses one that is not there in words of its own."""


def injected(made: Pod) -> None:
    """Put a container before the pod's own, as meshes do."""
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
