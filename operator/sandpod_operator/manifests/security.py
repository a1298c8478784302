"""What locks a sandbox's pod down, and the addresses that its runner tries in vain. The one file that an auditor reads.

The lock applies to every pod, without exceptions and options: nothing of it depends on a template, except the user
namespace and AppArmor, which not every cluster and runtime has. It is Pod Security's `restricted` and more.
"""

from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Any, Final

from sandpod_api.metadata_addresses import METADATA
from sandpod_api.templates import AppArmorProfile, NetworkProfile, SandboxTemplate, SandboxTemplateSpec
from sandpod_operator.settings import OperatorSettings

UID: Final = 1000
"""The uid, gid and fsGroup of everything in a sandbox: numeric, so that the kubelet can check it is not root."""
_USER: Final = {"runAsNonRoot": True, "runAsUser": UID, "runAsGroup": UID, "seccompProfile": {"type": "RuntimeDefault"}}
NODE_IP: Final = "$(NODE_IP)"
"""In an address: Kubernetes puts the node's own there."""
_KUBELET_PORT: Final = 10250


def pod_security_context(app_armor: AppArmorProfile | None = None, *, own_users: bool = False) -> dict[str, Any]:
    """Return the pod's security context.

    Not every node has AppArmor, so without a profile the field is left out. The runtimes that give a pod a user
    namespace of its own also keep the groups of the image's /etc/group out; an older one would refuse the pod.
    """
    return {
        **({"appArmorProfile": app_armor.to_wire()} if app_armor is not None else {}),
        **({"supplementalGroupsPolicy": "Strict"} if own_users else {}),
        **_USER,
        "fsGroup": UID,
    }


def container_security_context() -> dict[str, Any]:
    """Return the container's security context."""
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "privileged": False,
        "readOnlyRootFilesystem": True,
        **_USER,
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


def has_own_users(spec: SandboxTemplateSpec, *, default: bool | None, possible: bool) -> bool:
    """Return whether the pod gets a user namespace of its own, by what is set and by what is possible on its nodes."""
    setting = host_users_setting(spec, default=default)
    return setting is False or (setting is None and possible)


def probes(template: SandboxTemplate, profile: NetworkProfile, settings: OperatorSettings) -> list[str]:
    """Return as host:port what a sandbox must fail to reach before it is handed out, for its runner to try from inside.

    That is API server, node, metadata services, another pod, DNS, and what the administrator adds.
    A profile opens none of them but the DNS it asks for. The other pod is left out where a profile of the template
    names its address, since the sandbox may be put under that one.
    """
    dns = "" if profile.dns else settings.cluster_dns
    peer = "" if any(opens(each, settings.peer) for each in template.spec.network_profiles) else settings.peer
    more = (part.strip() for part in settings.more_probes.split(","))
    wanted = (settings.api_server, f"{NODE_IP}:{_KUBELET_PORT}", *METADATA, peer, dns, *more)
    return [address for address in wanted if address]


def opened_by(profile: NetworkProfile, template: SandboxTemplate, settings: OperatorSettings) -> str | None:
    """Return the first of these addresses that a profile opens by its own rules, or None.

    Network plugins learn of a policy some time after a pod may have looked, so what is known is not left to a look. A
    node's own address is known only once the pod has a node; that is left to the runner.
    """
    if settings.allow_open_network:
        return None
    return next((each for each in probes(template, profile, settings) if opens(profile, each)), None)


def opens(profile: NetworkProfile, address: str) -> bool:
    """Return whether a profile's rules open an address; for a host name that is not known."""
    host, _, port = address.rpartition(":")
    try:
        found = ip_address(host.strip("[]"))
    except ValueError:
        return False
    rules = (rule for rule in profile.egress if not rule.ports or port in map(str, rule.ports))
    return any(_within(r.cidr, found) and not any(_within(cidr, found) for cidr in r.except_cidrs) for r in rules)


def _within(cidr: str, address: IPv4Address | IPv6Address) -> bool:
    try:
        return address in ip_network(cidr, strict=False)
    except ValueError:
        return False  # The API server takes no policy with it either.
