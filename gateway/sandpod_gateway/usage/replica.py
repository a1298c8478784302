"""Publishes what this gateway has counted, takes in what others have, and folds the documents of those that have gone.

What callers are doing now goes out at once after a quiet time and then once a second; what is kept goes out every
`KEEP_SECONDS`. Each write is a test-and-set, and the order of a fold makes it count once, whoever dies when:

1. The document of a gateway that has gone gets a `folder`: from then on its own gateway, should it be alive, can't
   write it, and no other one folds it.
2. The folder's own document is written with all that was in the other one, and with its name in `folded`.
3. The other one is deleted, by anybody who finds it in a `folded`.

A folder that dies between 1 and 2 is itself folded first, so that it can't do step 2 any more; then the document that
names a folder without a document is free again. A gateway that finds a folder in its own document goes on under another
name, with what it has counted in addition to what is in there.
"""

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from sandpod_gateway.errors import SandpodError
from sandpod_gateway.metrics import Metrics
from sandpod_gateway.usage import live
from sandpod_gateway.usage.document import DAY_SECONDS, Document, decode
from sandpod_gateway.usage.meter import Meter
from sandpod_gateway.usage.shared import Others
from sandpod_gateway.usage.stores import LIVE, USAGE, Documents, DocumentStore, Stored

if TYPE_CHECKING:
    from sandpod_gateway.usage.amounts import Account
    from sandpod_gateway.usage.live import Live

logger = logging.getLogger(__name__)

PUBLISH_SECONDS: Final = 1.0
"""Between two writes of what callers are doing."""
BEAT_SECONDS: Final = 15.0
"""Longest time without such a write."""
KEEP_SECONDS: Final = 15.0
"""Between two writes of what is kept: so much is lost at most when a gateway is killed."""
URGENT_SECONDS: Final = 2.0
"""Between two of these writes where a sandbox was claimed or a background run has begun: both go on without a gateway,
and must be known to the next one."""
GONE_SECONDS: Final = 60.0
"""Without a change of its documents after which a gateway has gone."""
MAX_FOLDED: Final = 200
"""Names of folded documents that are remembered: their gateways might still be alive, and look for them."""


class Replica:
    """One gateway's part of the accounting that all share, over one store."""

    def __init__(
        self,
        store: DocumentStore,
        meter: Meter,
        metrics: Metrics,
        *,
        days: int,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Keep days of use for so long."""
        self._store, self._meter, self._metrics = store, meter, metrics
        self._days = days
        self._monotonic = monotonic
        self._known: Documents = {}
        self._since: dict[str, float] = {}  # when the version that is known was seen first
        self._usage: dict[str, Document] = {}  # of others, by replica
        self._live: dict[str, dict[Account, Live]] = {}
        self._beat = 0
        self._live_version: str | None = None
        self._version: str | None = None
        self._written = b""
        self._sent: dict[int, bytes] = {}  # contents that may be in the store, by seq
        self._uncertain = False  # whether the last write had no answer
        self._folding: Document | None = None  # what is in the document, and not known to be written
        self._folds: set[str] = set()  # what is known to be
        self._rename()

    def _rename(self) -> None:
        self._id = secrets.token_hex(6)
        self._meter.document.replica = self._id
        self._live_version = self._version = None
        self._written, self._sent, self._uncertain, self._folds = b"", {}, False, set()

    async def start(self) -> None:
        """Take in what others have written. Raises SandpodError: the store can't be read."""
        self._take(await self._store.read())

    async def follow(self) -> None:
        """Take in what others write, until cancelled. Raises SandpodError."""
        await self._store.follow(self._take)

    async def publish(self) -> None:
        """Publish what callers are doing, whenever it changes, until cancelled. Raises SandpodError."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(BEAT_SECONDS):
                    await self._meter.changed.wait()
            await self.publish_now()
            await asyncio.sleep(PUBLISH_SECONDS)

    async def publish_now(self) -> None:
        """Publish what callers are doing now. Raises SandpodError."""
        self._meter.changed.clear()
        self._beat += 1
        name = LIVE + self._id
        try:
            version = await self._store.write(name, self._meter.publish(self._beat), self._live_version)
        except SandpodError:
            self._meter.changed.set()
            raise
        if version is None:  # a write before this had no answer, or another gateway took this one for gone
            known = (await self._store.read()).get(name)
            version = known.version if known is not None else None
            self._meter.changed.set()
        self._live_version = version

    async def keep(self) -> None:
        """Write what is to be kept and fold what others have left, until cancelled. Raises SandpodError."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(KEEP_SECONDS - URGENT_SECONDS):
                    await self._meter.urgent.wait()
            await self.keep_now()
            await asyncio.sleep(URGENT_SECONDS)

    async def keep_now(self) -> None:
        """Write what is to be kept, and fold what others have left. Raises SandpodError."""
        self._meter.urgent.clear()
        self._meter.ongoing.keep()
        self._meter.document.drop(self._meter.clock() - self._days * DAY_SECONDS)
        await self._write()
        self._share()
        await self._fold_gone()

    async def close(self) -> None:
        """Write all, so that another gateway can go on at once. Raises SandpodError."""
        self._meter.ongoing.keep()
        for _ in range(2):  # under another name, should this gateway have been taken for gone
            self._meter.document.closed = True
            if await self._write():
                break
        if self._live_version is not None:
            await self._store.delete(LIVE + self._id, self._live_version)

    def _take(self, documents: Documents) -> None:
        for name, stored in documents.items():
            known = self._known.get(name)
            if known is None or known.version != stored.version:
                self._since[name] = self._monotonic()
                self._parse(name, stored)
        for name in self._known.keys() - documents.keys():
            del self._since[name]
            self._usage.pop(name.removeprefix(USAGE), None)
            self._live.pop(name.removeprefix(LIVE), None)
        self._known = dict(documents)
        self._share()

    def _parse(self, name: str, stored: Stored) -> None:
        try:
            if name.startswith(USAGE) and name != USAGE + self._id:
                self._usage[name.removeprefix(USAGE)] = decode(stored.content)
            elif name.startswith(LIVE) and name != LIVE + self._id:
                self._live[name.removeprefix(LIVE)] = live.decode(stored.content)
        except ValueError as error:
            logger.warning("the document %s is left out: %s", name, error)

    def _share(self) -> None:
        """Let the meter count with what others have."""
        folded = {name for each in [*self._usage.values(), self._meter.document] for name in each.folded}
        others = Others([each for name, each in self._usage.items() if name not in folded])
        for name, accounts in self._live.items():
            if name not in folded:
                others.take(accounts, is_alive=self._is_fresh(LIVE + name))
        self._meter.take_others(others)

    def _is_fresh(self, name: str) -> bool:
        return self._monotonic() - self._since.get(name, float("-inf")) < GONE_SECONDS

    def _has_gone(self, replica: str, document: Document) -> bool:
        return document.closed or not (self._is_fresh(LIVE + replica) or self._is_fresh(USAGE + replica))

    async def _write(self) -> bool:
        """Write the document if there is anything new in it. Return whether all of it is in the store."""
        if self._uncertain:
            await self._reconcile()
        document = self._meter.document
        self._trim_folded(document)
        if document.encode() == self._written:
            return True
        document.seq += 1
        content = document.encode()
        self._sent[document.seq] = content
        self._uncertain = True
        version = await self._store.write(USAGE + self._id, content, self._version)
        if version is None:
            await self._reconcile()
            return False
        self._version, self._written, self._uncertain = version, content, False
        self._sent = {document.seq: content}
        document.is_written()
        self._folding, self._folds = None, set(document.folded)
        if document.lost_rows:
            logger.warning("usage has more rows than are kept: %d became part of others", document.lost_rows)
            self._metrics.usage_rows_folded.inc(document.lost_rows)
            document.lost_rows = 0
        return True

    async def _reconcile(self) -> None:
        """Find out what of this gateway's document is in the store, and whose it is now."""
        self._take(await self._store.read())
        stored, base = self._known.get(USAGE + self._id), None
        if stored is not None:
            base = decode(stored.content)
            if base.folder is None:
                self._version, self._uncertain = stored.version, False
                self._sent = {base.seq: stored.content}
                return
        else:
            seqs = [each.folded[self._id] for each in self._usage.values() if self._id in each.folded]
            base = decode(self._sent[seqs[0]]) if seqs and seqs[0] in self._sent else None
        if base is None:  # it was never written, or somebody deleted it
            self._version, self._uncertain = None, False
            return
        logger.warning("another gateway took this one for gone; it goes on under another name")
        rest = self._meter.document.minus(base, "")
        if self._folding is not None and self._folding.replica not in base.folded:
            rest = rest.minus(self._folding, "")
        self._folding = None
        self._meter.reset(rest)
        self._rename()

    async def _fold_gone(self) -> None:
        """Fold the documents of gateways that have gone, and delete those that are folded."""
        if self._version is None:
            return  # a folder without a document counts as gone
        folded = {name for each in self._usage.values() for name in each.folded} | self._folds
        for replica, document in list(self._usage.items()):
            if replica in folded:
                await self._delete(replica)
            elif self._has_gone(replica, document) and await self._claim(replica, document):
                self._folding = document
                self._meter.document.fold(document)
                if not document.closed:
                    self._meter.ongoing.inherit(document.live)
                if not await self._write():
                    return
                logger.info("the usage that gateway %s has counted is folded into this one's", replica)
                self._meter.reset(self._meter.document)
                await self._delete(replica)
        for name in [name for name in self._live if name not in self._usage and not self._is_fresh(LIVE + name)]:
            self._meter.ongoing.inherit(())  # it was killed before it wrote anything else
            await self._store.delete(LIVE + name, self._known[LIVE + name].version)

    async def _claim(self, replica: str, document: Document) -> bool:
        """Return whether this gateway is the one to fold a document, which then nobody else writes."""
        if document.folder == self._id:
            return True
        if document.folder is not None and document.folder in self._usage:
            return False
        content = replace(document, folder=self._id).encode()
        if await self._store.write(USAGE + replica, content, self._known[USAGE + replica].version) is None:
            return False
        document.folder = self._id
        return True

    async def _delete(self, replica: str) -> None:
        for name in (USAGE + replica, LIVE + replica):
            # Its version is asked for: the last change was ours.
            stored = (await self._store.read()).get(name)
            if stored is not None:
                await self._store.delete(name, stored.version)

    def _trim_folded(self, document: Document) -> None:
        gone = [name for name in document.folded if name not in self._usage]
        for name in gone[: max(0, len(document.folded) - MAX_FOLDED)]:
            del document.folded[name]
