"""Builds the network policies: the namespace's deny-all and a template's egress profiles. Also says what has drifted.

Policies only ever add up in Kubernetes, so the deny-all selects every sandbox pod and allows nothing, and a profile's
policy opens what it lists and nothing else.
"""

from typing import Any, Final

from sandpod_api import names
from sandpod_api.templates import EgressRule, NetworkProfile, SandboxTemplate
from sandpod_kube import resources
from sandpod_operator.manifests.pod import owner_reference

_DNS_PORTS: Final = [{"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}]
_DNS_PODS: Final = {
    "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}},
    "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}},
}


def build_deny_all(namespace: str) -> dict[str, Any]:
    """Return the policy that closes both directions of every sandbox pod in the namespace.

    The empty lists are written out: a server-side apply then takes back what somebody else has put there.
    """
    labels = {names.LABEL_MANAGED_BY: names.MANAGED_BY}
    metadata = {"name": names.POLICY_DENY_ALL, "namespace": namespace, "labels": labels}
    every = {"matchLabels": labels, "matchExpressions": [{"key": names.LABEL_SANDBOX, "operator": "Exists"}]}
    return _policy(metadata, every, ["Ingress", "Egress"], [])


def build_profile(template: SandboxTemplate, profile: NetworkProfile) -> dict[str, Any]:
    """Return the policy that opens an egress profile to those sandboxes of the template that name it."""
    rules = [_egress(rule) for rule in profile.egress]
    if profile.dns:
        rules.append({"to": [_DNS_PODS], "ports": _DNS_PORTS})
    labels = {
        names.LABEL_MANAGED_BY: names.MANAGED_BY,
        names.LABEL_TEMPLATE: template.metadata.name,
        names.LABEL_NETWORK: profile.name,
    }
    metadata = {
        "name": names.network_policy_name(template.metadata.name, profile.name),
        "namespace": template.metadata.namespace,
        "labels": labels,
        "ownerReferences": [owner_reference(resources.TEMPLATES, template)],
    }
    return _policy(metadata, {"matchLabels": labels}, ["Egress"], rules)


def _policy(metadata: Any, selector: Any, types: list[str], egress: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "apiVersion": resources.POLICIES.api_version,
        "kind": resources.POLICIES.kind,
        "metadata": metadata,
        "spec": {"podSelector": selector, "policyTypes": types, "ingress": [], "egress": egress},
    }


def _egress(rule: EgressRule) -> dict[str, Any]:
    block = {"cidr": rule.cidr, **({"except": rule.except_cidrs} if rule.except_cidrs else {})}
    ports = [{"port": port, "protocol": "TCP"} for port in rule.ports]
    return {"to": [{"ipBlock": block}], **({"ports": ports} if ports else {})}


def in_force(wanted: dict[str, Any], found: dict[str, Any] | None) -> bool:
    """Return whether an existing policy does exactly what the wanted one says.

    Kubernetes leaves empty lists out, so absent and empty are the same.
    """
    if found is None:
        return False
    keys = ("podSelector", "policyTypes", "ingress", "egress")
    return all((wanted["spec"].get(key) or None) == (found["spec"].get(key) or None) for key in keys)
