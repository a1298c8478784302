"""A clock that the test moves."""

from dataclasses import dataclass


@dataclass
class Clock:
    """Returns the seconds that `now` says."""

    now: float = 0.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now
