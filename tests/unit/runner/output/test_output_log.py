"""What comes out of a run's log is what went in, but for what was dropped, and it stays within its bounds."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandpod_runner.output.output_log import BLOCK, OutputLog, Reading, SpillFile, SpillFolder
from sandpod_runner.protocol.messages import HIDDEN

MEMORY = 4096
LARGEST = 64 * 1024
Written = list[tuple[int, bytes]]
Flat = tuple[bytes, bytes]

pieces = st.lists(
    st.tuples(
        st.integers(0, 1),
        st.binary(min_size=1, max_size=40)
        | st.builds(lambda size, byte: bytes([byte]) * size, st.integers(1, 3000), st.integers(0, 255)),
    ),
    max_size=60,
)


def filled(log: OutputLog, written: Written) -> Flat:
    """Write the pieces and return, for each byte, whose it is and what."""
    for stream, data in written:
        log.append(stream, data)
    return b"".join(bytes([stream]) * len(data) for stream, data in written), b"".join(data for _, data in written)


def read_all(log: OutputLog, *, limit: int = 700, most: int = 5) -> list[Reading]:
    cursor, readings = 0, []
    while cursor < log.end:
        reading = log.read(cursor, limit, most)
        assert reading.cursor > cursor
        assert sum(len(data) for _, _, data in reading.pieces) <= limit
        assert len(reading.pieces) <= most
        cursor = reading.cursor
        readings.append(reading)
    return readings


def check(log: OutputLog, everything: Flat) -> int:
    """Compare all that can be read with what was written, and return how much of it is lost."""
    whose, what = everything
    at, lost, seen = 0, 0, [0, 0]

    def go_on(length: int) -> None:
        nonlocal at
        for stream in (0, 1):
            seen[stream] += whose.count(stream, at, at + length)
        at += length

    for reading in read_all(log):
        go_on(reading.dropped)
        lost += reading.dropped
        for stream, offset, data in reading.pieces:
            assert offset == seen[stream]
            assert what[at : at + len(data)] == data
            assert set(whose[at : at + len(data)]) == {stream}
            go_on(len(data))
    assert at == len(what) == log.end == sum(log.counts)
    return lost


@given(pieces)
def test_log_gives_back_what_it_was_given_but_for_the_oldest_and_stays_within_its_memory(written: Written) -> None:
    log = OutputLog(MEMORY)
    everything = filled(log, written)
    assert log.size <= MEMORY
    readings = read_all(log)
    assert [reading.dropped for reading in readings[1:]] == [0] * len(readings[1:])
    lost = check(log, everything)
    assert lost == 0 or len(everything[0]) > MEMORY // 4


@settings(max_examples=60, deadline=None)
@given(pieces, st.integers(2, 12))
def test_log_with_a_spill_gives_back_what_both_have_room_for(written: Written, kilobytes: int) -> None:
    with tempfile.TemporaryDirectory() as workspace:
        log = OutputLog(MEMORY, SpillFile(SpillFolder(workspace), size=kilobytes * 1024))
        everything = filled(log, written)
        assert log.size <= MEMORY + kilobytes * 1024
        check(log, everything)
        log.clear()
        assert list(Path(workspace).iterdir()) == []


@given(pieces, st.data())
def test_seeking_two_offsets_finds_all_that_comes_after_them(written: Written, data: st.DataObject) -> None:
    log = OutputLog(1024 * 1024)
    filled(log, written)
    wants = [data.draw(st.integers(0, count)) for count in log.counts]
    cursor = log.seek(wants[0], wants[1])
    found = log.read(cursor, 2**30, 2**30).pieces
    for stream in (0, 1):
        mine = b"".join(part[max(0, wants[stream] - offset) :] for which, offset, part in found if which == stream)
        assert mine == b"".join(part for which, part in written if which == stream)[wants[stream] :]


def test_pieces_of_one_byte_cost_no_more_than_the_log_may_have() -> None:
    log = OutputLog(256 * 1024)
    for number in range(300_000):
        log.append(number & 1, b"x")
    assert log.size <= 256 * 1024
    kept = sum(len(data) for _, _, data in log.read(0, 2**30, 2**30).pieces)
    assert kept > 256 * 1024 // 8


def test_large_pieces_are_kept_without_copying_them() -> None:
    log = OutputLog(1024 * 1024)
    piece = bytes(BLOCK)
    log.append(0, piece)
    assert log._blocks[0].data is piece


def test_spilled_output_comes_back_in_order_and_its_files_are_gone_with_it(tmp_path: Path) -> None:
    log = OutputLog(256 * 1024, SpillFile(SpillFolder(str(tmp_path)), size=2**20))
    written = [(number % 2, bytes([number % 251]) * 10_000) for number in range(100)]
    everything = filled(log, written)
    assert check(log, everything) == 0
    assert [path.stat().st_mode & 0o777 for path in (tmp_path / HIDDEN, *(tmp_path / HIDDEN).iterdir())] == [
        0o700,
        0o600,
    ]
    log.clear()
    assert list(tmp_path.iterdir()) == []
    assert log.read(0, 100, 100) == Reading(log.end, log.end, [])


@pytest.mark.parametrize("room", [0, 1000, 200_000])
def test_full_disk_drops_and_counts_and_the_newest_stays(tmp_path: Path, room: int) -> None:
    folder = SpillFolder(str(tmp_path), total=room)
    log = OutputLog(128 * 1024, SpillFile(folder))
    everything = filled(log, [(number % 2, bytes([number % 251]) * 5000) for number in range(200)])
    lost = check(log, everything)
    assert len(everything[0]) - 128 * 1024 - room <= lost <= len(everything[0]) - 64 * 1024
    assert log.size <= 128 * 1024 + room


def test_share_that_is_full_is_made_room_in_first(tmp_path: Path) -> None:
    folder = SpillFolder(str(tmp_path), total=300_000)
    old, new = (OutputLog(64 * 1024, SpillFile(folder)) for _ in range(2))

    def drop() -> bool:
        dropped = old.size > 0
        old.clear()
        return dropped

    folder.make_room = drop
    for log in (old, new):
        everything = filled(log, [(0, bytes(10_000))] * 30)
    assert old.size == 0
    assert check(new, everything) == 0


@pytest.mark.parametrize("damage", ["truncate", "overwrite"])
def test_spill_that_a_program_damaged_is_lost_output_and_nothing_worse(tmp_path: Path, damage: str) -> None:
    log = OutputLog(64 * 1024, SpillFile(SpillFolder(str(tmp_path))))
    filled(log, [(0, b"x" * 10_000)] * 50)
    (file,) = (tmp_path / HIDDEN).iterdir()
    with file.open("r+b") as stream:
        if damage == "truncate":
            stream.truncate(100)
        else:
            stream.write(b"\xff" * 500_000)
    readings = read_all(log)
    kept = sum(len(data) for reading in readings for _, _, data in reading.pieces)
    assert sum(reading.dropped for reading in readings) == 500_000 - kept
    assert 0 < kept <= 64 * 1024


def test_folder_that_a_program_replaced_leads_nowhere(tmp_path: Path) -> None:
    outside, workspace = tmp_path / "outside", tmp_path / "workspace"
    outside.mkdir()
    workspace.mkdir()
    (outside / "log-1").touch()
    (workspace / HIDDEN).symlink_to(outside)
    folder = SpillFolder(str(workspace))
    folder.clear()
    log = OutputLog(64 * 1024, SpillFile(folder))
    filled(log, [(0, b"x" * 10_000)] * 50)
    assert [path.name for path in outside.iterdir()] == ["log-1"]


def test_files_of_an_earlier_runner_are_removed(tmp_path: Path) -> None:
    (tmp_path / HIDDEN).mkdir()
    (tmp_path / HIDDEN / "log-00").write_bytes(b"old")
    SpillFolder(str(tmp_path)).clear()
    assert list(tmp_path.iterdir()) == []
