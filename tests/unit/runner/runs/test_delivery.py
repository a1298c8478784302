"""What is remembered of ended runs, and for how long."""

from dataclasses import replace
from typing import Any

import pytest

from sandpod_runner.output.output_log import OutputLog
from sandpod_runner.protocol.errors import Refusal
from sandpod_runner.protocol.messages import LANGUAGES
from sandpod_runner.runs.delivery import (
    LONG,
    MAX_BYTES,
    MAX_WAITING_BYTES,
    MOST,
    NAMES,
    SHORT,
    UNOWNED,
    Delivery,
    History,
)
from sandpod_runner.runs.request import RunRequest, fingerprint, parse_run

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
    terminal = fields.pop("terminal", False)
    request = parse_run({"run": name, "language": "shell", "detached": terminal, **fields}, b"true", LANGUAGES)
    return replace(request, terminal=terminal)


def delivered(name: str = "r", *, owner: Stream | None = None, **fields: Any) -> Delivery:
    return Delivery(asked(name, **fields), OutputLog(LARGE), owner or Stream())


def ended(history: History, name: str, now: float = 0.0, *, output: int = 0, **fields: Any) -> Delivery:
    run = delivered(name, **fields)
    history.begin(run)
    if output:
        run.put(0, bytes(output))
    run.finish({"run": name, "outcome": "ok"})
    history.end(run, now)
    return run


def test_run_is_remembered_for_its_time_and_one_with_a_key_longer() -> None:
    history = History()
    assert history.expire(0) is None
    ended(history, "short", 0)
    ended(history, "long", 0, key="k")
    ended(history, "later", SHORT - 1)
    assert history.expire(SHORT - 1) == 1
    assert history.expire(SHORT) == SHORT - 1
    assert [run.request.run for run in history.ended] == ["long", "later"]
    assert history.expire(3 * SHORT) == LONG - 3 * SHORT
    assert history.known(asked("again", key="k")) == "long"
    assert history.expire(LONG) is None
    assert history.ended == []
    assert history.known(asked("again", key="k")) is None


@pytest.mark.parametrize("fields", [{}, {"detached": True}, {"key": "other"}, {"terminal": True}])
def test_each_kind_of_run_is_bounded_by_itself(fields: dict[str, Any]) -> None:
    history = History()
    kept = ended(history, "kept", detached=not fields or "terminal" in fields)
    for number in range(MOST):
        own: dict[str, Any] = {name: f"{value}-{number}" if name == "key" else value for name, value in fields.items()}
        ended(history, f"run-{number}", **own)
    names = [run.request.run for run in history.ended]
    assert kept.request.run in names
    assert len(names) == MOST + 1
    ended(history, "one-more", **fields)
    assert history.find("run-0") is None
    assert history.find("one-more") is not None


def test_oldest_output_is_dropped_where_all_is_too_much_and_the_ends_stay() -> None:
    history = History()
    count = MAX_BYTES // LARGE + 4
    for number in range(count):
        ended(history, f"run-{number}", key=f"key-{number}", output=LARGE - 1000)
    sizes = [run.size for run in history.ended]
    assert sum(sizes) <= MAX_BYTES
    assert sizes[0] == 0 < sizes[-1]
    assert history.known(asked("again", key="key-0")) == "run-0"
    first = history.find("run-0")
    assert first is not None
    stream = Stream()
    first.follow(stream, 0, 0)
    assert stream.kinds == ["end"]


def test_name_is_known_when_its_run_was_forgotten_for_many_runs_more() -> None:
    history = History()
    assert history.known(asked("first")) is None
    ended(history, "first")
    for number in range(NAMES - 1):
        ended(history, f"later-{number}")
    assert history.find("first") is None
    assert history.known(asked("first")) == "first"
    ended(history, "last")
    assert history.known(asked("first")) is None


def test_displays_that_nobody_got_come_with_the_next_owner_before_the_end() -> None:
    delivery = delivered()
    delivery.owner = None
    delivery.post({"t": "display"}, b"picture")
    delivery.put(0, b"text")
    delivery.finish({"run": "r", "outcome": "ok"})
    for expected in (["out", "display", "end"], ["out", "end"]):
        stream = Stream()
        delivery.follow(stream, 0, 0)
        assert stream.kinds == expected


def test_displays_of_a_detached_run_come_with_every_owner() -> None:
    delivery = delivered(detached=True)
    delivery.owner = None
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
    delivery.owner = None
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
        delivery.owner = None
        assert not delivery.held
        delivery.put(0, bytes(UNOWNED))
        assert delivery.held is not detached


def test_program_that_nobody_owns_waits_with_its_displays_too() -> None:
    delivery = delivered()
    delivery.owner = None
    delivery.post({"t": "display"}, bytes(UNOWNED - 1))
    assert not delivery.held
    delivery.put(0, b"x")
    assert delivery.held


def test_slow_owner_gets_the_end_once_and_after_all_else() -> None:
    slow = Stream(can_send=False)
    delivery = delivered(detached=True, owner=slow)
    delivery.put(1, b"text")
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
        parse_run({"run": "a", "language": "shell"}, b"", LANGUAGES),
    ]
    assert len({same, *map(fingerprint, others)}) == 5


def test_key_with_other_arguments_is_refused() -> None:
    history = History()
    ended(history, "run", key="k")
    with pytest.raises(Refusal):
        history.known(asked("again", key="k", args=["other"]))
