"""The addresses that a sandbox must fail to reach before it is handed out, for its runner to try from inside."""

from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Final

from sandpod_api.types import EgressRule, NetworkProfile, SandboxTemplate
from sandpod_operator.settings import OperatorSettings

NODE_IP: Final = "$(NODE_IP)"
"""In an address: Kubernetes puts the node's own there."""
_KUBELET_PORT: Final = 10250
# Where clouds tell machines who they are, credentials among it: nearly all of them, and Amazon's over IPv6.
_METADATA: Final = ("169.254.169.254:80", "[fd00:ec2::254]:80")


def probes(template: SandboxTemplate, profile: NetworkProfile, settings: OperatorSettings) -> list[str]:
    """Return each as host:port: API server, node, metadata, another pod, DNS, and what the administrator adds.

    A profile opens none of them but the DNS it asks for. The other pod is left out where a profile of the template
    names its address, since the sandbox may be put under that one.
    """
    dns = "" if profile.dns else settings.cluster_dns
    peer = "" if any(opens(each, settings.peer) for each in template.spec.network_profiles) else settings.peer
    more = (part.strip() for part in settings.more_probes.split(","))
    wanted = (settings.api_server, f"{NODE_IP}:{_KUBELET_PORT}", *_METADATA, peer, dns, *more)
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
    """Tell whether a profile's rules open an address; one by a name is not told from what they say."""
    host, _, port = address.rpartition(":")
    try:
        found = ip_address(host.strip("[]"))
    except ValueError:
        return False
    return any(_holds(rule, found) and (not rule.ports or port in map(str, rule.ports)) for rule in profile.egress)


def _holds(rule: EgressRule, address: IPv4Address | IPv6Address) -> bool:
    return _within(rule.cidr, address) and not any(_within(cidr, address) for cidr in rule.except_cidrs)


def _within(cidr: str, address: IPv4Address | IPv6Address) -> bool:
    try:
        return address in ip_network(cidr, strict=False)
    except ValueError:
        return False  # The API server takes no policy with it either.
