"""Builds pods, volume claims and warm Sandboxes: equal input, equal manifest. What locks a pod is in `security`."""

import hashlib
import json
from collections.abc import Sequence
from typing import Any, Final

from sandpod_api import names
from sandpod_api.conditions import ConditionType, Reason, find
from sandpod_api.fields import MAX_LIFETIME, Workspace, parse_quantity
from sandpod_api.templates import NetworkProfile, SandboxTemplate
from sandpod_api.types import Sandbox, SandboxPool
from sandpod_kube import resources
from sandpod_operator.manifests import security
from sandpod_operator.manifests.requests import build_annotations, build_requests
from sandpod_operator.settings import OperatorSettings

SERVE_COMMAND: Final = (*names.RUNNER_COMMAND, "serve")
READY_COMMAND: Final = (*names.RUNNER_COMMAND, "ready")
# The copy belongs to the programs' user, who can't change its mode: in the sandbox this folder is read-only.
_BRING: Final = f"cp -R {names.PORTABLE_RUNNER}/. {names.RUNNER_HOME} && chmod 0111 {names.SHIELDED_COMMAND[0]}"
KERNEL_COMMAND: Final = (*names.RUNNER_COMMAND, "kernel")
_START_SECONDS: Final = 60
_MARGIN: Final = 3600
_TERMINATION: Final = {"terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File"}
_RUNNER_MOUNT: Final = {"name": "runner", "mountPath": names.RUNNER_HOME, "readOnly": True}
# Istio and Linkerd add no proxy then, whatever the namespace says: it could connect nowhere from a sandbox.
_NO_PROXY_LABELS: Final = {"sidecar.istio.io/inject": "false", "istio.io/dataplane-mode": "none"}
_NO_PROXY_ANNOTATIONS: Final = {"linkerd.io/inject": "disabled"}
_TMP: Final = "/tmp"  # noqa: S108 - the pod's own, sized and in memory


def child_metadata(
    name: str, resource: resources.Resource, owner: Sandbox | SandboxPool | SandboxTemplate, labels: dict[str, str]
) -> dict[str, Any]:
    """Return the metadata of an object that Kubernetes deletes together with its owner, of that kind."""
    reference = {**resource.header, "name": owner.metadata.name, "uid": owner.metadata.uid}
    return {
        "name": name,
        "namespace": owner.metadata.namespace,
        "labels": {names.LABEL_MANAGED_BY: names.MANAGED_BY, **labels},
        "ownerReferences": [{**reference, "controller": True, "blockOwnerDeletion": False}],
    }


def template_hash(template: SandboxTemplate) -> str:
    """Return a short hash of all that a template says of its pods; warm sandboxes with another one are out of date."""
    spec = template.spec.to_wire()
    del spec["secrets"]  # no pod has them
    text = json.dumps(spec, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def build_warm_sandbox(pool: SandboxPool, template: SandboxTemplate, suffix: str) -> dict[str, Any]:
    """Return a Sandbox that waits in the pool; the claim patch takes it out by removing the owner reference."""
    labels = {
        names.LABEL_TEMPLATE: template.metadata.name,
        names.LABEL_POOL: pool.metadata.name,
        names.LABEL_STATE: names.STATE_WARM,
    }
    metadata = child_metadata(names.child_name(pool.metadata.name, suffix), resources.POOLS, pool, labels)
    return {
        **resources.SANDBOXES.header,
        "metadata": {**metadata, "annotations": {names.ANNOTATION_TEMPLATE_HASH: template_hash(template)}},
        "spec": {
            "templateRef": {"name": template.metadata.name},
            # Should the template be gone one day, the Sandbox says that its files outlive its pod.
            **({"workspace": workspace.to_wire()} if (workspace := template.spec.workspace).persistent else {}),
        },
    }


def build_volume_claim(sandbox: Sandbox, workspace: Workspace) -> dict[str, Any]:
    """Return the volume claim of a persistent workspace; it lives as long as the Sandbox."""
    name = names.volume_claim_name(sandbox.metadata.name, sandbox.metadata.uid)
    return {
        **resources.VOLUME_CLAIMS.header,
        "metadata": child_metadata(name, resources.SANDBOXES, sandbox, {names.LABEL_SANDBOX: sandbox.metadata.name}),
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": workspace.size}},
            **({"storageClassName": workspace.storage_class_name} if workspace.storage_class_name else {}),
        },
    }


def workspace_of(sandbox: Sandbox, template: SandboxTemplate) -> Workspace:
    """Return the workspace that a sandbox has: its own if it names one, else its template's."""
    return sandbox.spec.workspace or template.spec.workspace


def find_profile(sandbox: Sandbox, template: SandboxTemplate) -> NetworkProfile | None:
    """Return the network profile that the sandbox names, or None where its template has none of that name."""
    if sandbox.spec.network == names.NETWORK_NONE:
        return NetworkProfile(name=names.NETWORK_NONE)
    return next((p for p in template.spec.network_profiles if p.name == sandbox.spec.network), None)


def found_open(sandbox: Sandbox) -> bool:
    """Return whether the sandbox's network was last known to be open."""
    found = find(sandbox.status.conditions, ConditionType.NETWORK_ISOLATED)
    return found is not None and found.reason == Reason.NETWORK_OPEN


def build_pod(
    sandbox: Sandbox,
    template: SandboxTemplate,
    profile: NetworkProfile,
    settings: OperatorSettings,
    *,
    user_namespaces: bool = False,
) -> dict[str, Any]:
    """Return the pod of a sandbox; with `user_namespaces` its nodes can give it a user namespace of its own."""
    spec = template.spec
    own_users = security.has_own_users(spec, default=settings.host_users, possible=user_namespaces)
    first = _init_containers(sandbox, template, settings)
    optional = {
        "hostUsers": False if own_users else None,  # true means the same as none, and the admission policy refuses it
        "runtimeClassName": spec.runtime_class_name,
        "nodeSelector": spec.node_selector or None,
        "tolerations": [{k: v for k, v in t.to_wire().items() if v} for t in spec.tolerations] or None,
        "imagePullSecrets": [{"name": name} for name in spec.image_pull_secrets] or None,
        "initContainers": first or None,
    }
    environment = _environment(sandbox, template, profile, settings, own_users=own_users)
    labels = {
        names.LABEL_SANDBOX: sandbox.metadata.name,
        names.LABEL_TEMPLATE: template.metadata.name,
        names.LABEL_NETWORK: profile.name,
        **_NO_PROXY_LABELS,
    }
    metadata = child_metadata(sandbox.metadata.name, resources.SANDBOXES, sandbox, labels)
    return {
        **resources.PODS.header,
        "metadata": {**metadata, "annotations": {**_NO_PROXY_ANNOTATIONS, **build_annotations(sandbox, template)}},
        "spec": {
            **security.pod_isolation(),
            **({"dnsPolicy": "ClusterFirst"} if profile.dns else security.closed_dns()),
            **{key: value for key, value in optional.items() if value is not None},
            "securityContext": security.pod_security_context(spec.app_armor_profile, own_users=own_users),
            "terminationGracePeriodSeconds": 2,
            # The last safety net. It can't be raised later, so it covers whatever a claim may ask for: a warm pod may
            # wait as long as a pool's maxAge can be, and the claim may then set any lifetime.
            "activeDeadlineSeconds": (0 if sandbox.spec.claim else MAX_LIFETIME) + MAX_LIFETIME + _MARGIN,
            "containers": [_main_container(sandbox, template, environment)],
            "volumes": _volumes(sandbox, template),
        },
    }


def _container(sandbox: Sandbox, template: SandboxTemplate, name: str, command: Sequence[str]) -> dict[str, Any]:
    """Return what all containers have. Init containers cost nothing: a pod requests the larger of theirs and its own.

    The command is set, so that the runner is process 1 whatever the image's entry point is.
    """
    return {
        "name": name,
        "image": template.spec.image,
        "imagePullPolicy": template.spec.image_pull_policy,
        "command": list(command),
        "resources": _resources(sandbox, template),
        "securityContext": security.container_security_context(),
    }


def _main_container(sandbox: Sandbox, template: SandboxTemplate, environment: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        **_container(sandbox, template, names.CONTAINER, SERVE_COMMAND),
        **_TERMINATION,
        # An image's own may be one that the pod's user can't enter.
        "workingDir": names.WORKSPACE,
        "env": environment,
        "startupProbe": {
            "exec": {"command": list(READY_COMMAND)},
            "periodSeconds": 1,
            "timeoutSeconds": 5,
            "failureThreshold": _START_SECONDS,
        },
        "volumeMounts": [
            {"name": "workspace", "mountPath": names.WORKSPACE},
            {"name": "tmp", "mountPath": _TMP},
            # gVisor's own is as large as the node's memory.
            {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108 - the pod's own, sized
            {"name": "packages", "mountPath": names.PACKAGES},
            *([_RUNNER_MOUNT] if brings_runner(template) else []),
        ],
    }


def _init_containers(sandbox: Sandbox, template: SandboxTemplate, settings: OperatorSettings) -> list[dict[str, Any]]:
    """Return what copies the runner, if the image has none, and reports the kernel before any caller's code runs."""
    brings = brings_runner(template)
    runner = {
        **_container(sandbox, template, names.RUNNER_CONTAINER, ("sh", "-c", _BRING)),
        "image": settings.runner_image,
        "imagePullPolicy": "IfNotPresent",
        "volumeMounts": [{"name": "runner", "mountPath": names.RUNNER_HOME}],
    }
    kernel = {
        **_container(sandbox, template, names.KERNEL_CONTAINER, KERNEL_COMMAND),
        **_TERMINATION,
        "workingDir": "/",
        **({"env": [{"name": "LD_PRELOAD", "value": ""}], "volumeMounts": [_RUNNER_MOUNT]} if brings else {}),
    }
    return ([runner] if brings else []) + ([kernel] if template.spec.runtime_class_name is not None else [])


def brings_runner(template: SandboxTemplate) -> bool:
    """Return whether the template's image has no runner, so that its pods add it."""
    return template.spec.runner == "Injected"


def _environment(
    sandbox: Sandbox, template: SandboxTemplate, profile: NetworkProfile, settings: OperatorSettings, *, own_users: bool
) -> list[dict[str, Any]]:
    spec, workspace = template.spec, workspace_of(sandbox, template)
    values = {
        names.ENV_PROBES: ",".join(security.probes(template, profile, settings)),
        names.ENV_PROBE_INTERVAL: str(settings.probe_interval or ""),
        names.ENV_PREIMPORT: ",".join(spec.preimport),
        names.ENV_OPEN_FILES: str(spec.limits.open_files),
        names.ENV_RUN_TIMEOUT: str(spec.limits.run_timeout),
        names.ENV_OUTPUT_BYTES: str(spec.limits.output_bytes),
        names.ENV_WORKSPACE_BYTES: str(int(parse_quantity(workspace.size))),
        names.ENV_PACKAGES: names.PACKAGES,
        names.ENV_PACKAGES_BYTES: str(int(parse_quantity(spec.packages_size))),
        names.ENV_IN_MEMORY: ",".join([names.WORKSPACE, _TMP] if _in_memory(workspace) else [_TMP]),
        names.ENV_MEMORY_LIMIT: str(int(parse_quantity(spec.resources.memory))),
    }
    if settings.allow_open_network and found_open(sandbox):
        values[names.ENV_ALLOW_OPEN_NETWORK] = "1"
    if profile.name == names.NETWORK_NONE:
        values[names.ENV_CLOSED_NETWORK] = "1"
    if spec.languages:
        # Kubernetes puts values in the place of $(NAME); a doubled $ is one $ and nothing else.
        values[names.ENV_LANGUAGES] = json.dumps([each.to_wire() for each in spec.languages]).replace("$", "$$")
    if brings_runner(template):
        # An image's own preloads are for its own programs: they may not fit the runner's C library.
        values |= {names.ENV_PYTHON: "python3", "LD_PRELOAD": ""}
    if own_users:
        # RLIMIT_NPROC counts this pod's processes alone only in a user namespace of its own.
        values[names.ENV_PROCESSES] = str(spec.limits.processes)
    node = {"name": "NODE_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}}
    # The node's address comes first: Kubernetes expands $(NODE_IP) only in what follows it.
    return [node, *({"name": key, "value": value} for key, value in values.items())]


def _resources(sandbox: Sandbox, template: SandboxTemplate) -> dict[str, Any]:
    wanted = template.spec.resources
    workspace = workspace_of(sandbox, template)
    # The kubelet counts a disk-backed emptyDir too, and would evict a pod that fills its workspace.
    sizes = [wanted.ephemeral_storage]
    sizes += [workspace.size] if workspace.medium == "Disk" and not workspace.persistent else []
    sizes += [names.PORTABLE_SIZE] if brings_runner(template) else []
    storage = sum(map(parse_quantity, sizes))
    # Few sandboxes fill the room for packages: to set it aside for all would keep most of a node's disk empty.
    most = storage + parse_quantity(template.spec.packages_size)
    return {
        "limits": {"cpu": wanted.cpu, "memory": wanted.memory, "ephemeral-storage": str(int(most))},
        "requests": {**build_requests(sandbox, template), "ephemeral-storage": str(int(storage))},
    }


def _in_memory(workspace: Workspace) -> bool:
    return workspace.medium == "Memory" and not workspace.persistent


def _volumes(sandbox: Sandbox, template: SandboxTemplate) -> list[dict[str, Any]]:
    workspace = workspace_of(sandbox, template)
    claim = names.volume_claim_name(sandbox.metadata.name, sandbox.metadata.uid)
    folder = {"medium": "Memory"} if _in_memory(workspace) else {}
    files = {"emptyDir": {**folder, "sizeLimit": workspace.size}}
    memory = {"emptyDir": {"medium": "Memory", "sizeLimit": template.spec.tmp_size}}
    return [
        {"name": "workspace", **({"persistentVolumeClaim": {"claimName": claim}} if workspace.persistent else files)},
        {"name": "tmp", **memory},
        {"name": "shm", **memory},
        {"name": "packages", "emptyDir": {"sizeLimit": template.spec.packages_size}},
        *([{"name": "runner", "emptyDir": {"sizeLimit": names.PORTABLE_SIZE}}] if brings_runner(template) else []),
    ]
