"""Whether a sandbox's network is closed, by what its runner tried from inside, and what is done where it is not.

Called by `status.py`. Pure. A runner that reaches what it must not reach ends itself and says so, when it starts and
whenever it looks again. Where the operator is set to allow that, a fresh pod is made whose runner serves all the same:
the condition says False as long as that pod is there.
"""

from sandpod_api import names
from sandpod_api.conditions import Condition, ConditionStatus, ConditionType, Reason, find, says
from sandpod_api.types import Sandbox
from sandpod_operator.causes import Cause, cause, is_network_open
from sandpod_operator.observe import ObservedSandbox
from sandpod_operator.pods import Pod


def network_isolated(observed: ObservedSandbox, *, over: bool = False) -> Condition:
    """Tell whether the runner probed from inside that it can't reach what it must not reach.

    Args:
        observed: What there is.
        over: Whether the sandbox has ended: what was found then stays, when its pod is gone.
    """
    pod, before = observed.pod, find(observed.sandbox.status.conditions, ConditionType.NETWORK_ISOLATED)
    known = found_open(observed.sandbox)
    if pod is not None and pod.terminated is not None and is_network_open(pod.terminated):
        return _condition("False", cause(Reason.NETWORK_OPEN, pod.terminated.message.partition(":")[2]))
    if pod is not None and serves_open(pod):
        return before if before is not None and known else _condition("False", cause(Reason.NETWORK_OPEN))
    if pod is None and before is not None and (over or known):
        # Remembered where it has ended, and until the pod is made that serves all the same.
        return before
    if (pod is not None and pod.started) or observed.was_ready:
        return _condition("True", cause(Reason.PROBED))
    return _condition("Unknown", cause(Reason.PROBE_PENDING))


def serves_open(pod: Pod) -> bool:
    """Tell whether the pod was made to serve though its network is open."""
    return pod.variable(names.ENV_ALLOW_OPEN_NETWORK) == "1"


def found_open(sandbox: Sandbox) -> bool:
    """Tell whether the last thing that is known of the sandbox's network is that it is open."""
    return says(sandbox.status.conditions, ConditionType.NETWORK_ISOLATED, Reason.NETWORK_OPEN)


def allowed_anew(observed: ObservedSandbox) -> Cause | None:
    """Return why a fresh pod is made that serves with an open network, or None where that is not so."""
    pod = observed.pod
    if pod is None or pod.terminated is None or not is_network_open(pod.terminated):
        return None
    if not observed.open_allowed or observed.was_ready or serves_open(pod):
        return None
    return cause(Reason.OPEN_NETWORK_ALLOWED, pod.terminated.message.partition(":")[2])


def forbidden(observed: ObservedSandbox) -> Cause | None:
    """Return why a pod that serves with an open network has to end, where that is not allowed any more."""
    if observed.pod is None or not serves_open(observed.pod) or observed.open_allowed:
        return None
    return cause(Reason.NETWORK_OPEN, "the operator does not allow that any more.")


def _condition(status: ConditionStatus, why: Cause) -> Condition:
    return Condition(type=ConditionType.NETWORK_ISOLATED, status=status, reason=why.reason, message=why.message)
