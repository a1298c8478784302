"""Streams to warm sandboxes, opened before anyone needs them: opening one would delay a fresh sandbox's first output.

Claims prefer the sandboxes that have one. Each stream is handed out once, and never one that has ended.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from cachetools import TTLCache

from sandpod_gateway.backends.kubernetes.cache.sandbox_cache import SandboxStore
from sandpod_gateway.backends.kubernetes.streams.exec_stream import ExecStream
from sandpod_kube.errors import ClusterError

logger = logging.getLogger(__name__)
T = TypeVar("T")

PROMISE: Final = 30.0
"""Seconds that a stream is kept for a claim: the caller opens it right after."""
LOOK_AGAIN: Final = 5.0
"""Seconds between two looks when nothing changes: for streams that ended."""
RETRY_AFTER: Final = 30.0
"""Seconds after which a sandbox that refused a stream is tried again."""
_MOST: Final = 10_000


@dataclass(eq=False)
class WarmStreams:
    """At most `limit` streams to warm sandboxes, in addition to those promised to claims."""

    store: SandboxStore
    connect: Callable[[str], Coroutine[Any, Any, ExecStream]]
    limit: int
    _held: dict[str, ExecStream] = field(default_factory=dict, init=False)
    _promised: TTLCache[str, None] = field(default_factory=lambda: TTLCache(_MOST, PROMISE), init=False)
    _refused: TTLCache[str, None] = field(default_factory=lambda: TTLCache(_MOST, RETRY_AFTER), init=False)
    _task: asyncio.Task[None] | None = field(default=None, init=False)
    _under_way: asyncio.Task[Any] | None = field(default=None, init=False)  # an opening or a closing

    def start(self) -> None:
        """Begin to open streams, in the background."""
        if self.limit:
            self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Close all that were not handed out."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        done = await asyncio.gather(*filter(None, [self._under_way]), return_exceptions=True)
        streams = {*self._held.values(), *(one for one in done if isinstance(one, ExecStream))}
        self._held.clear()
        await asyncio.gather(*(stream.close() for stream in streams))

    def names(self) -> set[str]:
        """Return the sandboxes that have a stream open already."""
        return set(self._held)

    def promise(self, name: str) -> None:
        """Keep the stream although its sandbox is no longer warm: a claim is about to use it."""
        if name in self._held:
            self._promised[name] = None

    def take(self, name: str) -> ExecStream | None:
        """Hand over the sandbox's stream if there is one that lives. It is the caller's from then on."""
        stream = self._held.get(name)
        return None if stream is None or stream.ended else self._held.pop(name)

    async def _run(self) -> None:
        while True:
            try:
                # Looked for anew each time: what is surplus can be claimed while another one is closed.
                while surplus := self._surplus():
                    await self._whole(self._held.pop(surplus[0]).close())
                await self._fill()
            except Exception:
                # The outermost loop: without it every first run would be slow and nobody would know why.
                logger.exception("keeping streams to warm sandboxes failed")
            await self.store.until(lambda: self._surplus() or self._next(), LOOK_AGAIN)

    def _surplus(self) -> list[str]:
        wanted = self._warm().union(self._promised)
        return [name for name, stream in self._held.items() if stream.ended or name not in wanted]

    def _next(self) -> str | None:
        """Return a warm sandbox to open a stream to, if another one is to be kept."""
        warm = self._warm()
        if len(self._held.keys() & warm) >= self.limit:
            return None
        return next((name for name in warm if name not in self._held and name not in self._refused), None)

    def _warm(self) -> set[str]:
        return {s.metadata.name for template in self.store.warm_counts() for s in self.store.warm(template)}

    async def _fill(self) -> None:
        while (name := self._next()) is not None:
            try:
                self._held[name] = await self._whole(self.connect(name))
            except ClusterError as error:
                logger.info("no stream to warm sandbox %s can be opened: %s", name, error)
                self._refused[name] = None

    async def _whole(self, work: Coroutine[Any, Any, T]) -> T:
        """Open or close a stream. Where `close` cancels that, it waits for it: broken off, it leaves a socket."""
        task = asyncio.create_task(work)
        self._under_way = task
        result = await asyncio.shield(task)
        self._under_way = None
        return result
