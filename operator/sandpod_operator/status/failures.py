"""Why a pod does not work, in Sandpod's reasons: read from what kubelet, scheduler and runner report."""

import re
from typing import Final, NamedTuple, Self

from sandpod_api.conditions import Condition, ConditionStatus, ConditionType, Reason
from sandpod_api.fields import parse_quantity
from sandpod_api.names import EXIT_NOT_ISOLATED, RUNNER_HOME
from sandpod_operator.model.pod import Pod, StateDetail

MAX_MESSAGE: Final = 1024
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]+")

# A sandbox with one of these has ended: its files are gone, and it gets no other pod. One with files on a volume is
# suspended instead where nothing but its pod has.
FINAL: Final = frozenset(
    {
        Reason.POD_FAILED,
        Reason.OUT_OF_MEMORY,
        Reason.EVICTED,
        Reason.NODE_LOST,
        Reason.WORKSPACE_LOST,
        Reason.START_FAILED,
        Reason.NETWORK_OPEN,
        Reason.KERNEL_SHARED,
    }
)
# Those of them that take a pod and nothing else: files of a persistent workspace outlast it.
OF_THE_POD: Final = frozenset({Reason.POD_FAILED, Reason.OUT_OF_MEMORY, Reason.EVICTED, Reason.NODE_LOST})
# Reasons of the kubelet while it tries again; with any other reason a waiting container is on its way.
_PULL: Final = frozenset(
    {
        "ErrImagePull",
        "ImagePullBackOff",
        "InvalidImageName",
        "ErrImageNeverPull",
        "ImageInspectError",
        "RegistryUnavailable",
    }
)
_START: Final = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError"})
# The scheduler's second reason: it found a node, and could not bind something there, mostly a volume.
_UNSCHEDULED: Final = frozenset({"Unschedulable", "SchedulerError"})
# What it says of a claim, or of the volume behind it, that somebody has deleted.
_NO_VOLUME: Final = re.compile(
    r'persistentvolumeclaim "[^"]+" (?:not found|is being deleted|bound to non-existent persistentvolume)'
)
_NEVER_RAN: Final = frozenset({"StartError", "ContainerCannotRun"})
_RUNTIME: Final = frozenset({"CreateContainerError", "RunContainerError"})
# Messages of runtimes (runc, crun, gVisor, and containerd before them) after which the next pod would fail too: about
# the command, its folder, user, mounts or memory. Any other may be a passing fault of the node.
_LASTING: Final = re.compile(
    r"""(?<!fork/)\bexec(:[ ]|[ ]/) | executable | exec[ ]format | no[ ]command | \bcwd\b | error[ ]mounting
    | mountpoint | not[ ]a[ ]directory | find[ ](user|group) | no[ ]users[ ]found | failed[ ]to[ ]generate
    | oom-killed | too[ ]low""",
    re.VERBOSE | re.IGNORECASE,
)
_NODE_GONE: Final = frozenset({"NodeLost", "NodeShutdown", "Shutdown", "Terminated"})
_DISRUPTED_NODE: Final = frozenset({"DeletionByTaintManager", "DeletionByPodGC"})
# The API server's message about a ResourceQuota: three lists of name=quantity.
_QUOTA: Final = re.compile(r"requested: (\S+), used: \S+, limited: (\S+)$")


class Cause(NamedTuple):
    """A reason and a sentence that explains it."""

    reason: Reason
    message: str

    @classmethod
    def of(cls, condition: Condition) -> Self:
        """Return why a condition has its status."""
        return cls(Reason(condition.reason), condition.message)

    def condition(self, kind: ConditionType, *, status: bool | None) -> Condition:
        """Return the condition that is so, is not so or, with None, is unknown for this cause."""
        word: ConditionStatus = "Unknown" if status is None else "True" if status else "False"
        return Condition(type=kind, status=word, reason=self.reason, message=self.message)


def clean(text: str) -> str:
    """Return text from elsewhere as one line without control characters, at most 1024 characters long."""
    line = _CONTROL.sub(" ", text).strip()
    return line if len(line) <= MAX_MESSAGE else line[: MAX_MESSAGE - 1] + "…"


def cause(reason: Reason, detail: str = "") -> Cause:
    """Return a cause with the reason's sentence, followed by the detail if there is one."""
    more = clean(detail)
    return Cause(reason, clean(f"{reason.sentence[:-1]}: {more}") if more else reason.sentence)


_KILLED: Final = 137  # exit code of a process that SIGKILL ended


def end_of(pod: Pod, *, was_ready: bool) -> Cause | None:
    """Return why the pod has ended, or None while it has not. One that was never ready has not started."""
    if not pod.ended:
        return None
    if (found := disruption(pod)) is not None:
        return found
    if pod.terminated is not None:
        return _end_of_container(pod.terminated, was_ready=was_ready)
    if (failed := pod.failed_init) is not None:
        name, end = failed
        return start_failed(end.message or f"its init container {name!r} ended with exit code {end.exit_code}.")
    return cause(Reason.POD_FAILED if was_ready else Reason.START_FAILED, pod.message or pod.reason)


def disruption(pod: Pod) -> Cause | None:
    """Return what removed the pod, if it did not end by itself."""
    if pod.reason == "Evicted":
        return cause(Reason.EVICTED, pod.message)
    if pod.reason in _NODE_GONE:
        return cause(Reason.NODE_LOST, pod.message)
    if pod.reason == "DeadlineExceeded":
        return cause(Reason.POD_FAILED, "it reached its activeDeadlineSeconds.")
    disrupted = pod.condition("DisruptionTarget")
    if disrupted is not None and disrupted.status == "True":
        reason = Reason.NODE_LOST if disrupted.reason in _DISRUPTED_NODE else Reason.EVICTED
        return cause(reason, disrupted.message)
    return None


def _end_of_container(ended: StateDetail, *, was_ready: bool) -> Cause:
    if ended.reason == "OOMKilled":
        return cause(Reason.OUT_OF_MEMORY)
    if (reached := network_open(ended)) is not None:
        return cause(Reason.NETWORK_OPEN, reached)
    if ended.reason in _NEVER_RAN or not was_ready:
        return start_failed(ended.message or f"its process ended with exit code {ended.exit_code}.")
    what = f"the runner ended with exit code {ended.exit_code}."
    if ended.exit_code == _KILLED:  # nodes do not always learn in time that it was for this
        what = "the runner was killed, and the node does not say why. Most often that is for lack of memory."
    return cause(Reason.POD_FAILED, ended.message or what)


def network_open(ended: StateDetail | None) -> str | None:
    """Return what the runner reached if it ended itself because it must not reach that."""
    if ended is None or ended.exit_code != EXIT_NOT_ISOLATED:
        return None
    word, colon, reached = ended.message.partition(":")
    return reached if word == Reason.NETWORK_OPEN and colon else None


def runtime_fault(pod: Pod) -> str | None:
    """Return the container runtime's message about a container that it could not start, if a new pod may start.

    None where nothing failed, where something of the pod ran and ended, and where the next pod would fail as this one.
    """
    end = pod.terminated or (pod.failed_init[1] if pod.failed_init else None)
    detail, reasons = (end, _NEVER_RAN) if end is not None else (pod.waiting, _RUNTIME)
    fault = detail.message if detail is not None and detail.reason in reasons else ""
    lasting = RUNNER_HOME in fault or _LASTING.search(fault)
    return fault if fault and not lasting and disruption(pod) is None else None


def obstacle(pod: Pod) -> Cause | None:
    """Return what prevents a pod from starting while Kubernetes still tries, or None."""
    scheduled = pod.condition("PodScheduled")
    if scheduled is not None and scheduled.status == "False" and scheduled.reason in _UNSCHEDULED:
        return cause(Reason.UNSCHEDULABLE, scheduled.message)
    waiting = pod.waiting
    if waiting is not None and waiting.reason in _PULL:
        return cause(Reason.IMAGE_PULL_FAILED, waiting.message or waiting.reason)
    if waiting is not None and waiting.reason in _START:
        return start_failed(waiting.message or waiting.reason)
    return None


def workspace_lost(stuck: Cause) -> Cause | None:
    """Return the loss of a volume that had files in it, if that is what prevents a pod from starting."""
    lost = stuck.reason == Reason.UNSCHEDULABLE and _NO_VOLUME.search(stuck.message)
    return cause(Reason.WORKSPACE_LOST, lost.group()) if lost else None


def start_failed(detail: str) -> Cause:
    """Return why a container never ran; the most likely cause, an image without the runner, is named plainly."""
    if RUNNER_HOME in detail:
        return cause(Reason.START_FAILED, "its image has no Sandpod runner; set `runner: Injected` in the template.")
    return cause(Reason.START_FAILED, detail)


def exceeds_whole_quota(message: str) -> bool:
    """Return whether a quota, by its message, refuses a pod that would not even fit alone; False if not known."""
    found = _QUOTA.search(message)
    if found is None:
        return False
    try:
        requested, limited = (
            {name: parse_quantity(amount) for name, amount in (pair.split("=") for pair in part.split(","))}
            for part in found.groups()
        )
    except ValueError:
        return False
    return any(amount > limited.get(name, amount) for name, amount in requested.items())
