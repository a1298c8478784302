import random
from typing import Any

import pytest

from chaos.slope import slope
from chaos.soak import judge, series


def test_a_line_is_found_with_no_error() -> None:
    found = slope([(second, 5 + 2 * second / 3600) for second in range(0, 7200, 60)])
    assert found.per_hour == pytest.approx(2)
    assert found.error == pytest.approx(0, abs=1e-9)
    assert (found.exceeds(1.9), found.exceeds(2.1)) == (True, False)


def test_noise_is_no_growth_and_growth_is_found_in_noise() -> None:
    noise = random.Random(1)  # noqa: S311 - the same noise each time
    flat = [(second, 100 + noise.gauss(0, 5)) for second in range(0, 7200, 15)]
    found = slope(flat)
    assert abs(found.per_hour) < 3 * found.error
    assert not found.exceeds(1)
    grows = slope([(second, value + 10 * second / 3600) for second, value in flat])
    assert grows.per_hour == pytest.approx(found.per_hour + 10)
    assert grows.exceeds(5)


def test_samples_that_follow_each_other_count_for_less() -> None:
    noise = random.Random(2)  # noqa: S311 - the same noise each time
    value, walk, single = 0.0, [], []
    for second in range(0, 3600, 10):
        value = 0.9 * value + noise.gauss(0, 1)
        walk.append((float(second), value))
        single.append((float(second), noise.gauss(0, 1)))
    assert slope(walk).error > 3 * slope(single).error


def test_two_samples_have_no_error_to_tell() -> None:
    with pytest.raises(ValueError, match="three"):
        slope([(0, 1), (1, 2)])


def test_a_program_that_grows_is_found_among_those_that_do_not() -> None:
    def program(name: str, memory: int) -> dict[str, Any]:
        return {"name": name, "where": "", "memory": memory, "descriptors": 10, "threads": 3}

    samples = [
        {
            "at": minute * 60.0,
            "programs": [program("gateway", (100 + minute) << 20), program("runner", 30 << 20)],
            "stored": {"pods": 10, "events": minute * 100},
        }
        for minute in range(60)
    ]
    rows, wrong = judge(series(samples, warm=600))
    assert len(rows) == 7
    [grows] = wrong
    assert grows.startswith("gateway memory grows by 60.00 an hour")
