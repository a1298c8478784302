"""Writes records to one place, in order, from a bounded queue and in a thread of its own: no disk holds up the server.

A record that can't be written is counted, and the chain says so as soon as it goes on: nothing is lost silently.
"""

import logging
import threading
from collections.abc import Callable
from typing import Final

from sandpod_gateway.audit.act import CodeForm, Program, Record, bounded, code_facts, now
from sandpod_gateway.audit.chain import Chain
from sandpod_gateway.audit.sinks import Sink
from sandpod_gateway.metrics import Metrics

logger = logging.getLogger(__name__)

MAX_WAITING: Final = 10_000  # records
MAX_HELD: Final = 64 * 2**20  # characters of programs whose hash is not worked out yet
CLOSE_SECONDS: Final = 10.0  # for what waits, when the server ends

Done = Callable[[bool], None]
Waiting = tuple[Record, Program | None, Done | None]


class Writer:
    """One place with its queue, thread and chain; `sync` waits for the disk before a record counts as written."""

    def __init__(self, sink: Sink, replica: str, metrics: Metrics, *, code: CodeForm, sync: bool) -> None:
        self._sink = sink
        self._chain = Chain(replica, sink.name)
        self._code = code
        self._sync = sync
        self._counted = {result: metrics.audit_records.labels(sink.name, result) for result in ("written", "lost")}
        self._ready = threading.Condition()
        self._waiting: list[Waiting] = []
        self._held = 0
        self._lost = 0  # records that the chain does not tell of yet
        self._since: str | None = None  # when the first of them was lost
        self._closing = False
        self._thread = threading.Thread(target=self._run, name=f"audit-{sink.name}", daemon=True)

    def open(self, facts: Record) -> None:
        """Begin, with a record that also names the last one of the process before. Raises OSError."""
        before = self._sink.open()
        names = ("replica", "sequence", "hash")
        follows = {} if before is None else {"follows": {name: bounded(before.get(name)) for name in names}}
        self._append({**facts, **follows, "time": now(), "event": "start"})
        self._thread.start()

    def submit(self, record: Record, program: Program | None = None, done: Done | None = None) -> None:
        """Queue a record, with the program that it is about; `done` is told in another thread whether it is written."""
        size = len(program[0]) if program is not None else 0
        with self._ready:
            full = self._closing or len(self._waiting) >= MAX_WAITING or self._held + size > MAX_HELD
            if not full:
                self._waiting.append((record, program, done))
                self._held += size
                if len(self._waiting) == 1:  # the thread waits for nothing else
                    self._ready.notify()
            else:
                self._lose(1)
        if full and done is not None:
            done(False)

    def close(self, facts: Record) -> None:
        """Write what waits and a last record, and let go of the place."""
        with self._ready:
            self._waiting.append(({**facts, "time": now(), "event": "stop"}, None, None))
            self._closing = True
            self._ready.notify()
        self._thread.join(CLOSE_SECONDS)
        if self._thread.is_alive():
            logger.error("audit records are lost: writing to %s takes too long", self._sink.name)
        else:
            self._sink.close()

    def _run(self) -> None:
        while batch := self._next():
            written = [self._write(record, program) for record, program, _ in batch]
            on_disk = not self._sync or self._synced()
            for (_, _, done), each in zip(batch, written, strict=True):
                if done is not None:
                    done(each and on_disk)

    def _next(self) -> list[Waiting]:
        with self._ready:
            self._ready.wait_for(lambda: self._waiting or self._closing)
            batch, self._waiting, self._held = self._waiting, [], 0
            return batch

    def _write(self, record: Record, program: Program | None) -> bool:
        """Write a record, and before it how many were lost. Return whether it is written."""
        try:
            if program is not None:
                record = {**record, **code_facts(program, self._code)}
            with self._ready:
                lost, since = self._lost, self._since
            if lost:
                self._append({"time": now(), "event": "lost", "count": lost, "since": since})
                logger.warning("audit records are written to %s again; %d were lost", self._sink.name, lost)
                with self._ready:
                    self._lost -= lost
            self._append(record)
        except OSError as error:
            self._failed("audit records can't be written to %s: %s", self._sink.name, error)
            return False
        except Exception:
            logger.exception("an audit record can't be made")
            self._failed("audit records are lost for %s", self._sink.name)
            return False
        return True

    def _failed(self, text: str, *values: object) -> None:
        with self._ready:
            if not self._lost:
                logger.error(text, *values)  # once, for as long as it lasts
            self._lose(1)

    def _append(self, record: Record) -> None:
        line, own = self._chain.link(record)
        self._sink.write(line)
        self._chain.advance(own)
        self._counted["written"].inc()

    def _synced(self) -> bool:
        try:
            self._sink.sync()
        except OSError:
            logger.exception("audit records may not be on disk")
            return False
        return True

    def _lose(self, count: int) -> None:
        if not self._lost:
            self._since = now()
        self._lost += count
        self._counted["lost"].inc(count)
