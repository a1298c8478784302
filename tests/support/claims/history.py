"""What became of every sandbox, by the API server's own word, and whether claims kept what they promise.

Called by `claim_storm.py`. The history is a watch without a gap, straight from the API server: each version of each
object is in it, whoever wrote it. Callers' own words come from their journals. `judge` compares the two and is pure.
"""

import contextlib
import json
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from sandpod_api import names
from sandpod_gateway.backends.kubernetes import cluster as cluster_module
from sandpod_kube.errors import RefusedError, UnreachableError
from sandpod_kube.resources import PODS, SANDBOXES

Json = dict[str, Any]


RESOURCES: Final = {resource.plural: resource for resource in (SANDBOXES, PODS)}


@dataclass
class Life:
    """One Sandbox, from its first version to its last."""

    name: str
    claims: list[Json] = field(default_factory=list)  # each that it ever had, in order
    returned: list[str] = field(default_factory=list)  # what it said of being free after it had been claimed
    writes: int = 0
    claimed_at: float = 0.0
    expired: bool = False
    failed: bool = False
    deleted_at: float = 0.0
    deleted_version: int = 0  # of the store, as numbers that only grow
    pods: set[str] = field(default_factory=set)  # uids of those that were made for it while it was there


class History:
    """Every version of the Sandboxes and of the pods of one namespace."""

    def __init__(self) -> None:
        self.lives: dict[str, Life] = {}  # by uid
        self.owners: defaultdict[str, set[str]] = defaultdict(set)  # uids of Sandboxes, by the pod's uid
        self.made: dict[str, int] = {}  # the store's version in which a pod was first there

    async def follow(self, api: cluster_module.Cluster, plural: str, version: str) -> None:
        """Take in what happens to Sandboxes or pods, until cancelled. It begins where nothing is there yet.

        Raises:
            RefusedError: There is a gap, so that nothing can be proved.
        """
        while True:
            with contextlib.suppress(UnreachableError):
                async for event in api.client.watch(RESOURCES[plural], api.namespace, {}, version, silence=300):
                    if event["type"] == "ERROR":
                        raise RefusedError(int(event["object"].get("code", 0)), message="the history has a gap")
                    version = event["object"]["metadata"]["resourceVersion"]
                    if event["type"] != "BOOKMARK":
                        self.take(plural, event)

    def take(self, plural: str, event: Json) -> None:
        """Take in one event."""
        body = event["object"]
        if plural != names.SANDBOXES:
            owners = body["metadata"].get("ownerReferences", [])
            self.owners[body["metadata"]["uid"]] |= {owner["uid"] for owner in owners}
            self.made.setdefault(body["metadata"]["uid"], int(body["metadata"]["resourceVersion"]))
            return
        meta, spec, status = body["metadata"], body["spec"], body.get("status", {})
        life = self.lives.setdefault(meta["uid"], Life(meta["name"]))
        life.writes += 1
        claim = spec.get("claim")
        if claim is not None and claim not in life.claims:
            life.claims.append(claim)
            life.claimed_at = life.claimed_at or time.time()
        if life.claims:
            labels = meta.get("labels", {})
            if claim is None:
                life.returned.append("no claim")
            if labels.get(names.LABEL_STATE) != names.STATE_CLAIMED or meta.get("ownerReferences"):
                life.returned.append(f"in a pool: {labels}")
        life.expired |= status.get("phase") == "Expired"
        life.failed |= status.get("phase") == "Failed"
        if event["type"] == "DELETED":
            life.deleted_at, life.deleted_version = time.time(), int(meta["resourceVersion"])

    def left(self) -> list[str]:
        """Return the claimed sandboxes that are still there."""
        return [life.name for life in self.lives.values() if life.claims and not life.deleted_at]


@dataclass
class Verdict:
    """What was counted, and what is wrong: nothing, or claims do not keep what they promise."""

    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    longest: float = 0.0


def judge(history: History, journal: Iterable[Json], *, bound: float) -> Verdict:
    """Compare what callers were told with what happened.

    Args:
        history: By the API server's word.
        journal: Lines of all callers, in any order.
        bound: Seconds from a claim after which no sandbox may be there any more.
    """
    verdict = Verdict()
    lines = list(journal)
    verdict.counts.update(str(line["kind"]) for line in lines)
    tries = [line for line in lines if line["kind"] == "try"]
    verdict.counts.update(f"try {line['status'] or 'lost'}" for line in tries)
    verdict.counts.update(f"fault: {line['fault']}" for line in lines if line.get("fault"))
    by_name: defaultdict[str, list[Life]] = defaultdict(list)
    for life in history.lives.values():
        by_name[life.name].append(life)
    verdict.wrong += [f"{name}: the name was used twice" for name, lives in by_name.items() if len(lives) > 1]
    for pod, owners in history.owners.items():
        if len(owners) > 1:
            verdict.wrong.append(f"pod {pod}: it was several sandboxes': {owners}")
        for life in (history.lives[owner] for owner in owners & history.lives.keys()):
            # An operator whose watch is behind may make one for a Sandbox that has just gone; Kubernetes deletes it.
            late = 0 < life.deleted_version < history.made[pod]
            verdict.counts["pods made for what was gone"] += late
            life.pods |= set() if late else {pod}
    for life in history.lives.values():
        _judge_life(verdict, life, bound)
    _judge_words(verdict, lines, {name: lives[0] for name, lives in by_name.items()})
    return verdict


def _judge_life(verdict: Verdict, life: Life, bound: float) -> None:
    verdict.counts["sandboxes"] += 1
    verdict.counts["sandboxes claimed"] += bool(life.claims)
    if len(life.claims) > 1:
        verdict.wrong.append(f"{life.name}: two owners: {life.claims}")
    if life.returned:
        verdict.wrong.append(f"{life.name}: returned after use: {life.returned[0]}")
    if len(life.pods) > 1:
        verdict.wrong.append(f"{life.name}: two pods: {life.pods}")
    if life.claims and not life.deleted_at:
        verdict.wrong.append(f"{life.name}: left behind")
    elif life.claims:
        lived = life.deleted_at - life.claimed_at
        verdict.longest = max(verdict.longest, lived)
        if lived > bound:
            verdict.wrong.append(f"{life.name}: lived for {lived:.0f} s, longer than {bound:.0f} s")


def _judge_words(verdict: Verdict, lines: list[Json], lives: dict[str, Life]) -> None:
    """Judge what callers were told: each sandbox once, and it is theirs until they release it or it expires."""
    got: defaultdict[str, list[Json]] = defaultdict(list)
    sessions: defaultdict[str, set[str]] = defaultdict(set)
    for line in (line for line in lines if line["kind"] == "got"):
        got[line["name"]].append(line)
        if line["session"]:
            sessions[f"{line['owner']}'s {line['session']}"].add(line["name"])
    released = {line["name"] for line in lines if line["kind"] == "releases"}
    for name, told in got.items():
        verdict.wrong += [f"{name}: {why}" for why in _broken(told, lives.get(name), released=name in released)]
    verdict.wrong += [f"{who}: several sandboxes: {sorted(kept)}" for who, kept in sessions.items() if len(kept) > 1]
    claimed = {name for name, life in lives.items() if life.claims}
    verdict.counts["claims held"] = len(got)
    verdict.counts["claims nobody was told of"] = len(claimed - set(got))


def _broken(told: list[Json], life: Life | None, *, released: bool) -> Iterator[str]:
    """Return what is wrong with a sandbox that callers were told is theirs: several only if it is one session's."""
    holders = {(line["owner"], line["session"]) for line in told}
    owner = told[0]["owner"]
    if len(told) > 1 and (len(holders) > 1 or not told[0]["session"]):
        yield f"given {len(told)} times: {told}"
    if life is None or not life.claims:
        yield f"{owner} was told of a claim that was never written"
    elif (life.claims[0]["owner"], life.claims[0].get("session", "")) not in holders:
        yield f"{owner} was told so, but it is {life.claims[0]['owner']}'s"
    elif life.deleted_at and not released and not (life.expired or life.failed):
        yield f"lost while {owner} held it"


def read_journals(folder: Path) -> list[Json]:
    """Return all whole lines of all journals; a killed process may leave half of one."""
    found = []
    for path in sorted(folder.glob("journal-*")):
        for line in path.read_text(encoding="utf-8").splitlines():
            with contextlib.suppress(ValueError):
                found.append(json.loads(line))
    return found
