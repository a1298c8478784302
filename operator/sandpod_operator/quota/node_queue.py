"""Claims that no node takes: a few of a template have pods, and the others of the namespace wait behind them.

The scheduler knows no tenants: who has most pods in its queue gets most of the room that comes up. A few are enough for
autoscalers of nodes to go by. A claim counts for as long as its caller waits, so that one that no node ever takes, as
where its volume is, holds up the others for a moment alone.
"""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final

from sandpod_api.conditions import Reason
from sandpod_api.types import Sandbox
from sandpod_kube.resources import SANDBOXES, Key
from sandpod_operator.model.observed import Refusal

MOST: Final = 4  # as many as those of a pool
COUNTS: Final = timedelta(seconds=10)  # callers wait that long
_WAITS: Final = "Others of its template wait for a node before it."


class NodeQueue:
    """Those of one namespace. Losing it costs a few pods more in the scheduler's queue."""

    def __init__(self, wake: Callable[[Key], None], clock: Callable[[], datetime]) -> None:
        self._wake, self._clock = wake, clock
        self._lacking: dict[str, tuple[Sandbox, datetime]] = {}  # by uid: claims without a node, and since when
        self._behind: dict[str, Sandbox] = {}  # by uid: claims that get no pod yet

    def held(self, sandbox: Sandbox) -> Refusal | None:
        """Return why a claim has to wait before it gets its pod; None when it does not."""
        before, uid, now = self._before(sandbox), sandbox.metadata.uid, self._clock()
        if sandbox.spec.claim is None or len(before) < MOST:
            if self._behind.pop(uid, None) is not None:
                self._lacking[uid] = (
                    sandbox,
                    now,
                )  # until a node takes it, or the next would follow before that is known
            return None
        self._behind[uid] = sandbox
        until = min(since for _, since in before) + COUNTS
        return Refusal(reason=Reason.UNSCHEDULABLE, message=_WAITS, attempts=1, until=until)

    def note(self, sandbox: Sandbox, *, lacks_node: bool, placed: bool) -> None:
        """Note whether the scheduler finds no node for a claim's pod, or has found one; neither while it looks."""
        uid = sandbox.metadata.uid
        if lacks_node:
            self._lacking.setdefault(uid, (sandbox, self._clock()))
        elif placed:
            self._lacking.pop(uid, None)
            self._behind.pop(uid, None)
            self._wake_next(sandbox)

    def gone(self, uid: str) -> None:
        """Note that a Sandbox is gone."""
        self._behind.pop(uid, None)
        if (lacked := self._lacking.pop(uid, None)) is not None:
            self._wake_next(lacked[0])

    def _before(self, sandbox: Sandbox) -> list[tuple[Sandbox, datetime]]:
        template, begin = sandbox.spec.template_ref, self._clock() - COUNTS
        others = (each for uid, each in self._lacking.items() if uid != sandbox.metadata.uid)
        return [each for each in others if each[0].spec.template_ref == template and each[1] > begin]

    def _wake_next(self, sandbox: Sandbox) -> None:
        """Wake the first that waits behind claims like this one: of who has fewest in the scheduler's queue."""
        behind = [each for each in self._behind.values() if each.spec.template_ref == sandbox.spec.template_ref]
        before = self._before(sandbox) if behind else []
        if not behind or len(before) >= MOST:
            return
        owners = [_owner(each) for each, _ in before]
        self._wake(key_of_sandbox(min(behind, key=lambda each: (owners.count(_owner(each)), _since(each)))))


def key_of_sandbox(sandbox: Sandbox) -> Key:
    """Return the key of a Sandbox."""
    return Key(SANDBOXES.kind, sandbox.metadata.namespace, sandbox.metadata.name)


def _owner(sandbox: Sandbox) -> str:
    return sandbox.spec.claim.owner if sandbox.spec.claim is not None else ""


def _since(sandbox: Sandbox) -> float:
    return sandbox.spec.claim.time.timestamp() if sandbox.spec.claim is not None else 0.0
