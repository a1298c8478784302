"""Decides what to do about a template: its egress profiles are network policies."""

from sandpod_kube.resources import POLICIES
from sandpod_operator.manifests.network_policies import build_profile, in_force
from sandpod_operator.model.actions import Action, Apply, Delete, Plan
from sandpod_operator.model.observed import ObservedTemplate


def plan_template(observed: ObservedTemplate) -> Plan:
    """Decide about a template: its egress profiles are policies, and a profile that it dropped is closed again."""
    template = observed.template
    if template.metadata.deletion_timestamp is not None:
        return Plan()
    wanted = [build_profile(template, profile) for profile in template.spec.network_profiles]
    actions: list[Action] = [
        Apply(resource=POLICIES, manifest=policy)
        for policy in wanted
        if not in_force(policy, observed.policies.get(policy["metadata"]["name"]))
    ]
    kept = {policy["metadata"]["name"] for policy in wanted}
    actions += [
        Delete(resource=POLICIES, namespace=template.metadata.namespace, name=name, uid=policy["metadata"]["uid"])
        for name, policy in observed.policies.items()
        if name not in kept
    ]
    return Plan(actions=tuple(actions))
