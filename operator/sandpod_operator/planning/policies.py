"""Decides what to do about network policies: those of a template's egress profiles, and those of a namespace."""

from collections.abc import Iterable, Mapping
from typing import Any

from sandpod_api.fields import ObjectMeta
from sandpod_api.types import SandboxTemplate
from sandpod_kube.resources import POLICIES
from sandpod_operator.manifests.network_policies import build_deny_all, build_profile, in_force
from sandpod_operator.model.actions import Action, Apply, Delete, Emit, Plan
from sandpod_operator.model.observed import Widening


def plan_template(template: SandboxTemplate, found: Mapping[str, dict[str, Any]]) -> Plan:
    """Decide about a template, by the policies that were found for it: a profile that it dropped is closed again."""
    if template.metadata.deletion_timestamp is not None:
        return Plan()
    built = [build_profile(template, profile) for profile in template.spec.network_profiles]
    wanted = {policy["metadata"]["name"]: policy for policy in built}
    actions: list[Action] = [Apply(POLICIES, p) for name, p in wanted.items() if not in_force(p, found.get(name))]
    dropped = (policy["metadata"] for name, policy in found.items() if name not in wanted)
    actions += [Delete(POLICIES, ObjectMeta.model_validate(metadata)) for metadata in dropped]
    return Plan(actions=tuple(actions))


def plan_namespace(namespace: str, *, closed: bool, widening: Iterable[Widening] = ()) -> Plan:
    """Decide about a namespace: its deny-all policy is kept in force, and policies of others that open it are reported.

    These are left alone: whoever may write policies here may have a reason, and would write them again.
    """
    apply = () if closed else (Apply(POLICIES, build_deny_all(namespace)),)
    return Plan(actions=(*apply, *map(_widened, widening)))


def _widened(policy: Widening) -> Emit:
    """Return the Event of a foreign policy that opens something to sandboxes.

    It is posted on every pass and exists once, since its name is derived from its content: the API server forgets it
    after an hour, and the policy may stay for longer.
    """
    message = (
        f"It is not one of Sandpod's and opens {' and '.join(policy.directions)} to sandbox pods. Policies are "
        "additive: delete it or narrow its podSelector."
    )
    return Emit(POLICIES, policy.metadata, "NetworkWidened", message, "Warning")
