"""What is remembered of ended runs, and for how long."""

from typing import Any

import pytest

from sandpod_runner.output.output_log import OutputLog
from sandpod_runner.protocol.errors import Refusal
from sandpod_runner.protocol.messages import LANGUAGES
from sandpod_runner.runs.delivery import MAX_WAITING_BYTES, UNOWNED, Delivery
from sandpod_runner.runs.history import LONG, MAX_BYTES, MOST, NAMES, SHORT, MemoryOfRuns, Record
from sandpod_runner.runs.request import RunLimits, RunRequest, fingerprint, parse_run

LARGE = 2 * 1024 * 1024


class Stream:
    """An owner that writes down what it gets."""

    def __init__(self, *, can_send: bool = True) -> None:
        self.can_send = can_send
        self.got: list[tuple[dict[str, Any], bytes]] = []

    def send(self, header: dict[str, Any], payload: bytes = b"") -> None:
        self.got.append((header, payload))

    @property
    def kinds(self) -> list[str]:
        return [header["t"] for header, _ in self.got]


def asked(name: str, **fields: Any) -> RunRequest:
    return parse_run({"run": name, "language": "shell", **fields}, b"true", LANGUAGES, RunLimits())


def delivered(*, detached: bool = False, owner: Stream | None = None) -> Delivery:
    return Delivery("r", OutputLog(LARGE), owner or Stream(), detached=detached)


def ended(memory: MemoryOfRuns, name: str, now: float = 0.0, *, output: int = 0, **fields: Any) -> Record:
    request = asked(name, **fields)
    delivery = delivered()
    record = Record(request, delivery)
    memory.begin(record)
    if output:
        delivery.put("stdout", 0, bytes(output))
    delivery.finish({"run": name, "outcome": "ok"})
    memory.end(record, now)
    return record


def test_run_is_remembered_for_its_time_and_one_with_a_key_longer() -> None:
    memory = MemoryOfRuns()
    assert memory.expire(0) is None
    ended(memory, "short", 0)
    ended(memory, "long", 0, key="k")
    ended(memory, "later", SHORT - 1)
    assert memory.expire(SHORT - 1) == 1
    assert memory.expire(SHORT) == SHORT - 1
    assert [record.run for record in memory.ended] == ["long", "later"]
    assert memory.expire(3 * SHORT) == LONG - 3 * SHORT
    assert memory.known(asked("again", key="k")) == "long"
    assert memory.expire(LONG) is None
    assert memory.ended == []
    assert memory.known(asked("again", key="k")) is None


@pytest.mark.parametrize("fields", [{}, {"detached": True}, {"key": "other"}])
def test_each_kind_of_run_is_bounded_by_itself(fields: dict[str, Any]) -> None:
    memory = MemoryOfRuns()
    kept = ended(memory, "kept", detached=not fields)
    for number in range(MOST):
        own: dict[str, Any] = {name: f"{value}-{number}" if name == "key" else value for name, value in fields.items()}
        ended(memory, f"run-{number}", **own)
    names = [record.run for record in memory.ended]
    assert kept.run in names
    assert len(names) == MOST + 1
    ended(memory, "one-more", **fields)
    assert memory.find("run-0") is None
    assert memory.find("one-more") is not None


def test_oldest_output_is_dropped_where_all_is_too_much_and_the_ends_stay() -> None:
    memory = MemoryOfRuns()
    count = MAX_BYTES // LARGE + 4
    for number in range(count):
        ended(memory, f"run-{number}", key=f"key-{number}", output=LARGE - 1000)
    sizes = [record.delivery.size for record in memory.ended]
    assert sum(sizes) <= MAX_BYTES
    assert sizes[0] == 0 < sizes[-1]
    assert memory.known(asked("again", key="key-0")) == "run-0"
    first = memory.find("run-0")
    assert first is not None
    stream = Stream()
    first.delivery.follow(stream, 0, 0)
    assert stream.kinds == ["end"]


def test_name_is_known_when_its_run_was_forgotten_for_many_runs_more() -> None:
    memory = MemoryOfRuns()
    assert memory.known(asked("first")) is None
    ended(memory, "first")
    for number in range(NAMES - 1):
        ended(memory, f"later-{number}")
    assert memory.find("first") is None
    assert memory.known(asked("first")) == "first"
    ended(memory, "last")
    assert memory.known(asked("first")) is None


def test_displays_that_nobody_got_come_with_the_next_owner_before_the_end() -> None:
    delivery = delivered()
    delivery.leave()
    delivery.post({"t": "display"}, b"picture")
    delivery.put("stdout", 0, b"text")
    delivery.finish({"run": "r", "outcome": "ok"})
    for expected in (["out", "display", "end"], ["out", "end"]):
        stream = Stream()
        delivery.follow(stream, 0, 0)
        assert stream.kinds == expected


def test_displays_of_a_detached_run_come_with_every_owner() -> None:
    delivery = delivered(detached=True)
    delivery.leave()
    delivery.post({"t": "display"}, b"one")
    first = Stream()
    delivery.follow(first, 0, 0)
    delivery.post({"t": "display"}, b"two")
    delivery.finish({"run": "r", "outcome": "ok"})
    second = Stream()
    delivery.follow(second, 0, 0)
    assert first.kinds == second.kinds == ["display", "display", "end"]
    assert delivery.size == len(b"onetwo")


def test_displays_that_wait_are_bounded_and_counted() -> None:
    delivery = delivered()
    delivery.leave()
    for _ in range(5):
        delivery.post({"t": "display"}, bytes(MAX_WAITING_BYTES // 2))
    assert delivery.dropped == 3
    assert delivery.size == MAX_WAITING_BYTES


def test_program_waits_for_a_slow_owner_and_for_a_new_one_unless_it_is_detached() -> None:
    for detached in (False, True):
        delivery = delivered(detached=detached)
        assert not delivery.held
        delivery.follow(Stream(can_send=False), 0, 0)
        assert delivery.held is not detached
        delivery.leave()
        assert not delivery.held
        delivery.put("stdout", 0, bytes(UNOWNED))
        assert delivery.held is not detached


def test_program_that_nobody_owns_waits_with_its_displays_too() -> None:
    delivery = delivered()
    delivery.leave()
    delivery.post({"t": "display"}, bytes(UNOWNED - 1))
    assert not delivery.held
    delivery.put("stdout", 0, b"x")
    assert delivery.held


def test_slow_owner_gets_the_end_once_and_after_all_else() -> None:
    slow = Stream(can_send=False)
    delivery = delivered(detached=True, owner=slow)
    delivery.put("stderr", 0, b"text")
    delivery.finish({"run": "r", "outcome": "ok"})
    assert slow.got == []
    slow.can_send = True
    for _ in range(2):
        delivery.pump()
        assert slow.kinds == ["out", "end"]


def test_fingerprint_is_of_code_language_arguments_and_context_alone() -> None:
    same = fingerprint(asked("a", timeout=3, env={"A": "1"}))
    assert same == fingerprint(asked("b"))
    python = [asked("a", language="python"), asked("a", language="python", context="c")]
    others = [
        *python,
        asked("a", args=["x"]),
        parse_run({"run": "a", "language": "shell"}, b"", LANGUAGES, RunLimits()),
    ]
    assert len({same, *map(fingerprint, others)}) == 5


def test_key_with_other_arguments_is_refused() -> None:
    memory = MemoryOfRuns()
    ended(memory, "run", key="k")
    with pytest.raises(Refusal):
        memory.known(asked("again", key="k", args=["other"]))
