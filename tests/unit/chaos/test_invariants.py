"""Each check passes a good history, and finds what is wrong in a bad one."""

from pathlib import Path
from typing import Any

import pytest

from chaos import invariants
from chaos.history import History, Record

SANDBOX = {"name": "s", "uid": "1", "owner": "user:alice", "phase": "Ready"}
PROGRAM = {"name": "operator", "where": "node/1", "memory": 1 << 20, "descriptors": 20, "threads": 5}


def told(mark: int, told: str = "ok", **more: Any) -> Record:
    ok = {"expected": f"{mark}\n", "output": f"{mark}\n"} if told == "ok" else {}
    return {"kind": "told", "worker": "w", "sandbox": "s", "op": "run", "mark": mark, "told": told, **ok, **more}


def wrote(mark: int, text: str, told: str = "ok") -> Record:
    return {
        "kind": "told",
        "worker": "w",
        "sandbox": "s",
        "op": "file",
        "mark": mark,
        "told": told,
        "path": "kept/1",
        "text": text,
    }


def audit(*marks: int, text: str | None = None) -> Record:
    found = {} if text is None else {"kept/1": text}
    return {"kind": "audit", "sandbox": "s", "persistent": False, "marks": list(marks), "files": found}


def objects(**more: Any) -> Record:
    there = {"sandboxes": [SANDBOX], "pods": [{"name": "s", "of": "1"}], "policies": [], "volumes": []}
    return {"kind": "objects", **there, **more}


def got(worker: str = "w", owner: str = "user:alice") -> Record:
    return {"kind": "got", "worker": worker, "owner": owner, "sandbox": "s"}


def lost(*, persistent: bool = False) -> Record:
    return {"kind": "lost", "worker": "w", "sandbox": "s", "code": "sandbox_lost", "persistent": persistent}


def chaos(*faults: str) -> Record:
    return {"kind": "round", "number": 1, "faults": [{"name": name} for name in faults]}


def sample(**more: Any) -> Record:
    return {"kind": "sample", "programs": [{**PROGRAM, **more}], "stored": {}}


GOOD: list[Record] = [
    chaos("operator killed"),
    got(),
    told(1),
    told(2, "no answer"),
    told(3, "backend_unavailable"),
    wrote(1, "old"),
    wrote(2, "new", "no answer"),
    {"kind": "doubted", "worker": "w", "sandbox": "s", "status": "Ready", "said": "Call get_sandbox."},
    {"kind": "recovered", "seconds": 3.0, "missing": ""},
    audit(1, 3, text="new"),
    objects(),
    sample(),
    chaos("node drained"),
    lost(),
    chaos(),
    {**got(), "sandbox": "t"},
]

BAD: dict[str, tuple[list[Record], str]] = {
    "told as success, and not done": ([told(1), audit()], "not there: [1]"),
    "told as success with another's answer": ([told(1, output="2\n")], "was answered with"),
    "told as success with its answer twice": ([told(1, output="1\n1\n")], "was answered with"),
    "done twice": ([told(1), audit(1, 1)], "1 was done twice"),
    "a file is gone": ([wrote(1, "old"), audit()], "not there as they were: ['kept/1']"),
    "a file has an older text": ([wrote(1, "old"), wrote(2, "new"), audit(text="old")], "['kept/1']"),
    "a persistent workspace is gone": ([chaos("node drained"), lost(persistent=True)], "persistent workspace was lost"),
    "told to two": ([got(), got("v")], "told to"),
    "another's": (
        [got(), objects(sandboxes=[{**SANDBOX, "owner": "user:bob"}])],
        "told to user:alice, and it is ['user:bob']'s",
    ),
    "two owners": ([objects(), objects(sandboxes=[{**SANDBOX, "owner": "user:bob"}])], "has had the owners"),
    "a pod of nothing": ([objects(sandboxes=[])], "one of the pods, of no sandbox"),
    "a policy of nothing": ([objects(policies=[{"name": "p", "of": "2"}])], "one of the policies"),
    "a volume of nothing": ([objects(volumes=[{"name": "v", "of": ""}])], "one of the volumes"),
    "two pods": ([objects(pods=[{"name": "s", "of": "1"}, {"name": "t", "of": "1"}])], "has 2 pods"),
    "lost for no reason": ([chaos("operator killed"), lost()], "nothing was done that ends one"),
    "lost long after the reason": ([chaos("node drained"), chaos(), chaos(), lost()], "nothing was done"),
    "told as lost, and there": (
        [{"kind": "doubted", "worker": "w", "sandbox": "s", "status": "Ready", "said": "Its files are gone."}],
        "told as lost, and it is Ready",
    ),
    "does not come back": ([{"kind": "recovered", "seconds": 300.0, "missing": "a node"}], "not back after 300 s"),
    "can't be used": (
        [{"kind": "unserved", "worker": "w", "sandbox": "s", "said": "no"}],
        "w can't use it any more: no",
    ),
    "memory": ([sample(memory=1 << 30)], "memory 1073741824, over"),
    "descriptors": ([sample(descriptors=5000)], "descriptors 5000, over"),
    "threads": ([sample(threads=500)], "threads 500, over"),
    "objects": ([objects(volumes=[{"name": f"v{n}", "of": "1"} for n in range(100)])], "100 volumes, over"),
}


def test_a_good_history_has_nothing_wrong_in_it() -> None:
    assert invariants.violations(GOOD) == []
    assert invariants.counts(GOOD)["run: ok"] == 1


@pytest.mark.parametrize("name", BAD)
def test_a_bad_history_is_found_out(name: str) -> None:
    records, text = BAD[name]
    [wrong] = invariants.violations(records)
    assert text in wrong


def test_each_check_fails_on_a_bad_history() -> None:
    for check in invariants.CHECKS:
        assert any(list(check(records)) for records, _ in BAD.values()), check.__name__


def test_a_history_is_kept_as_it_comes(tmp_path: Path) -> None:
    history = History(tmp_path / "kept" / "history.jsonl")
    history.add("round", number=1, faults=[])
    history.add("told", what=object())
    assert len(history.path.read_text(encoding="utf-8").splitlines()) == 2
    history.add("round", number=2, faults=[])
    assert [each["number"] for each in history.since("round")] == [2]
    assert "number" in invariants.sentence(history.records[0])
    history.close()
