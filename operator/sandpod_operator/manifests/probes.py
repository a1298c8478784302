"""The addresses that a sandbox must fail to reach before it is handed out, for its runner to try from inside."""

from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Final

from sandpod_api.templates import NetworkProfile, SandboxTemplate
from sandpod_operator.settings import OperatorSettings

NODE_IP: Final = "$(NODE_IP)"
"""In an address: Kubernetes puts the node's own there."""
_KUBELET_PORT: Final = 10250
# Where clouds tell machines and pods who they are, credentials among it.
METADATA: Final = (
    "169.254.169.254:80",  # nearly all clouds
    "[fd00:ec2::254]:80",  # Amazon EC2 over IPv6
    "[fd20:ce::254]:80",  # Google over IPv6
    "169.254.169.252:988",  # Google: GKE's own metadata server on each node
    "169.254.170.2:80",  # Amazon ECS: credentials of tasks
    "169.254.170.23:80",  # Amazon EKS: credentials of pods
    "[fd00:ec2::23]:80",  # the same over IPv6
    "168.63.129.16:80",  # Azure: the host's agent
    "100.100.100.200:80",  # Alibaba
    "169.254.0.23:80",  # Tencent
    "169.254.42.42:80",  # Scaleway
    "[fd00:42::42]:80",  # the same over IPv6
    "192.0.0.192:80",  # Oracle Cloud Classic
)


def probes(template: SandboxTemplate, profile: NetworkProfile, settings: OperatorSettings) -> list[str]:
    """Return each as host:port: API server, node, metadata services, another pod, DNS, and what the administrator adds.

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
