"""Audit records are read newest first, over closed files, a bounded part at a time."""

import json
from pathlib import Path
from typing import Any

import pytest

from sandpod_gateway.audit import reading
from sandpod_gateway.audit.chain import MARK
from sandpod_gateway.audit.reading import Place, read_back


def line(number: int, size: int = 0) -> bytes:
    return json.dumps({MARK: "x", "n": number, "filler": "x" * size}).encode() + b"\n"


def numbers(found: list[dict[str, Any]]) -> list[int]:
    return [record["n"] for record in found]


def everything(path: Path, limit: int) -> list[int]:
    read: list[int] = []
    place: Place | None = None
    while True:
        found, place = read_back(path, place, lambda _: True, limit)
        assert len(found) <= limit
        read += numbers(found)
        if place is None:
            return read


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Records 0 to 8 in two closed files and the last one, with lines between them that are none."""
    path = tmp_path / "audit.jsonl"
    for name, first in (("audit.jsonl.000003", 0), ("audit.jsonl.000004", 3), ("audit.jsonl", 6)):
        lines = [line(first), b"{}\n", b"half a li\n", line(first + 1), b'{"audit": 1' * 5 + b"\n", line(first + 2)]
        (tmp_path / name).write_bytes(b"".join(lines))
    (tmp_path / "audit.jsonl.note").write_bytes(line(99))
    return path


@pytest.mark.parametrize("limit", [1, 2, 3, 100])
@pytest.mark.parametrize("block", [8, 64, 2**20])
def test_all_records_come_once_and_newest_first(
    path: Path, limit: int, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    longest = max(len(each) for file in path.parent.iterdir() for each in file.read_bytes().splitlines(keepends=True))
    monkeypatch.setattr(reading, "_BLOCK", block + longest)
    assert everything(path, limit) == list(range(8, -1, -1))


def test_a_cursor_holds_while_records_are_added_and_files_are_closed_or_deleted(path: Path) -> None:
    found, place = read_back(path, None, lambda _: True, 2)
    assert (numbers(found), place and Place.parse(str(place)) == place) == ([8, 7], True)
    with path.open("ab") as file:
        file.write(line(9))
    path.rename(path.with_name("audit.jsonl.000005"))
    path.write_bytes(line(10))
    found, place = read_back(path, place, lambda _: True, 2)
    assert numbers(found) == [6, 5]
    path.with_name("audit.jsonl.000003").unlink()
    found, place = read_back(path, place, lambda _: True, 100)
    assert (numbers(found), place) == ([4, 3], None)
    assert read_back(path, Place(99, 10), lambda _: True, 1)[0][0]["n"] == 10
    assert read_back(path.with_name("none"), None, lambda _: True, 1) == ([], None)


def test_one_look_reads_a_bounded_part_and_says_where_to_read_on(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "SCAN_BYTES", 100)
    monkeypatch.setattr(reading, "_BLOCK", 100)
    looks, place = 0, None
    found: list[dict[str, Any]] = []
    while looks == 0 or place is not None:
        more, place = read_back(path, place, lambda record: record["n"] == 0, 5)
        looks, found = looks + 1, found + more
    assert looks > 5
    assert numbers(found) == [0]


def test_a_line_that_no_record_has_is_passed_over(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "_BLOCK", 200)
    path.write_bytes(line(6) + b"x" * 1000 + b"\n" + line(7))
    assert everything(path, 100)[:2] == [7, 6]
    path.write_bytes(line(6) + b"x" * 1000 + b"\n")
    assert everything(path, 100)[0] == 6
