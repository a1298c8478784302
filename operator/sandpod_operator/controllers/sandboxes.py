"""Sandboxes: what there is of each, and its turn where the quota is full."""

from dataclasses import replace
from datetime import datetime

from sandpod_api import names
from sandpod_api.conditions import ConditionType, find
from sandpod_kube.resources import Key
from sandpod_operator.controllers.context import Context
from sandpod_operator.controllers.controller import Controller
from sandpod_operator.controllers.nodes import Nodes
from sandpod_operator.manifests.network_policies import build_deny_all, in_force
from sandpod_operator.manifests.pod import find_profile
from sandpod_operator.manifests.probes import opened_by
from sandpod_operator.manifests.security import said_of_user_namespaces
from sandpod_operator.model.actions import Plan
from sandpod_operator.model.observed import ObservedSandbox
from sandpod_operator.planning.sandbox import plan_sandbox, wants_pod


class SandboxController(Controller[ObservedSandbox, Plan]):
    """Observes, plans and records Sandboxes."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._nodes = Nodes(context.cluster)

    async def observe(self, key: Key, now: datetime) -> ObservedSandbox | None:
        """Return what there is of a Sandbox; who wants a pod joins the line where there is one."""
        observed = self._read(key)
        if observed is None:
            return None
        node = node_to_look_at(observed)
        if node is not None and observed.pod is not None:
            # Once for each pod, and not for each node: nodes restart.
            kernel = await self._nodes.kernel(node)
            self.context.state.kernels[observed.pod.metadata.uid] = kernel
            observed = replace(observed, kernel=kernel)
        spec = observed.template.spec if observed.template is not None and observed.pod is None else None
        if spec and said_of_user_namespaces(spec, default=self.context.settings.host_users) is None:
            observed = replace(observed, user_namespaces=await self._nodes.give_user_namespaces(spec))
        held = self.context.admission.held(observed.sandbox, wants=wants_pod(observed, now))
        return observed if held is None else replace(observed, refusal=held)

    def _read(self, key: Key) -> ObservedSandbox | None:
        store, settings = self.context.store, self.context.settings
        sandbox = store.sandbox(key.namespace, key.name)
        if sandbox is None:
            return None
        pod = store.pod(key.namespace, key.name)
        own = pod is not None and pod.owned_by(sandbox.metadata.uid)
        deny_all = store.policy(key.namespace, names.POLICY_DENY_ALL)
        template = store.template(key.namespace, sandbox.spec.template_ref.name)
        profile = find_profile(sandbox, template) if template is not None and pod is None else None
        return ObservedSandbox(
            sandbox=sandbox,
            pod=pod if own else None,
            name_taken=pod is not None and not own,
            template=template,
            refusal=self.context.state.refusals.get(sandbox.metadata.uid),
            closed=in_force(build_deny_all(key.namespace), deny_all),
            kernel=self.context.state.kernels.get(pod.metadata.uid) if own and pod is not None else None,
            open_allowed=settings.allow_open_network,
            opened=opened_by(profile, template, settings) if template is not None and profile is not None else None,
        )

    def plan(self, observed: ObservedSandbox, now: datetime) -> Plan:
        """Return what is to be done about a Sandbox."""
        return plan_sandbox(observed, self.context.settings, now)


def node_to_look_at(observed: ObservedSandbox) -> str | None:
    """Return the node whose kernel has to be known now: the pod has said which one it sees, and nobody has compared."""
    pod, template = observed.pod, observed.template
    proved = find(observed.sandbox.status.conditions, ConditionType.KERNEL_ISOLATED)
    if observed.sandbox.status.start_time is not None and proved is not None and proved.status == "True":
        return None
    wanted = template is not None and template.spec.runtime_class_name is not None
    return pod.spec.node_name if wanted and pod is not None and pod.kernel and observed.kernel is None else None
