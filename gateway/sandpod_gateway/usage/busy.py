"""The time of sandboxes in which runs are going on, one or many. No I/O."""

from collections.abc import Callable


class BusyTimes:
    """Counts the runs of each sandbox, and reports the time in which there are any. Times are microseconds."""

    def __init__(self, now: Callable[[], int], charge: Callable[[str, int], None]) -> None:
        self._now = now
        self._charge = charge  # gets a sandbox, and the time since its last look
        self._runs: dict[str, list[int]] = {}  # by sandbox: how many there are, and up to when they are charged

    def count(self, sandbox: str, step: int) -> None:
        """Count a run more, or less (-1)."""
        self._look(sandbox)
        runs = self._runs.setdefault(sandbox, [0, self._now()])
        runs[0] += step
        if not runs[0]:
            del self._runs[sandbox]

    def charge(self) -> None:
        """Charge the time of all up to now."""
        for sandbox in list(self._runs):
            self._look(sandbox)

    def _look(self, sandbox: str) -> None:
        if (runs := self._runs.get(sandbox)) is not None:
            now = self._now()
            elapsed, runs[1] = max(0, now - runs[1]), now
            if elapsed:
                self._charge(sandbox, elapsed)
