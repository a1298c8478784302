"""Every input of the fuzzing corpus: those that made something new happen, and those that once showed a bug."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from fuzz.served import Served
from fuzz.targets import TARGETS
from fuzz.values import Source

CORPUS = Path(__file__).parents[2] / "fuzz" / "corpus"


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    served = Served.of()
    yield served
    served.close()


@pytest.mark.parametrize("name", TARGETS)
def test_no_input_of_the_corpus_shows_a_bug(name: str, served: Served) -> None:
    inputs = sorted((CORPUS / name).iterdir())
    assert inputs, "a corpus has something to begin with"
    assert sum(each.stat().st_size for each in inputs) < 100_000, "the corpus in the repository is small"
    for each in inputs:
        TARGETS[name](each.read_bytes())
    assert served.bugs() == []


def test_a_target_fails_where_it_should(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("fuzz.targets.parse_run", broken)
    with pytest.raises(RuntimeError):
        TARGETS["frames"](b"\0\0\0\2\0\0\0\0{}")
    monkeypatch.setattr("fuzz.targets.e2b_connect.Decoder.feed", lambda _, data: iter([data]))
    with pytest.raises(AssertionError, match="depend on how"):
        TARGETS["envelopes"](b"abcdefgh")
    assert served.bugs() == []


def test_bytes_become_the_same_values_again() -> None:
    data = bytes(range(256)) * 4
    first, again = Source(data), Source(data)
    assert repr([first.value() for _ in range(50)]) == repr([again.value() for _ in range(50)])
    assert not Source(b"").more
    assert Source(b"").value() is None
