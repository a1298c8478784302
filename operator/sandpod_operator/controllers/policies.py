"""Network policies: those of each template's egress profiles, and the one that closes each namespace."""

from datetime import datetime
from typing import Final

from sandpod_api import names
from sandpod_kube import resources
from sandpod_kube.resources import Key
from sandpod_operator.controllers.controller import Controller
from sandpod_operator.manifests.foreign_policies import find_widening
from sandpod_operator.manifests.network_policies import build_deny_all, in_force
from sandpod_operator.model.actions import Plan
from sandpod_operator.model.observed import ObservedNamespace, ObservedTemplate
from sandpod_operator.planning.namespace import plan_namespace
from sandpod_operator.planning.template import plan_template

MAX_WIDENING: Final = 50  # each is a series of a metric and an Event


class TemplateController(Controller[ObservedTemplate, Plan]):
    """Observes and plans the policies of templates."""

    async def observe(self, key: Key, now: datetime) -> ObservedTemplate | None:  # noqa: ARG002 - of all controllers
        """Return a template, and the policies that were made for it."""
        template = self.context.store.template(key.namespace, key.name)
        if template is None:
            return None
        ours = {names.LABEL_MANAGED_BY: names.MANAGED_BY, names.LABEL_TEMPLATE: key.name}
        policies = {
            policy["metadata"]["name"]: policy
            for policy in self.context.store.policies(key.namespace)
            if ours.items() <= policy["metadata"].get("labels", {}).items()
        }
        return ObservedTemplate(template=template, policies=policies)

    def plan(self, observed: ObservedTemplate, now: datetime) -> Plan:  # noqa: ARG002 - of all controllers
        """Return what is to be done about a template."""
        return plan_template(observed)


class NamespaceController(Controller[ObservedNamespace, Plan]):
    """Observes and plans what closes a namespace, and reports what opens it."""

    async def observe(self, key: Key, now: datetime) -> ObservedNamespace:  # noqa: ARG002 - of all controllers
        """Return whether a namespace is closed, and what opens it."""
        namespace = key.namespace
        templates = {each.name for each in self.context.store.keys(resources.TEMPLATES, namespace)}
        found = (find_widening(policy, templates) for policy in self.context.store.policies(namespace))
        return ObservedNamespace(
            namespace=namespace,
            closed=in_force(build_deny_all(namespace), self.context.store.policy(namespace, names.POLICY_DENY_ALL)),
            widening=tuple(sorted(filter(None, found), key=lambda each: each.name)[:MAX_WIDENING]),
        )

    def plan(self, observed: ObservedNamespace, now: datetime) -> Plan:  # noqa: ARG002 - of all controllers
        """Return what is to be done about a namespace."""
        return plan_namespace(observed)

    def record(self, observed: ObservedNamespace, plan: Plan, now: datetime) -> None:  # noqa: ARG002 - as above
        """Report the policies that open something."""
        self.context.metrics.set_widening(observed.namespace, {policy.name for policy in observed.widening})
