"""What a row of `sandpod verify` is, and what comes of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Literal

Kind = Literal["kubernetes", "local"]
KINDS: Final[tuple[Kind, ...]] = ("kubernetes", "local")

Facts = Mapping[str, Any]
MAX_SEEN: Final = 600  # characters of what was seen; a sandbox decides about most of them

GONE: Final = "not run:"
"""Begins the outcome of an attack that could not be made: the sandbox was gone already."""


class Status(StrEnum):
    """What came of a row."""

    PASS = "pass"  # noqa: S105 - no password
    FAIL = "fail"
    NOT_APPLICABLE = "not_applicable"
    NOT_TRIED = "not_tried"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of a row, and what was seen."""

    status: Status
    seen: str


@dataclass(frozen=True, slots=True)
class Untried:
    """Why there are no facts."""

    reason: str
    applicable: bool = True  # false where there is nothing to try


Evidence = Mapping[str, Facts | Untried]
"""What was seen, by where it comes from: a program of `inside`, or a part of the cluster."""
Judge = Callable[[Facts], Verdict]


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """A promise, how it is tried, and what that does not show."""

    id: str
    topic: str
    promise: str
    tried: str
    bound: str
    source: str  # of the facts that are judged
    judge: Judge
    kinds: tuple[Kind, ...] = KINDS
    elsewhere: str = ""  # why it does not apply to the other kind of sandboxes


@dataclass(frozen=True, slots=True)
class Finding:
    """A row with what came of it."""

    row: Row
    verdict: Verdict


def passed(seen: str) -> Verdict:
    """Return that the promise held."""
    return Verdict(Status.PASS, seen)


def failed(seen: str) -> Verdict:
    """Return that the promise was broken."""
    return Verdict(Status.FAIL, seen)


def not_applicable(why: str) -> Verdict:
    """Return that there is nothing to try."""
    return Verdict(Status.NOT_APPLICABLE, why)


def verdict(problems: list[str], good: str) -> Verdict:
    """Return failure with what is wrong, or else success."""
    return failed("; ".join(problems)) if problems else passed(good)


def judged(row: Row, kind: Kind, evidence: Evidence) -> Finding:
    """Return what a row says of the evidence. Facts come from sandboxes, which may say anything."""
    if kind not in row.kinds:
        return Finding(row, not_applicable(row.elsewhere))
    facts = evidence.get(row.source, Untried("Nothing was seen of it."))
    if isinstance(facts, Untried):
        status = Status.NOT_TRIED if facts.applicable else Status.NOT_APPLICABLE
        return Finding(row, Verdict(status, facts.reason))
    try:
        found = row.judge(facts)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        found = Verdict(Status.NOT_TRIED, f"What was seen makes no sense ({type(error).__name__}: {error}).")
    return Finding(row, Verdict(found.status, _shown(found.seen)))


def _shown(text: str) -> str:
    """Return text of a sandbox on one line, bounded, that no terminal takes for orders."""
    line = "".join(c if c.isprintable() else " " for c in text)
    return line if len(line) <= MAX_SEEN else f"{line[: MAX_SEEN - 1]}…"


def exit_code(findings: list[Finding]) -> int:
    """Return 0 where all rows pass or don't apply, 1 where one failed, and else 2: one could not be tried."""
    found = {finding.verdict.status for finding in findings}
    return 1 if Status.FAIL in found else 2 if Status.NOT_TRIED in found else 0
