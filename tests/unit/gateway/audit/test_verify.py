"""Records that somebody tampered with are found."""

import hashlib
import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sandpod_gateway.audit.chain import Chain, canonical, digest
from sandpod_gateway.audit.verify import Verification
from sandpod_gateway.cli import main


def lines_of(replica: str, count: int, *, sink: str = "file", **facts: Any) -> list[bytes]:
    """Return the records of a process, from its start to its stop."""
    chain, lines = Chain(replica, sink), []
    for number in range(count):
        event = "start" if number == 0 else "stop" if number == count - 1 else "call"
        line, own = chain.link({"event": event, "tool": f"t{number}", **(facts if number == 0 else {})})
        chain.advance(own)
        lines.append(line)
    return lines


def verified(*files: list[bytes]) -> tuple[list[str], list[str]]:
    """Return what is wrong with files, and the remarks."""
    verification = Verification()
    for number, lines in enumerate(files):
        verification.read(f"f{number}", lines)
    remarks = verification.finish()
    return [problem.message for problem in verification.problems], remarks


def changed(line: bytes, **members: Any) -> bytes:
    return canonical({**json.loads(line), **members}).encode() + b"\n"


def sealed(line: bytes, **members: Any) -> bytes:
    """Return a record with other members, and the hash that it then has."""
    record = {**json.loads(line), **members}
    return canonical({**record, "hash": digest(record)}).encode() + b"\n"


def test_hash_is_that_of_the_canonical_form_with_the_hash_before() -> None:
    first, second = lines_of("a/1", 3)[:2]
    record = json.loads(second)
    own = record.pop("hash")
    text = json.dumps(record, sort_keys=True, separators=(",", ":"))
    assert own == hashlib.sha256(text.encode()).hexdigest()
    assert record["previous"] == json.loads(first)["hash"]
    assert first.startswith(b'{"audit":"sandpod.dev/v1",'), "what tells it from a log line"


def test_records_of_several_replicas_among_other_lines_verify() -> None:
    a, b = lines_of("a/1", 5), lines_of("b/2", 5)
    mixed = [line for pair in zip(a, b, strict=True) for line in pair]
    others = [
        b"2026-11-30 INFO a log line\n",
        b'{"level": "info"}\n',
        b"\n",
        b"\xff\n",
        b'{"audit": "other"}\n',
        b"[]\n",
    ]
    assert verified([*others, *mixed]) == ([], [])
    spaced = [json.dumps(dict(reversed(json.loads(line).items())), indent=None).encode() + b"\n" for line in a]
    assert verified(spaced) == ([], []), "whatever wrote the JSON anew"


@pytest.mark.promise("audit-tampering")
def test_each_change_of_a_record_is_found() -> None:
    lines = lines_of("a/1", 6)
    members: dict[str, Any] = {"tool": "x", "event": "call2", "sequence": 9, "previous": "1" * 64, "hash": "2" * 64}
    for place, (name, value) in itertools.product(range(6), {**members, "more": 1, "replica": "c/3"}.items()):
        tampered = [*lines[:place], changed(lines[place], **{name: value}), *lines[place + 1 :]]
        problems, _ = verified(tampered)
        assert any(problem.startswith(f"Line {place + 1} of f0 ") for problem in problems), (place, name)
    twice = lines[2].replace(b'"tool"', b'"tool":"x","tool"')
    assert verified([*lines[:2], twice, *lines[3:]])[0], "two members of one name"


@pytest.mark.promise("audit-tampering")
def test_record_that_was_written_anew_with_its_hash_is_found() -> None:
    lines = lines_of("a/1", 6)
    for place in range(5):
        problems, _ = verified([*lines[:place], sealed(lines[place], tool="x"), *lines[place + 1 :]])
        assert problems == [
            f"Line {place + 2} of f0 does not follow line {place + 1} of f0: one of them was written anew."
        ]


@pytest.mark.promise("audit-tampering")
def test_records_that_are_missing_are_found_and_counted() -> None:
    lines = lines_of("a/1", 8)
    for first, last in itertools.combinations(range(1, 8), 2):
        problems, _ = verified([*lines[:first], *lines[last:]])
        what = "a record is" if last - first == 1 else f"{last - first} records are"
        assert problems == [f"Line {first + 1} of f0 does not follow line {first} of f0: {what} missing between them."]


@pytest.mark.promise("audit-tampering")
def test_records_that_were_moved_repeated_or_added_are_found() -> None:
    lines = lines_of("a/1", 7)
    for one, other in itertools.combinations(range(7), 2):
        swapped = list(lines)
        swapped[one], swapped[other] = swapped[other], swapped[one]
        assert verified(swapped)[0], (one, other)
    repeated = "Line 5 of f0 is out of order or repeated: it stands after line 4 of f0."
    assert verified([*lines[:4], lines[1], *lines[4:]])[0] == [repeated]
    for place, number in itertools.product(range(7), repeat=2):
        assert verified([*lines[: place + 1], lines[number], *lines[place + 1 :]])[0], "repeated"
    for place in range(6):
        previous = json.loads(lines[place])
        added = sealed(lines[place + 1], tool="x", previous=previous["hash"], sequence=previous["sequence"] + 1)
        assert verified([*lines[: place + 1], added, *lines[place + 1 :]])[0], "a record of somebody's own"


def test_beginning_or_end_that_is_not_there_is_remarked_and_an_own_hash_finds_it() -> None:
    lines = lines_of("a/1", 6)
    problems, remarks = verified(lines[2:])
    assert (problems, remarks) == ([], ["a/1 (file): what was before line 1 of f0 is not in these files: 2 records."])
    problems, remarks = verified(lines[:-2])
    assert problems == []
    assert "its process runs, was killed, or later records were removed" in remarks[0]
    noted = json.loads(lines[-1])["hash"]
    for kept, found in ((lines, True), (lines[:-1], False)):
        verification = Verification()
        verification.expect([noted])
        verification.read("f", kept)
        verification.finish()
        assert (verification.problems == []) is found


@pytest.mark.promise("audit-tampering")
def test_files_are_one_chain_in_whatever_order_they_are_named() -> None:
    lines = lines_of("a/1", 9)
    parts = [lines[:3], lines[3:5], lines[5:]]
    for order in itertools.permutations(parts):
        assert verified(*order) == ([], [])
    problems, _ = verified(parts[0], parts[2])
    assert problems == ["Line 1 of f1 does not follow line 3 of f0: 2 records are missing between them."]
    assert verified(parts[0], parts[1], parts[1], parts[2])[0], "a file that is there twice"


@pytest.mark.promise("audit-tampering")
def test_end_of_one_process_is_named_by_the_next_one() -> None:
    before = lines_of("a/1", 5)
    last = json.loads(before[-1])
    follows = {name: last[name] for name in ("replica", "sequence", "hash")}
    later = lines_of("a/2", 4, follows=follows)
    assert verified([*before, *later]) == ([], [])
    problems, _ = verified([*before[:-1], *later])
    assert problems == [
        "Line 5 of f0 does not follow line 4 of f0: it names another record of a/1 as the last one before it."
    ]
    assert verified(later) == ([], ["line 1 of f0 follows records of a/1, which are not in these files."])


def test_what_looks_like_a_record_and_is_none_is_found() -> None:
    lines = lines_of("a/1", 3)
    for members in ({"sequence": "1"}, {"sequence": True}, {"sequence": -1}, {"hash": 1}, {"replica": "\x1b[2J"}):
        problems, _ = verified([lines[0], changed(lines[1], **members), lines[2]])
        assert problems[0] == "Line 2 of f0 is no whole record: members were changed or removed."
    deep = b'{"audit":' + b"[" * 100_000 + b"\n"
    assert verified([*lines, deep, b'{"audit": ' + b"9" * 100_000 + b"}\n"]) == ([], [])


def sandpod(*arguments: str, monkeypatch: pytest.MonkeyPatch) -> int | str | None:
    """Run the command in this process; return its exit code."""
    monkeypatch.setattr(sys, "argv", ["sandpod", *arguments])
    with pytest.raises(SystemExit) as exit_:
        main.main()
    return exit_.value.code


def test_command_says_in_a_sentence_what_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines, file = lines_of("a/1", 4), tmp_path / "audit.jsonl"
    own = json.loads(lines[-1])["hash"]
    file.write_bytes(b"".join(lines) + b"x" * 2_000_000 + b"\n")
    assert sandpod("audit", "verify", str(file), "--contains", own, monkeypatch=monkeypatch) == 0
    assert capsys.readouterr().out == f"a/1 (file): 4 records, the last hash is {own}.\nOK: 4 records verified.\n"
    file.write_bytes(b"".join([lines[0], *lines[2:]]))
    assert sandpod("audit", "verify", str(file), monkeypatch=monkeypatch) == 1
    wrong = f"Line 2 of {file} does not follow line 1 of {file}: a record is missing between them."
    text = capsys.readouterr().out.splitlines()
    assert (text[0], text[-1]) == (wrong, "The audit log does NOT verify.")
    assert sandpod("audit", "verify", str(file), "--output", "json", monkeypatch=monkeypatch) == 1
    report = json.loads(capsys.readouterr().out)
    assert (report["ok"], report["problems"]) == (False, [{"file": str(file), "line": 2, "message": wrong}])
    [replica] = report["replicas"]
    assert (replica["records"], replica["last_hash"], replica["stopped"]) == (3, own, True)


@pytest.mark.parametrize("content", [None, b"", b"no record\n"])
def test_command_refuses_files_without_records(
    content: bytes | None, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "audit.jsonl"
    if content is not None:
        file.write_bytes(content)
    assert sandpod("audit", "verify", str(file), monkeypatch=monkeypatch) == 2
    assert capsys.readouterr().err.startswith("sandpod: ")


def test_command_starts_without_the_server() -> None:
    code = "import sys; from sandpod_gateway.cli import main; print({'fastmcp', 'mcp', 'uvicorn'} & sys.modules.keys())"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "set()\n"
