"""What must be true whatever goes wrong, as checks over a history. Pure.

Records that are looked at, by their kind:

    round     number, faults
    got       worker, owner, sandbox: a claim's answer
    told      worker, sandbox, op (run, background, terminal, file), mark, told: ok, or why not;
              expected and output of an ok one
    doubted   worker, sandbox, status, said: the caller was told that it may have ended, and it has not
    lost      worker, sandbox, code: the caller was told that it has ended
    audit     sandbox, persistent, marks, files: what is in it, by another way than the gateway
    unserved  worker, sandbox, said: no call could be made in it after all faults were undone
    objects   sandboxes, pods, policies, volumes
    sample    programs: memory, descriptors and threads of each; objects by kind
    recovered seconds, or missing: what did not come back
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from chaos.history import Record
from chaos.plan import FAULTS

BOUNDS: Final = {
    "gateway": {"memory": 512 << 20, "descriptors": 400, "threads": 80},
    "operator": {"memory": 384 << 20, "descriptors": 200, "threads": 80},
    "runner": {"memory": 160 << 20, "descriptors": 200, "threads": 40},
}
"""Most of each that a program may have at rest, with the few sandboxes of these callers."""
MOST_OBJECTS: Final = {"sandboxes": 80, "pods": 60, "policies": 60, "volumes": 40}
"""Most objects of the sandboxes' namespace at rest: those of callers and pools, and those that have ended lately."""


def violations(records: Iterable[Record]) -> list[str]:
    """Return what is wrong, one sentence each; nothing where all is as it must be."""
    kept = list(records)
    return [text for check in CHECKS for text in check(kept)]


def _of(records: list[Record], *kinds: str) -> Iterator[Record]:
    return (each for each in records if each["kind"] in kinds)


def success_is_true(records: list[Record]) -> Iterator[str]:
    """What was told as a success is in the sandbox that it was told of, and its answer is its own."""
    promised: defaultdict[str, set[int]] = defaultdict(set)
    for each in _of(records, "told", "audit"):
        if each["kind"] == "audit":
            missing = sorted(promised[each["sandbox"]] - set(each["marks"]))
            if missing:
                yield f"{each['sandbox']}: told as success, and not there: {missing[:10]}"
            promised[each["sandbox"]].clear()  # each is told once
        elif each["told"] == "ok":
            if each.get("output") != each.get("expected"):
                output = str(each.get("output"))[:300]
                yield f"{each['sandbox']}: {each['op']} {each['mark']} was answered with {output!r}"
            if each["op"] != "file":
                promised[each["sandbox"]].add(each["mark"])


def done_once(records: list[Record]) -> Iterator[str]:
    """Nothing that was asked for once was done twice."""
    told: set[tuple[str, int]] = set()
    for each in _of(records, "audit"):
        counted: Counter[int] = Counter(each["marks"])
        told |= {(each["sandbox"], mark) for mark, count in counted.items() if count > 1}
    yield from (f"{sandbox}: {mark} was done twice" for sandbox, mark in sorted(told))


def kept_files(records: list[Record]) -> Iterator[str]:
    """A file that was told as written is there as it was written, and no persistent workspace is lost."""
    written: defaultdict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    unsure: defaultdict[tuple[str, str], set[str]] = defaultdict(set)  # texts that nobody was told of
    for each in _of(records, "told", "audit", "lost"):
        sandbox = each["sandbox"]
        if each["kind"] == "told" and each["op"] == "file":
            path = each["path"]
            if each["told"] == "ok":
                written[sandbox][path] = {each["text"]} | unsure[sandbox, path]
            else:
                unsure[sandbox, path].add(each["text"])
                if path in written[sandbox]:
                    written[sandbox][path].add(each["text"])
        elif each["kind"] == "lost":
            if each["persistent"]:
                yield f"{sandbox}: a sandbox with a persistent workspace was lost: {each['code']}"
            written.pop(sandbox, None)
        elif each["kind"] == "audit":
            wrong = sorted(path for path, texts in written[sandbox].items() if each["files"].get(path) not in texts)
            if wrong:
                yield f"{sandbox}: files that were written are not there as they were: {wrong[:10]}"
            for path in wrong:
                del written[sandbox][path]  # told once


def one_owner(records: list[Record]) -> Iterator[str]:
    """No sandbox is told to two, none changes its owner, and each is whose the caller is."""
    told: dict[str, tuple[str, str]] = {}
    owners: defaultdict[str, set[str]] = defaultdict(set)
    for each in _of(records, "got"):
        who = (each["worker"], each["owner"])
        if told.setdefault(each["sandbox"], who) != who:
            yield f"{each['sandbox']}: told to {told[each['sandbox']]} and to {who}"
    for each in _of(records, "objects"):
        for sandbox in each["sandboxes"]:
            if sandbox["owner"]:
                owners[sandbox["name"]].add(sandbox["owner"])
    for name, found in sorted(owners.items()):
        if len(found) > 1:
            yield f"{name}: has had the owners {sorted(found)}"
        if name in told and found != {told[name][1]}:
            yield f"{name}: told to {told[name][1]}, and it is {sorted(found)}'s"


def no_orphans(records: list[Record]) -> Iterator[str]:
    """At rest everything belongs to a sandbox that is there, and no sandbox has two pods."""
    for each in _of(records, "objects"):
        yield from orphans(each)


def orphans(objects: Record) -> Iterator[str]:
    """Yield what belongs to nothing in one look at the objects."""
    there = {sandbox["uid"] for sandbox in objects["sandboxes"]}
    pods = Counter(pod["of"] for pod in objects["pods"])
    for kind in ("pods", "policies", "volumes"):
        for child in objects[kind]:
            if child["of"] not in there:
                yield f"{child['name']}: one of the {kind}, of no sandbox"
    for sandbox in objects["sandboxes"]:
        if pods[sandbox["uid"]] > 1:
            yield f"{sandbox['name']}: has {pods[sandbox['uid']]} pods"


def lost_for_a_reason(records: list[Record]) -> Iterator[str]:
    """A sandbox is lost only in a round with a fault that may end one, or in the one after it."""
    earlier, now = False, False
    for each in _of(records, "round", "lost"):
        if each["kind"] == "round":
            earlier, now = now, any(FAULTS[fault["name"]].ends for fault in each["faults"])
        elif not (earlier or now):
            yield f"{each['sandbox']}: lost ({each['code']}), and nothing was done that ends one"


def told_in_doubt(records: list[Record]) -> Iterator[str]:
    """Who is told that a sandbox is gone which is there is told as well that this is not sure, and where to look."""
    for each in _of(records, "doubted"):
        if "get_sandbox" not in each["said"]:
            yield f"{each['sandbox']}: told as lost, and it is {each['status']}: {each['said']}"


def recovers(records: list[Record]) -> Iterator[str]:
    """When all is undone, all works again by itself."""
    for each in _of(records, "recovered", "unserved"):
        if each["kind"] == "unserved":
            yield f"{each['sandbox']}: {each['worker']} can't use it any more: {each['said']}"
        elif each["missing"]:
            yield f"not back after {each['seconds']:.0f} s: {each['missing']}"


def bounded(records: list[Record]) -> Iterator[str]:
    """No program has more of anything than a few sandboxes take, and neither has the API server."""
    for each in _of(records, "sample"):
        for program in each["programs"]:
            for what, most in BOUNDS.get(program["name"], {}).items():
                if program[what] > most:
                    yield f"{program['name']} of {program['where']}: {what} {program[what]}, over {most}"
    for each in _of(records, "objects"):
        for kind, most in MOST_OBJECTS.items():
            if len(each[kind]) > most:
                yield f"{len(each[kind])} {kind}, over {most}"


CHECKS: Final[tuple[Callable[[list[Record]], Iterator[str]], ...]] = (
    success_is_true,
    done_once,
    kept_files,
    one_owner,
    no_orphans,
    lost_for_a_reason,
    told_in_doubt,
    recovers,
    bounded,
)


def counts(records: Iterable[Record]) -> dict[str, int]:
    """Return how often what was done and told."""
    found: Counter[str] = Counter()
    for each in records:
        if each["kind"] == "told":
            found[f"{each['op']}: {each['told']}"] += 1
        elif each["kind"] == "round":
            found.update(f"fault: {fault['name']}" for fault in each["faults"])
        elif each["kind"] in {"got", "lost"}:
            found[f"sandboxes {each['kind']}"] += 1
    return dict(sorted(found.items()))


def sentence(record: Record) -> str:
    """Return a record as a line for people."""
    rest: dict[str, Any] = {key: value for key, value in record.items() if key not in {"kind", "at"}}
    return f"{record['at']:>8.1f}  {record['kind']:<10} {rest}"[:400]
