"""Whether a sandbox's network is closed, which profile its pod is under, and whether another can take its place.

A runner that reaches what it must not reach ends itself and says so, when it starts and whenever it probes again. Where
the operator is set to allow that, a new pod is created whose runner serves anyway: the condition says False as
long as that pod exists.

A pod's profile is its label, by which policies select it, so a change is a change of that label. The runner probes
again only minutes later, so a profile that opens an address that it must not reach is refused here.
"""

from collections.abc import Iterator

from sandpod_api import names
from sandpod_api.conditions import Condition, ConditionType, Reason, find
from sandpod_api.templates import NetworkProfile
from sandpod_operator.manifests.pod import find_profile, found_open
from sandpod_operator.manifests.security import NODE_IP, opens
from sandpod_operator.model.observed import ObservedSandbox
from sandpod_operator.model.pod import Pod
from sandpod_operator.status.failures import Cause, cause, network_open


def network_applied(observed: ObservedSandbox) -> Condition | None:
    """Return whether the pod has the profile that the spec names; not reported without a pod."""
    kind, pod = ConditionType.NETWORK_APPLIED, observed.pod
    if pod is None:
        return None
    wanted = observed.sandbox.spec.network
    if (refused := _refusal(observed, pod)) is not None:
        return refused.condition(kind, status=False)
    if pod.network == wanted:
        return Cause(Reason.APPLIED, f"Network profile {wanted!r} is in force.").condition(kind, status=True)
    return cause(Reason.APPLYING, f"{wanted!r} after {pod.network!r}.").condition(kind, status=False)


def to_relabel(observed: ObservedSandbox) -> str | None:
    """Return the profile that the pod has to get now, or None if it keeps its own."""
    pod, wanted = observed.pod, observed.sandbox.spec.network
    if pod is None or pod.deleting or pod.ended or pod.network == wanted or _refusal(observed, pod) is not None:
        return None
    return wanted


def refused_at_start(observed: ObservedSandbox) -> Cause | None:
    """Return why no pod can be made with the profile that the spec names, or None if one can."""
    sandbox, template = observed.sandbox, observed.template
    wanted = sandbox.spec.network
    if template is not None and find_profile(sandbox, template) is None:
        return Cause(Reason.PROFILE_NOT_FOUND, f"{template.metadata.name!r} has no network profile {wanted!r}.")
    return None if observed.opened is None else Cause(Reason.PROFILE_REFUSED, _opens_forbidden(wanted, observed.opened))


def _refusal(observed: ObservedSandbox, pod: Pod) -> Cause | None:
    """Return why the profile that the spec names can't be in force in this pod, or None if it can."""
    sandbox, template = observed.sandbox, observed.template
    wanted, current = sandbox.spec.network, pod.network
    stays = "Nothing is open." if current == wanted else f"{current!r} stays in force."
    if template is None and wanted != names.NETWORK_NONE:
        missing = sandbox.spec.template_ref.name
        text = f"SandboxTemplate {missing!r} with the profile {wanted!r} does not exist. {stays}"
        return Cause(Reason.TEMPLATE_NOT_FOUND, text)
    profile = NetworkProfile(name=wanted) if template is None else find_profile(sandbox, template)
    if profile is None:
        return Cause(Reason.PROFILE_NOT_FOUND, f"The template has no network profile {wanted!r}. {stays}")
    why = _hindrance(profile, pod) if current != wanted else None
    return Cause(Reason.PROFILE_REFUSED, f"{why} {stays}") if why is not None else None


def _hindrance(profile: NetworkProfile, pod: Pod) -> str | None:
    """Return what prevents a profile of the template from being in force in a pod that started with another."""
    if profile.dns and pod.dns_policy == "None":
        return f"{profile.name!r} has DNS, which a pod can get only at its start: create another Sandbox."
    opened = next((address for address in probed(pod) if opens(profile, address)), None)
    return None if opened is None else _opens_forbidden(profile.name, opened)


def _opens_forbidden(profile: str, address: str) -> str:
    return f"{profile!r} opens {address}, which no sandbox may reach."


def probed(pod: Pod) -> Iterator[str]:
    """Return the addresses that the pod's runner tried in vain, as host:port."""
    for address in filter(None, pod.variable(names.ENV_PROBES).split(",")):
        yield address.replace(NODE_IP, pod.host_ip)


def network_isolated(observed: ObservedSandbox) -> Condition:
    """Return whether the runner probed from inside that it can't reach what it must not reach."""
    kind, pod = ConditionType.NETWORK_ISOLATED, observed.pod
    before, known = find(observed.sandbox.status.conditions, kind), found_open(observed.sandbox)
    if pod is not None and (reached := network_open(pod.terminated)) is not None:
        return cause(Reason.NETWORK_OPEN, reached).condition(kind, status=False)
    # An open network is remembered until the pod is made that serves anyway, and while there is one.
    if before is not None and known and (pod is None or serves_open(pod)):
        return before
    if pod is not None and serves_open(pod):
        return cause(Reason.NETWORK_OPEN).condition(kind, status=False)
    if (pod is not None and pod.started) or observed.was_ready:
        return cause(Reason.PROBED).condition(kind, status=True)
    return cause(Reason.PROBE_PENDING).condition(kind, status=None)


def serves_open(pod: Pod) -> bool:
    """Return whether the pod was created to serve despite an open network."""
    return pod.variable(names.ENV_ALLOW_OPEN_NETWORK) == "1"


def allowed_anew(observed: ObservedSandbox) -> Cause | None:
    """Return why a new pod is created that serves with an open network, or None if none is."""
    pod = observed.pod
    reached = network_open(pod.terminated) if pod is not None else None
    if pod is None or reached is None or not observed.open_allowed or observed.was_ready or serves_open(pod):
        return None
    return cause(Reason.OPEN_NETWORK_ALLOWED, reached)


def forbidden(observed: ObservedSandbox) -> Cause | None:
    """Return why a pod that serves with an open network has to end, if that is no longer allowed."""
    if observed.pod is None or not serves_open(observed.pod) or observed.open_allowed:
        return None
    return cause(Reason.NETWORK_OPEN, "the operator no longer allows that.")
