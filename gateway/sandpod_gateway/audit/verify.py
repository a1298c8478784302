"""Verifies records. Pure: lines in, findings out.

What it can show: a record that was changed, removed, moved or added, unless all later ones of its chain were written
anew; whoever can write the file can do that, so note the last hash elsewhere from time to time. That records are
missing at the end can be seen only by such a hash, by the next process's first record, or in another copy.
"""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

from sandpod_gateway.audit.chain import FORMAT, MARK, START, digest

MAX_PROBLEMS: Final = 100  # that are told
_HASH: Final = re.compile(r"[0-9a-f]{64}")
_NAME: Final = re.compile(r"[\w./:-]{1,300}", re.ASCII)  # it is shown on terminals


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong, in a sentence, and at which line."""

    file: str
    line: int
    message: str


@dataclass(slots=True)
class Point:
    """A record's place, and what ties it to its neighbours."""

    file: str
    line: int
    sequence: int
    previous: str
    hash: str
    stops: bool = False  # whether its process ended in order

    def __str__(self) -> str:
        return f"line {self.line} of {self.file}"


@dataclass(slots=True)
class Piece:
    """Records of one chain that stand in one file."""

    first: Point
    last: Point


@dataclass(slots=True)
class Replica:
    """The records of one process in one place."""

    replica: str
    sink: str
    pieces: list[Piece] = field(default_factory=list)
    records: int = 0
    lost: int = 0  # which the process itself says that it could not write
    unfinished: set[int] = field(default_factory=set)  # acts with a beginning and no end
    follows: dict[str, Any] | None = None  # the last record of the process before, as the first record names it


class Verification:
    """Takes files in any order, and lines in theirs; lines that are no records are passed over."""

    def __init__(self) -> None:
        self.replicas: dict[tuple[str, str], Replica] = {}
        self.problems: list[Problem] = []
        self.other_lines = 0
        self._hashes: set[str] = set()
        self._wanted: frozenset[str] = frozenset()

    def expect(self, hashes: Iterable[str]) -> None:
        """Look for records with these hashes, which somebody noted."""
        self._wanted = frozenset(hashes)

    def read(self, name: str, lines: Iterable[bytes]) -> None:
        """Read a file."""
        pieces: dict[tuple[str, str], Piece] = {}
        for number, line in enumerate(lines, start=1):
            record = _record(line)
            if record is None:
                self.other_lines += bool(line.strip())
                continue
            point = _point(name, number, record)
            if point is None:
                self._problem(name, number, "is no whole record: members were changed or removed")
                continue
            if digest(record) != point.hash:
                self._problem(name, number, "was changed: its content does not have its hash")
            self._take(record, point, pieces)

    def _take(self, record: dict[str, Any], point: Point, pieces: dict[tuple[str, str], Piece]) -> None:
        key = (str(record["replica"]), str(record["sink"]))
        replica = self.replicas.setdefault(key, Replica(*key))
        _count(replica, record)
        self._hashes |= self._wanted & {point.hash}
        piece = pieces.get(key)
        if piece is None:
            piece = pieces[key] = Piece(point, point)
            replica.pieces.append(piece)
            return
        self._join(piece.last, point)
        # After a record that is out of its place, the chain goes on where it was.
        if point.sequence > piece.last.sequence:
            piece.last = point

    def _join(self, before: Point, point: Point) -> None:
        """Compare two records of a chain that should follow one another."""
        missing = point.sequence - before.sequence - 1
        if missing > 0:
            what = f"{missing} records are missing" if missing > 1 else "a record is missing"
            self._problem(point.file, point.line, f"does not follow {before}: {what} between them")
        elif missing < 0:
            self._problem(point.file, point.line, f"is out of order or repeated: it stands after {before}")
        elif point.previous != before.hash:
            self._problem(point.file, point.line, f"does not follow {before}: one of them was written anew")

    def finish(self) -> list[str]:
        """Compare what stands in different files; return what is no proof of a change, but worth a look."""
        remarks = []
        for replica in self.replicas.values():
            replica.pieces.sort(key=lambda piece: piece.first.sequence)
            for earlier, later in pairwise(replica.pieces):
                self._join(earlier.last, later.first)
            first, last = replica.pieces[0].first, replica.pieces[-1].last
            name = f"{replica.replica} ({replica.sink})"
            if first.sequence == 0 and first.previous != START:
                self._problem(first.file, first.line, "is no beginning of a chain")
            elif first.sequence:
                remarks.append(f"{name}: what was before {first} is not in these files: {counted(first.sequence)}.")
            if not last.stops:
                remarks.append(
                    f"{name}: the last record is {last}; its process runs, was killed, or later records were removed."
                )
            if replica.lost:
                remarks.append(f"{name}: the process itself says that it could not write {counted(replica.lost)}.")
            if replica.unfinished:
                remarks.append(f"{name}: there is no end of {counted(len(replica.unfinished), 'call')} that began.")
            self._follows(replica, remarks)
        for wanted in sorted(self._wanted - self._hashes):
            self._problem("-", 0, f"No record has the hash {wanted}: it was removed or written anew")
        return remarks

    def _follows(self, replica: Replica, remarks: list[str]) -> None:
        """Compare a chain's beginning with the end of the one before it in the same place."""
        if (follows := replica.follows) is None:
            return
        first = replica.pieces[0].first
        before = self.replicas.get((str(follows.get("replica")), replica.sink))
        if before is None:
            remarks.append(f"{first} follows records of {follows.get('replica')}, which are not in these files.")
        elif (end := before.pieces[-1].last).hash != follows.get("hash"):
            what = f"it names another record of {before.replica} as the last one before it"
            self._problem(first.file, first.line, f"does not follow {end}: {what}")

    def _problem(self, file: str, line: int, message: str) -> None:
        if len(self.problems) < MAX_PROBLEMS:
            text = f"Line {line} of {file} {message}." if line else f"{message}."
            self.problems.append(Problem(file, line, text))


def counted(number: int, what: str = "record") -> str:
    """Return a number of things in words."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _record(line: bytes) -> dict[str, Any] | None:
    """Return the record of a line; None for a line of anything else."""
    try:
        value = json.loads(line, object_pairs_hook=_members)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) and value.get(MARK) == FORMAT else None


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object. One with two members of one name would read differently here and elsewhere."""
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError
    return members


def _point(name: str, number: int, record: dict[str, Any]) -> Point | None:
    sequence = record.get("sequence")
    own, previous = (str(record.get(member)) for member in ("hash", "previous"))
    if type(sequence) is not int or sequence < 0 or not _HASH.fullmatch(own) or not _HASH.fullmatch(previous):
        return None
    if not all(_NAME.fullmatch(str(record.get(member, ""))) for member in ("replica", "sink")):
        return None
    return Point(name, number, sequence, previous, own, record.get("event") == "stop")


def _count(replica: Replica, record: dict[str, Any]) -> None:
    replica.records += 1
    act, phase, event = record.get("id"), record.get("phase"), record.get("event")
    if type(act) is int:
        (replica.unfinished.add if phase == "begin" else replica.unfinished.discard)(act)
    if event == "lost" and type(record.get("count")) is int:
        replica.lost += record["count"]
    follows = record.get("follows") if event == "start" else None
    if isinstance(follows, dict) and _NAME.fullmatch(str(follows.get("replica"))):
        replica.follows = follows
