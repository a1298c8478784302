"""What the operator remembers and no object says. Losing it costs a retry, never a wrong decision."""

from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from sandpod_api.conditions import Reason
from sandpod_kube.errors import DeniedError
from sandpod_operator.model.observed import Kernel, Refusal
from sandpod_operator.model.pool_backoff import PoolBackoff
from sandpod_operator.settings import OperatorSettings
from sandpod_operator.status.failures import clean

QUOTA: Final = "exceeded quota"
_MAX_DOUBLINGS: Final = 16


@dataclass(kw_only=True, slots=True)
class State:
    """All of it.

    Attributes:
        refusals: By the Sandbox's uid.
        kernels: Of the node of a pod, by the pod's uid.
        failures: By the pool's uid.
        backoffs: By the pool's uid.
        status_written: By the pool's uid.
    """

    refusals: dict[str, Refusal] = field(default_factory=dict)
    kernels: dict[str, Kernel] = field(default_factory=dict)
    failures: dict[str, int] = field(default_factory=dict)
    backoffs: dict[str, PoolBackoff] = field(default_factory=dict)
    status_written: dict[str, datetime] = field(default_factory=dict)

    def refused(self, uid: str, error: DeniedError, now: datetime, settings: OperatorSettings) -> None:
        """Note that a sandbox's pod or volume was refused, and when to try again: later each time."""
        before = self.refusals.get(uid)
        attempts = before.attempts + 1 if before is not None else 1
        doubled = settings.refused_retry * 2 ** min(attempts - 1, _MAX_DOUBLINGS)
        self.refusals[uid] = Refusal(
            reason=Reason.QUOTA_EXCEEDED if QUOTA in error.message else Reason.ADMISSION_REFUSED,
            message=clean(error.message),
            attempts=attempts,
            until=now + timedelta(seconds=min(doubled, settings.backoff_max)),
        )

    def trim(self, *, sandboxes: AbstractSet[str], pods: AbstractSet[str], pools: AbstractSet[str]) -> None:
        """Drop what is kept about objects that are gone.

        Args:
            sandboxes: The uids of those that are there.
            pods: The same.
            pools: The same.
        """
        kept: list[tuple[dict[str, Any], AbstractSet[str]]] = [(self.refusals, sandboxes), (self.kernels, pods)]
        kept += [(known, pools) for known in (self.failures, self.backoffs, self.status_written)]
        for known, uids in kept:
            for uid in known.keys() - uids:
                del known[uid]
