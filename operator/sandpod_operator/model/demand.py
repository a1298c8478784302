"""How fast a pool is claimed from and how long a new sandbox takes: what is remembered of a pool between two plans."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final, Self

from sandpod_api.types import SandboxPoolStatus

START: Final = 3.0  # seconds until a new sandbox is warm, until some were seen


@dataclass(frozen=True, kw_only=True, slots=True)
class Demand:
    """Claims of the last minute, and what is known from before."""

    recent: tuple[tuple[datetime, int], ...] = ()  # seconds with claims, and how many
    rate: float = 0.0  # claims per second that the pool is sized for
    start: float = START  # seconds from the creation of a warm sandbox until it can be claimed
    wanted: int = 0  # by the last plan
    at: datetime | None = None  # when that was
    raised: datetime | None = None  # when the rate was last doubled, since claims found nothing

    @classmethod
    def of(cls, status: SandboxPoolStatus) -> Self:
        """Return what an earlier operator process knew, as far as the pool's status says it."""
        start = START if status.start_seconds is None else status.start_seconds
        return cls(rate=status.claims_per_second or 0.0, start=start, wanted=status.desired_replicas or 0)
