"""The runs that are going on, as they are kept: they count though their gateway may not live to see their ends. No I/O.

A background run is in the document from its beginning on. A run that a call waits for gets there when the document is
written while it goes on, so that a short one costs nothing; what it has moved by then counts from then on.
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final, Protocol
from weakref import WeakSet

from sandpod_gateway.usage.amounts import SECOND, Account, Amounts
from sandpod_gateway.usage.document import MAX_ATTENDED, MAX_BACKGROUND, BackgroundRun, Document

LEASE_SECONDS: Final = 30
"""For which a run that a call waited for is charged at most after it was last written down, where nobody can tell its
end any more: that is done every 15 seconds, and the runner ends it 10 seconds after its gateway has gone."""

Moved = tuple[int, int]
"""Bytes in and out."""


class Mover(Protocol):
    """Something that counts what it moves only now and then."""

    def settle(self) -> None:
        """Count what it has moved."""


class Books(Protocol):
    """Where charges go; `run` is one that the document has, or had when it was written last."""

    document: Document
    urgent: asyncio.Event

    def charge(self, account: Account, amounts: Amounts, sandbox: str, run: str | None = None) -> None:
        """Charge amounts."""

    def ended(
        self, account: Account, sandbox: str, *, cpu: float, elapsed: float, moved: Moved, run: str | None = None
    ) -> None:
        """Charge a run's end: seconds of processor time, seconds that it took, and bytes in and out."""

    def count_run(self, account: Account, sandbox: str, step: int) -> None:
        """Count a run more as going on, or less (-1)."""


@dataclass(eq=False, slots=True)
class AttendedRun:
    """A run that a call waits for."""

    of: BackgroundRun
    so_far: Callable[[], tuple[str, Moved] | None]  # its name and bytes; None while there is nothing to charge
    name: str | None = None  # once the document has it, which counts then what it has moved


class OngoingRuns:
    """The runs that are going on here, and those of gateways that have gone."""

    def __init__(self, books: Books, now: Callable[[], int]) -> None:
        self._books, self._now = books, now
        self._attended: dict[AttendedRun, None] = {}  # the oldest comes first
        self._background: dict[str, BackgroundRun] = {}
        self.movers: WeakSet[Mover] = WeakSet()
        self.inherited: set[str] = set()  # sandboxes of killed gateways: there may be runs in them that none wrote down
        self.has_inherited = False  # whether there may be such sandboxes, too

    @property
    def background(self) -> dict[str, BackgroundRun]:
        """Those that no call of this gateway waits for, by their ids."""
        return dict(self._background)

    def attend(
        self, account: Account, sandbox: str, seconds: float, so_far: Callable[[], tuple[str, Moved] | None]
    ) -> AttendedRun:
        """Count with a run for so many seconds at most, until `left`."""
        now = self._now()
        run = AttendedRun(BackgroundRun(account, sandbox, now, now + round(seconds * SECOND)), so_far)
        self._attended[run] = None
        return run

    def left(self, run: AttendedRun, *, cpu: float, elapsed: float, moved: Moved | None) -> None:
        """Charge a run that has ended; None is for one that is another call's, and charged to that."""
        del self._attended[run]
        of = run.of
        if run.name is not None:
            known = self._books.document.background.pop(run.name, None)
            if known is None:
                return  # another gateway has it, which took this one for gone
            moved = None if moved is None else (0, max(0, moved[1] - known.out))
        if moved is not None:
            self._books.ended(of.account, of.sandbox, cpu=cpu, elapsed=elapsed, moved=moved, run=run.name)

    def keep(self) -> None:
        """Let the document, which is written next, have the runs that calls wait for, and what is moved so far."""
        for mover in list(self.movers):
            mover.settle()
        document, lease = self._books.document, self._now() + LEASE_SECONDS * SECOND
        for run in self._attended:
            known = run.so_far()
            if known is None:
                continue
            name, (into, out) = known
            if run.name is None and len(document.background) < MAX_ATTENDED:
                run.name, more = name, Amounts(bytes_in=into, bytes_out=out)
            elif run.name is not None and run.name in document.background:
                more = Amounts(bytes_out=max(0, out - document.background[name].out))
            else:
                continue
            document.background[name] = replace(run.of, ends=min(run.of.ends, lease), out=out)
            if more:
                self._books.charge(run.of.account, more, run.of.sandbox, name)

    def background_began(self, account: Account, sandbox: str, name: str, *, sent: int, seconds: float) -> None:
        """Count a background run from now on until `background_ended`, or for so many seconds at most."""
        now = self._now()
        self._add(name, BackgroundRun(account, sandbox, now, now + round(seconds * SECOND)))
        self._books.charge(account, Amounts(bytes_in=sent), sandbox)

    def found(self, account: Account, sandbox: str, name: str, *, began: float, seconds: float) -> None:
        """Count with a background run that a gateway began (in seconds since 1970) and did not live to write down."""
        start = round(began * SECOND)
        self._add(name, BackgroundRun(account, sandbox, start, start + round(seconds * SECOND)))

    def _add(self, name: str, run: BackgroundRun) -> None:
        background = self._books.document.background
        if name not in background and len(background) < MAX_BACKGROUND:
            background[name] = run
            self.follow()
            self._books.urgent.set()

    def background_ended(self, name: str, cpu: float | None, written: int, at: float | None = None) -> None:
        """Charge a background run of ours that has ended: seconds of processor time, and bytes of output.

        None is for a processor time that nobody can tell any more. Then it is the time that the run had, until `at`
        (seconds since 1970, by default now), on one processor: else closing the sandbox would be a way to use any.
        """
        if name not in self._background:
            return
        known = self._books.document.background.pop(name)
        until = self._now() if at is None else round(at * SECOND)
        elapsed = max(0, min(until, known.ends) - known.began) / SECOND
        used, more = elapsed if cpu is None else cpu, max(0, written - known.out)
        self._books.ended(known.account, known.sandbox, cpu=used, elapsed=elapsed, moved=(0, more), run=name)
        self.follow()

    def lost(self, sandbox: str, at: float) -> None:
        """Charge the background runs of a sandbox that has ended, at a time in seconds since 1970, with its gateway."""
        for name in [name for name, of in self._background.items() if of.sandbox == sandbox]:
            self.background_ended(name, None, 0, at)

    def inherit(self, sandboxes: Iterable[str]) -> None:
        """Take over from a killed gateway, which may not have lived to write down what it began."""
        self.inherited.update(sandboxes)
        self.has_inherited = True

    def follow(self) -> None:
        """Count as going on the background runs that the document has, and no others."""
        attended = {run.name for run in self._attended}
        now = {name: of for name, of in self._books.document.background.items() if name not in attended}
        for name in self._background.keys() - now.keys():
            known = self._background.pop(name)
            self._books.count_run(known.account, known.sandbox, -1)
        for name in now.keys() - self._background.keys():
            self._background[name] = now[name]
            self._books.count_run(now[name].account, now[name].sandbox, 1)
