"""The judge of the storm of claims finds each thing that could go wrong. It has never found one that did."""

from collections.abc import Iterator
from typing import Any

import pytest

from sandpod_api import names
from support.claims.history import History, judge

Json = dict[str, Any]
ALICE = {"owner": "alice", "time": "2026-03-01T12:00:00Z"}
BOB = {"owner": "bob", "time": "2026-03-01T12:00:01Z"}


def event(kind: str, claim: Json | None = None, **changes: Any) -> Json:
    state = names.STATE_WARM if claim is None else names.STATE_CLAIMED
    meta: Json = {"name": "box", "uid": "uid-box", "labels": {names.LABEL_STATE: changes.pop("state", state)}}
    meta["resourceVersion"] = "20" if kind == "DELETED" else "10"
    meta |= {"ownerReferences": [{"uid": "pool"}]} if claim is None else {}
    spec = {} if claim is None else {"claim": claim}
    return {"type": kind, "object": {"metadata": meta, "spec": spec, "status": changes}}


def pod(uid: str, *owners: str, version: int = 11) -> Json:
    meta = {"uid": uid, "ownerReferences": [{"uid": o} for o in owners], "resourceVersion": str(version)}
    return {"type": "ADDED", "object": {"metadata": meta}}


GOT = {"kind": "got", "name": "box", "owner": "alice", "session": ""}
RELEASES = {"kind": "releases", "name": "box"}
LIFE = [event("ADDED"), event("MODIFIED", ALICE), event("DELETED", ALICE)]


def wrong(events: list[Json], journal: list[Json], *pods: Json, bound: float = 60) -> list[str]:
    history = History()
    for each in events:
        history.take(names.SANDBOXES, each)
    for each in pods:
        history.take("pods", each)
    return judge(history, journal, bound=bound).wrong


def sound() -> Iterator[tuple[list[Json], list[Json]]]:
    yield LIFE, [GOT, RELEASES]
    yield LIFE, []  # cancelled, or its caller was killed
    yield [*LIFE[:2], event("MODIFIED", ALICE, phase="Expired"), LIFE[2]], [GOT]
    yield [event("ADDED"), event("DELETED")], []
    session = {**ALICE, "session": "one"}
    both = [{**GOT, "session": "one"}] * 2
    yield [event("ADDED"), event("MODIFIED", session), event("DELETED", session)], [*both, RELEASES]


@pytest.mark.parametrize(("events", "journal"), list(sound()))
def test_what_is_sound_is_found_so(events: list[Json], journal: list[Json]) -> None:
    assert wrong(events, journal, pod("pod", "uid-box")) == []


@pytest.mark.parametrize(
    ("events", "journal", "what"),
    [
        ([*LIFE[:2], event("MODIFIED", BOB), event("DELETED", BOB)], [], "two owners"),
        (LIFE, [GOT, GOT, RELEASES], "given 2 times"),
        (LIFE, [GOT, {**GOT, "owner": "bob"}, RELEASES], "given 2 times"),
        (LIFE, [{**GOT, "owner": "bob"}, RELEASES], "it is alice's"),
        ([event("ADDED"), event("DELETED")], [GOT], "never written"),
        ([], [GOT], "never written"),
        (LIFE, [GOT], "lost while alice held it"),
        (LIFE[:2], [GOT, RELEASES], "left behind"),
        ([*LIFE[:2], event("MODIFIED"), LIFE[2]], [], "returned after use: no claim"),
        ([*LIFE[:2], event("MODIFIED", ALICE, state="warm"), LIFE[2]], [], "returned after use: in a pool"),
    ],
)
def test_what_is_wrong_is_found(events: list[Json], journal: list[Json], what: str) -> None:
    assert any(what in text for text in wrong(events, journal))


def test_session_with_two_sandboxes_is_found() -> None:
    journal = [{**GOT, "session": "one"}, {**GOT, "name": "other", "session": "one"}]
    assert any("several sandboxes" in text for text in wrong(LIFE, journal))


def test_pod_of_two_sandboxes_and_sandbox_of_two_pods_are_found() -> None:
    assert any("several sandboxes'" in text for text in wrong(LIFE, [], pod("pod", "uid-box", "uid-other")))
    assert any("two pods" in text for text in wrong(LIFE, [], pod("one", "uid-box"), pod("two", "uid-box")))
    assert wrong(LIFE, [], pod("one", "uid-box"), pod("two", "uid-box", version=21)) == []


def test_claim_that_outlives_its_bound_is_found() -> None:
    assert any("longer than" in text for text in wrong(LIFE, [], bound=-1))
