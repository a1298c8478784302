"""Decides about network policies: the namespace's deny-all, egress profiles, and what of others opens something.

Policies only ever add up in Kubernetes: the deny-all selects every sandbox pod and allows nothing, a profile's policy
opens what it lists and nothing else, and what a policy of others opens ours can't close. Those are found by the labels
that sandbox pods can have, not by those of existing pods: before the first pod that they open.
"""

from collections.abc import Container, Iterable, Sequence
from typing import Any, Final

from sandpod_api import names
from sandpod_api.fields import ObjectMeta
from sandpod_api.templates import EgressRule, NetworkProfile, SandboxTemplate
from sandpod_kube.resources import POLICIES, TEMPLATES
from sandpod_operator.manifests.pod import child_metadata
from sandpod_operator.model.actions import Action, Apply, Delete, Emit, Plan

MAX_WIDENING: Final = 50  # each is a series of a metric and an Event
_DNS_PORTS: Final = [{"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}]
_DNS_PODS: Final = {
    "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}},
    "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}},
}
# What a sandbox pod carries, and the value where that is the same for all.
_LABELS: Final[dict[str, str | None]] = {
    names.LABEL_MANAGED_BY: names.MANAGED_BY,
    names.LABEL_SANDBOX: None,
    names.LABEL_TEMPLATE: None,
    names.LABEL_NETWORK: None,
}


def plan_template(template: SandboxTemplate, policies: Iterable[dict[str, Any]]) -> Plan:
    """Decide about a template, by its namespace's policies: a profile that it dropped is closed again."""
    if template.metadata.deletion_timestamp is not None:
        return Plan()
    ours = {names.LABEL_MANAGED_BY: names.MANAGED_BY, names.LABEL_TEMPLATE: template.metadata.name}.items()
    found = {p["metadata"]["name"]: p for p in policies if ours <= p["metadata"].get("labels", {}).items()}
    built = [build_profile(template, profile) for profile in template.spec.network_profiles]
    wanted = {policy["metadata"]["name"]: policy for policy in built}
    actions: list[Action] = [Apply(POLICIES, p) for name, p in wanted.items() if not in_force(p, found.get(name))]
    dropped = (policy["metadata"] for name, policy in found.items() if name not in wanted)
    actions += [Delete(POLICIES, ObjectMeta.model_validate(metadata)) for metadata in dropped]
    return Plan(actions=tuple(actions))


def plan_namespace(namespace: str, policies: Sequence[dict[str, Any]], templates: Container[str]) -> Plan:
    """Decide about a namespace: its deny-all policy is kept in force, and policies of others that open it are reported.

    These are left alone: whoever may write policies here may have a reason, and would write them again. Of many the
    first ones are reported, by name.
    """
    closed = any(p["metadata"]["name"] == names.POLICY_DENY_ALL and is_closed(namespace, p) for p in policies)
    apply = () if closed else (Apply(POLICIES, build_deny_all(namespace)),)
    widening = filter(None, (find_widening(policy, templates) for policy in policies))
    return Plan(actions=(*apply, *sorted(widening, key=lambda each: each.metadata.name)[:MAX_WIDENING]))


def is_closed(namespace: str, deny_all: dict[str, Any] | None) -> bool:
    """Return whether a namespace's deny-all policy is in force."""
    return in_force(build_deny_all(namespace), deny_all)


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
    name = names.network_policy_name(template.metadata.name, profile.name)
    labels = {names.LABEL_TEMPLATE: template.metadata.name, names.LABEL_NETWORK: profile.name}
    metadata = child_metadata(name, TEMPLATES, template, labels)
    return _policy(metadata, {"matchLabels": metadata["labels"]}, ["Egress"], rules)


def _policy(metadata: Any, selector: Any, types: list[str], egress: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        **POLICIES.header,
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


def find_widening(policy: dict[str, Any], templates: Container[str]) -> Emit | None:
    """Return the Event of a policy that opens something to a sandbox and is not one of Sandpod's, or None.

    Those of the namespace's templates, given by name, are kept as they must be. The Event is posted on every pass and
    exists once, since its name is derived from its content: the API server forgets it after an hour, and the policy may
    stay for longer.
    """
    metadata, spec = ObjectMeta.model_validate(policy["metadata"]), policy.get("spec") or {}
    # It does not affect a direction that it does not name.
    kinds = spec.get("policyTypes") or ("Ingress", "Egress")
    opened = [way for way in ("ingress", "egress") if way.capitalize() in kinds and spec.get(way)]
    if not opened or _is_own(metadata, templates) or not _may_select(spec.get("podSelector") or {}):
        return None
    message = (
        f"It is not one of Sandpod's and opens {' and '.join(opened)} to sandbox pods. Policies are "
        "additive: delete it or narrow its podSelector."
    )
    return Emit(POLICIES, metadata, "NetworkWidened", message, "Warning")


def _is_own(metadata: ObjectMeta, templates: Container[str]) -> bool:
    """Return whether Sandpod keeps it as it must be, or deletes it together with the template that it belongs to."""
    template = metadata.labels.get(names.LABEL_TEMPLATE)
    if metadata.name == names.POLICY_DENY_ALL:
        return True
    if metadata.labels.get(names.LABEL_MANAGED_BY) != names.MANAGED_BY or template is None:
        return False
    owners = {(owner.get("kind"), owner.get("name")) for owner in metadata.owner_references}
    return template in templates or (TEMPLATES.kind, template) in owners


def _may_select(selector: dict[str, Any]) -> bool:
    needs = [(key, "In", {value}) for key, value in (selector.get("matchLabels") or {}).items()]
    needs += [
        (each["key"], each["operator"], set(each.get("values") or ()))
        for each in selector.get("matchExpressions") or ()
    ]
    return all(_can_hold(key, [(kind, values) for k, kind, values in needs if k == key]) for key, _, _ in needs)


def _can_hold(key: str, needs: list[tuple[str, set[str]]]) -> bool:
    """Return whether a sandbox pod's label can meet all requirements of one key."""
    if key not in _LABELS:
        return all(kind in {"NotIn", "DoesNotExist"} for kind, _ in needs)
    if any(kind == "DoesNotExist" for kind, _ in needs):
        return False
    fixed = _LABELS[key]
    wanted = [values for kind, values in needs if kind == "In"] + ([{fixed}] if fixed is not None else [])
    excluded = set[str]().union(*(values for kind, values in needs if kind == "NotIn"))
    return not wanted or bool(set.intersection(*wanted) - excluded)
