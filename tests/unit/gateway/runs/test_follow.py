"""Following a run: at once where something comes, and no faster than its time pays for."""

from typing import Any

import pytest

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.api.run_results import RunOutput
from sandpod_gateway.content import Answer
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.masking.current import current_call
from sandpod_gateway.masking.masker import Masker
from sandpod_gateway.runs.follow import Pace, follow


class Clock:
    """A clock that stands still."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_looks_are_free_until_the_time_that_was_saved_up_is_spent() -> None:
    clock = Clock()
    pace = Pace(clock)
    assert [pace.owed(0.25) for _ in range(5)] == [0, 0, 0, 0, 0.25]
    clock.now += 0.75  # of which 0.25 are owed
    assert [pace.owed(0.25) for _ in range(3)] == [0, 0, 0.25]
    clock.now += 3600  # no more than a second of it is saved up
    assert [pace.owed(0.25) for _ in range(5)] == [0, 0, 0, 0, 0.25]


class Background:
    """A run whose readings are given; each is asked for with a wait."""

    def __init__(self, *readings: dict[str, Any]) -> None:
        self.readings = list(readings)
        self.cursors: list[int] = []

    async def read(self, _owner: str, run_id: str, *, cursor: int, wait: float, **_: Any) -> Answer[RunOutput]:
        assert wait > 0
        self.cursors.append(cursor)
        current_call().maskers.append(Masker([("TOKEN", "a-secret-value")]))
        reading = self.readings.pop(0)
        if "error" in reading:
            raise SandpodError(ErrorCode.SANDBOX_LOST, "a-secret-value went away", next_step="")
        return Answer(RunOutput(run_id=run_id, sandbox="a", state="running", cursor=cursor + 1, **reading))


async def _valid() -> None:
    pass


async def test_what_a_run_writes_and_why_it_is_lost_come_masked() -> None:
    background: Any = Background({"stdout": "a-secret-value\n"}, {}, {"dropped_bytes": 3}, {"error": True})
    following = follow(background, "ann", "a.run-1", 7, _valid)
    first, nothing, gap = [await anext(following) for _ in range(3)]
    assert first is not None
    assert gap is not None
    assert "a-secret-value" not in first.result.stdout
    assert (first.result.stdout[-1], nothing, gap.result.dropped_bytes) == ("\n", None, 3)
    with pytest.raises(SandpodError) as lost:
        await anext(following)
    assert "a-secret-value" not in lost.value.message
    assert background.cursors == [7, 8, 9, 10]
