"""Whether something grows: the slope of a line through samples, and how sure it is. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

SURE = 2.0  # standard errors beyond the bound at which it is exceeded, and not only by chance


@dataclass(frozen=True)
class Slope:
    """A line through samples.

    Attributes:
        per_hour: How much more there is after an hour.
        error: The standard error of that.
        last: The last sample.
        count: How many samples there are.
    """

    per_hour: float
    error: float
    last: float
    count: int

    def exceeds(self, bound: float) -> bool:
        """Whether it grows by more than a bound an hour, beyond its error."""
        return self.per_hour - SURE * self.error > bound


def slope(samples: Sequence[tuple[float, float]]) -> Slope:
    """Return the line by least squares through samples of seconds and values.

    What is next to each other in time is alike, so that there is less in many samples than their number says: the error
    is made larger by what the neighbours of the rests have in common.

    Raises:
        ValueError: There are fewer than three.
    """
    count = len(samples)
    if count < 3:
        raise ValueError("A slope with an error takes three samples.")
    hours = [at / 3600 for at, _ in samples]
    values = [value for _, value in samples]
    middle, mean = sum(hours) / count, sum(values) / count
    spread = sum((hour - middle) ** 2 for hour in hours)
    per_hour = sum((hour - middle) * (value - mean) for hour, value in zip(hours, values, strict=True)) / spread
    rests = [value - mean - per_hour * (hour - middle) for hour, value in zip(hours, values, strict=True)]
    squares = sum(rest**2 for rest in rests)
    error = math.sqrt(squares / (count - 2) / spread)
    if squares:
        alike = sum(one * next_ for one, next_ in pairwise(rests)) / squares
        alike = min(max(alike, 0.0), 0.95)
        error *= math.sqrt((1 + alike) / (1 - alike))
    return Slope(per_hour, error, values[-1], count)
