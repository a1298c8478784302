"""Records reach their place whole and in order, and what does not is counted."""

import json
import os
import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sandpod_gateway.audit import writer as writing
from sandpod_gateway.audit.act import CodeForm, Program
from sandpod_gateway.audit.settings import AuditSettings
from sandpod_gateway.audit.sinks import FileSink, Sink, StdoutSink
from sandpod_gateway.audit.verify import Verification
from sandpod_gateway.audit.writer import Writer
from sandpod_gateway.errors import StartError
from sandpod_gateway.metrics import Metrics
from support.gateway.peers import PATIENCE


def records_of(*files: Path) -> list[dict[str, Any]]:
    """Return the records of files, which must verify."""
    verification = Verification()
    for file in files:
        verification.read(str(file), file.read_bytes().splitlines(keepends=True))
    verification.finish()
    assert verification.problems == []
    lines = [line for file in files for line in file.read_bytes().splitlines()]
    assert {line[:26] for line in lines} == {b'{"audit":"sandpod.dev/v1",'}, "what tells it from a log line"
    records = [json.loads(line) for line in lines]
    return sorted(records, key=lambda record: (record["replica"] != "host/1", record["sequence"]))


@contextmanager
def writer_to(sink: Sink, metrics: Metrics | None = None, *, replica: str = "host/1") -> Iterator[Writer]:
    writer = Writer(sink, replica, metrics or Metrics(), code="hash", sync=False)
    writer.open({})
    try:
        yield writer
    finally:
        writer.close({})


def submit(writer: Writer, **facts: Any) -> bool:
    """Return whether a record was written."""
    answers: list[bool] = []
    told = threading.Event()

    def done(written: bool) -> None:  # noqa: FBT001 - as the writer calls it
        answers.append(written)
        told.set()

    writer.submit({"event": "call", **facts}, None, done)
    assert told.wait(PATIENCE)
    return answers[0]


def file_sink(path: Path, *, max_bytes: int = 2**20, max_files: int = 10) -> FileSink:
    return FileSink(path, max_bytes=max_bytes, max_files=max_files)


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """Let no file grow beyond a size: the kernel refuses, after a part of a line, as where a disk is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_records_are_whole_and_in_the_order_in_which_they_came(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    with writer_to(file_sink(path)) as writer:
        for number in range(500):
            writer.submit({"event": "call", "number": number}, ("x" * number, None))
    records = records_of(path)
    assert [record["event"] for record in records[:1] + records[-1:]] == ["start", "stop"]
    assert [(record["number"], record["code_bytes"]) for record in records[1:-1]] == [(n, n) for n in range(500)]
    assert path.stat().st_mode & 0o777 == 0o600


def test_full_file_gets_a_number_and_the_chain_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    with writer_to(file_sink(path, max_bytes=2000, max_files=3)) as writer:
        for number in range(60):
            writer.submit({"event": "call", "number": number})
    closed = sorted(each.name for each in tmp_path.iterdir())
    assert len(closed) == 4, "the oldest are deleted"
    assert [int(name.rpartition(".")[2]) for name in closed[2:]] == [int(closed[1][-6:]) + 1, int(closed[1][-6:]) + 2]
    assert all(each.stat().st_size <= 2000 for each in tmp_path.iterdir())
    records = records_of(*tmp_path.iterdir())
    assert [record["sequence"] for record in records] == list(range(records[0]["sequence"], 62))
    with writer_to(file_sink(path, max_bytes=2000, max_files=3), replica="host/2"):
        pass
    last = records[-1]
    later = [record for record in records_of(*tmp_path.iterdir()) if record["replica"] == "host/2"]
    assert later[0]["follows"] == {name: last[name] for name in ("replica", "sequence", "hash")}


def test_closed_files_are_kept_while_there_are_not_too_many(tmp_path: Path) -> None:
    with writer_to(file_sink(tmp_path / "audit.jsonl", max_bytes=1000, max_files=8)) as writer:
        for number in range(20):
            writer.submit({"event": "call", "number": number})
    assert len(list(tmp_path.iterdir())) > 5
    assert [record["sequence"] for record in records_of(*tmp_path.iterdir())] == list(range(22))


@pytest.mark.promise("audit-lost")
def test_full_disk_loses_no_record_silently_and_leaves_no_half_line(tmp_path: Path) -> None:
    path, metrics = tmp_path / "audit.jsonl", Metrics()
    with writer_to(file_sink(path), metrics) as writer:
        assert submit(writer, number=1)
        with files_of_at_most(path.stat().st_size + 100):
            assert [submit(writer, number=number) for number in (2, 3)] == [False, False]
            assert path.read_bytes().endswith(b"}\n")
        assert submit(writer, number=4)
    records = records_of(path)
    assert [record.get("number", record["event"]) for record in records] == ["start", 1, "lost", 4, "stop"]
    assert records[2]["count"] == 2
    assert metrics.registry.get_sample_value("sandpod_audit_records_total", {"sink": "file", "result": "lost"}) == 2
    assert metrics.registry.get_sample_value("sandpod_audit_records_total", {"sink": "file", "result": "written"}) == 5


@pytest.mark.promise("audit-lost")
def test_folder_that_is_deleted_loses_no_record_silently(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    path = folder / "audit.jsonl"
    with writer_to(file_sink(path)) as writer:
        assert submit(writer, number=1)
        path.unlink()
        assert submit(writer, number=2), "a file that is deleted alone is made anew"
        path.unlink()
        folder.rmdir()
        assert not submit(writer, number=3)
        folder.mkdir()
        assert submit(writer, number=4)
    assert [record.get("number", record["event"]) for record in records_of(path)] == ["lost", 4, "stop"]


def test_file_that_somebody_moved_or_cut_is_no_hindrance(tmp_path: Path) -> None:
    path, moved = tmp_path / "audit.jsonl", tmp_path / "moved.jsonl"
    with writer_to(file_sink(path)) as writer:
        assert submit(writer, number=1)
        path.rename(moved)
        path.touch()
        assert submit(writer, number=2)
        os.truncate(path, 0)
        assert submit(writer, number=3)
        assert path.stat().st_size < 500, "no hole where the cut part was"
    assert [record["sequence"] for record in records_of(moved)] == [0, 1]
    assert [record["sequence"] for record in records_of(path)] == [3, 4]


def test_line_that_a_killed_process_left_half_is_ended(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    with writer_to(file_sink(path)):
        pass
    with path.open("ab") as file:
        file.write(b'{"audit":"sandpod.dev/v1","half')
    with writer_to(file_sink(path), replica="host/2"):
        pass
    verification = Verification()
    verification.read("f", path.read_bytes().splitlines(keepends=True))
    assert (verification.finish(), verification.problems, verification.other_lines) == ([], [], 1)


def test_file_that_can_not_be_used_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for name in ("none/audit.jsonl", ".", "pipe", "link"):
        with pytest.raises(OSError, match=r".+"), writer_to(file_sink(tmp_path / name)):
            pass
    path = tmp_path / "audit.jsonl"
    with (
        writer_to(file_sink(path)),
        pytest.raises(OSError, match="Another process writes to it"),
        writer_to(file_sink(path)),
    ):
        pass


def test_standard_output_that_is_full_is_noticed() -> None:
    metrics = Metrics()
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        with pytest.raises(OSError, match="No space left"), writer_to(StdoutSink(full), metrics):
            pass
    finally:
        os.close(full)


def test_line_after_one_that_was_cut_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "out"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        with writer_to(StdoutSink(descriptor)) as writer:
            with files_of_at_most(path.stat().st_size + 50):
                assert not submit(writer)
            assert submit(writer)
    finally:
        os.close(descriptor)
    verification = Verification()
    verification.read("out", path.read_bytes().splitlines(keepends=True))
    verification.finish()
    [replica] = verification.replicas.values()
    assert (verification.problems, verification.other_lines, replica.records, replica.lost) == ([], 1, 4, 1)


class HeldSink(StdoutSink):
    """Holds up the thread until it may go on."""

    def __init__(self) -> None:
        super().__init__()
        self.entered, self.may = threading.Event(), threading.Event()
        self.lines: list[bytes] = []

    def write(self, line: bytes) -> None:
        if self.lines:  # not the first one, which is written before there is a thread
            self.entered.set()
            assert self.may.wait(PATIENCE)
        self.lines.append(line)


@pytest.mark.promise("audit-lost")
@pytest.mark.parametrize(("limit", "value", "program"), [("MAX_WAITING", 3, None), ("MAX_HELD", 30, ("x" * 10, None))])
def test_queue_is_bounded_and_what_does_not_fit_is_counted(
    limit: str, value: int, program: Program | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, limit, value)
    sink, answers = HeldSink(), list[bool]()
    with writer_to(sink) as writer:
        writer.submit({"event": "call"})
        assert sink.entered.wait(PATIENCE)
        for number in range(5):
            writer.submit({"event": "call", "number": number}, program, answers.append)
        assert answers == [False, False], "the last two, at once"
        sink.may.set()
    records = [json.loads(line) for line in sink.lines]
    assert [record.get("number", record["event"]) for record in records] == ["start", "call", "lost", 0, 1, 2, "stop"]
    assert records[2]["count"] == 2


def test_record_that_can_not_be_made_ends_nothing(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    with writer_to(file_sink(path)) as writer:
        assert not submit(writer, number={1})
        assert submit(writer, number=2)
    assert [record["event"] for record in records_of(path)] == ["start", "lost", "call", "stop"]


@pytest.mark.parametrize(("form", "members"), [("hash", {"code_sha256", "code_bytes"}), ("none", set[str]())])
def test_program_is_recorded_as_the_setting_says(form: CodeForm, members: set[str], tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    forms: tuple[CodeForm, ...] = (form, "body")
    for each in forms:
        writer = Writer(file_sink(path), f"host/{each}", Metrics(), code=each, sync=True)
        writer.open({})
        writer.submit({"event": "call"}, ("é" * 40_000 + "\ud800", str))
        writer.close({})
    records = {record["replica"]: record for record in records_of(path) if record["event"] == "call"}
    assert {name for name in records[f"host/{form}"] if name.startswith("code")} == members
    body = records["host/body"]
    assert (body["code_bytes"], body["code"]) == (80_003, "é" * 32_768)


def test_settings_that_do_not_fit_are_refused() -> None:
    for wrong in ({"sink": "file"}, {"path": "a"}, {"sink": "stdout", "path": "a"}, {"required": True}):
        with pytest.raises(ValueError, match=r"audit\."):
            AuditSettings.model_validate(wrong)
    with pytest.raises(StartError, match="the protocol is there"):
        AuditSettings(sink="stdout").check_stdio()
    named = AuditSettings.model_validate({"sink": "file", "path": "/var/audit-{host}.jsonl"})
    named.check_stdio()
    assert named.file == Path(f"/var/audit-{os.uname().nodename}.jsonl")
