"""What locks a sandbox's pod down. The one file that an auditor reads.

It applies to every pod, without exceptions and without options: nothing here depends on a template, except the user
namespace and AppArmor, which not every cluster and runtime has. It is Pod Security's `restricted` and more.
"""

from typing import Any, Final

from sandpod_api.templates import AppArmorProfile, SandboxTemplateSpec

UID: Final = 1000
"""The uid, gid and fsGroup of everything in a sandbox: numeric, so that the kubelet can check it is not root."""


def pod_security_context(app_armor: AppArmorProfile | None = None, *, own_users: bool = False) -> dict[str, Any]:
    """Return the pod's security context.

    Not every node has AppArmor, so without a profile the field is left out. The runtimes that give a pod a user
    namespace of its own also keep the groups of the image's /etc/group out; an older one would refuse the pod.
    """
    return {
        **({"appArmorProfile": app_armor.to_wire()} if app_armor is not None else {}),
        **({"supplementalGroupsPolicy": "Strict"} if own_users else {}),
        "runAsNonRoot": True,
        "runAsUser": UID,
        "runAsGroup": UID,
        "fsGroup": UID,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def container_security_context() -> dict[str, Any]:
    """Return the container's security context."""
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "privileged": False,
        "readOnlyRootFilesystem": True,
        "runAsNonRoot": True,
        "runAsUser": UID,
        "runAsGroup": UID,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def pod_isolation() -> dict[str, Any]:
    """Return the fields of a pod's spec that keep the cluster's own things out of it."""
    return {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "hostNetwork": False,
        "hostPID": False,
        "hostIPC": False,
        "shareProcessNamespace": False,
        # One name for all: the pod's own would tell a program its owner's handle.
        "hostname": "sandbox",
        # A runner that ended has lost its files: a restart would hide that.
        "restartPolicy": "Never",
    }


def closed_dns() -> dict[str, Any]:
    """Return the DNS fields of a pod without DNS: Kubernetes wants a name server, so it gets one that never answers."""
    return {
        "dnsPolicy": "None",
        "dnsConfig": {
            "nameservers": ["127.0.0.1"],
            "options": [{"name": "timeout", "value": "1"}, {"name": "attempts", "value": "1"}],
        },
    }


def host_users_setting(spec: SandboxTemplateSpec, *, default: bool | None) -> bool | None:
    """Return what is set for a pod's `hostUsers`: by its template, else by the operator's default.

    With a RuntimeClass such as gVisor's, which starts no pod with a user namespace, the template alone decides. None
    where neither does, so that the pod's nodes decide.
    """
    return spec.host_users if spec.host_users is not None or spec.runtime_class_name is not None else default


def host_users(spec: SandboxTemplateSpec, *, default: bool | None, possible: bool) -> bool | None:
    """Return the pod's `hostUsers` by what is set for it, and by what is possible on its nodes.

    False, or None where the pod shares the node's: true means the same, and the admission policy refuses it.
    """
    setting = host_users_setting(spec, default=default)
    return False if setting is False or (setting is None and possible) else None
