"""Decides what to do about a namespace: it is closed, and policies of others that open it are reported."""

from sandpod_kube.resources import POLICIES
from sandpod_operator.manifests.network_policies import build_deny_all
from sandpod_operator.model.actions import Apply, Plan
from sandpod_operator.model.observed import ObservedNamespace
from sandpod_operator.planning.events import network_widened


def plan_namespace(observed: ObservedNamespace) -> Plan:
    """Decide about a namespace: its deny-all policy is kept in force, and policies of others that open it are reported.

    These are left alone: whoever may write policies here may have a reason, and would write them again.
    """
    apply = Apply(resource=POLICIES, manifest=build_deny_all(observed.namespace))
    warnings = (network_widened(observed.namespace, policy) for policy in observed.widening)
    return Plan(actions=(*(() if observed.closed else (apply,)), *warnings))
