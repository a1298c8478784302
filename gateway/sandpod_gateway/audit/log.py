"""The audit log of a server: what its ways in call, in front of the places that records are written to."""

import asyncio
import itertools
import secrets
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import anyio

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.audit.act import Act, Program, Record, current, now
from sandpod_gateway.audit.counts import WINDOW, Counts
from sandpod_gateway.audit.reading import Place, read_back
from sandpod_gateway.audit.settings import AuditSettings
from sandpod_gateway.audit.sinks import FileSink, Sink, StdoutSink
from sandpod_gateway.audit.writer import Writer
from sandpod_gateway.errors import SandpodError, StartError
from sandpod_gateway.metrics import Metrics
from sandpod_telemetry import log_context

WAIT_SECONDS: Final = 10.0  # that a call waits for its first record
_STEP: Final = "Set audit.path to a file in a folder that this server may write to, and that no other server uses."


class AuditLog:
    """Records acts. Where the settings have no sink, nothing of it does anything."""

    def __init__(self, settings: AuditSettings, metrics: Metrics, version: str) -> None:
        self.on = settings.sink is not None
        self._settings = settings
        self._facts = {"version": version}
        self._numbers = itertools.count(1)
        self._counts = Counts(self._write)
        sinks: list[Sink] = [StdoutSink()] if settings.sink in {"stdout", "both"} else []
        if settings.file is not None:
            sinks.append(FileSink(settings.file, max_bytes=settings.max_bytes, max_files=settings.max_files))
        self.replica = replica = f"{socket.gethostname()}/{secrets.token_hex(8)}"
        self._writers = [Writer(sink, replica, metrics, code=settings.code, sync=settings.required) for sink in sinks]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Write until the block is left. Raises StartError: the file can't be used."""
        opened: list[Writer] = []
        flushing = asyncio.create_task(self._flush()) if self.on else None
        try:
            for writer in self._writers:
                await asyncio.to_thread(self._open, writer)
                opened.append(writer)
            yield
        finally:
            if flushing is not None:
                flushing.cancel()
            self._counts.flush()
            with anyio.CancelScope(shield=True):
                await asyncio.gather(*(asyncio.to_thread(writer.close, self._facts) for writer in opened))

    def _open(self, writer: Writer) -> None:
        try:
            writer.open({**self._facts, "code": self._settings.code, "required": self._settings.required})
        except OSError as error:
            message = f"Audit records can't be written to {self._settings.file or 'standard output'}."
            raise StartError(
                ErrorCode.BACKEND_UNAVAILABLE, message, cause=error.strerror or str(error), next_step=_STEP
            ) from error

    async def _flush(self) -> None:
        while True:
            await asyncio.sleep(WINDOW)
            self._counts.flush()

    def _write(self, record: Record, program: Program | None = None) -> None:
        for writer in self._writers:
            writer.submit({"time": now(), **record}, program)

    def event(self, event: str, **facts: Any) -> None:
        """Record what is no act of a caller."""
        self._write({**facts, "event": event})

    async def read(
        self, cursor: str | None, wanted: Callable[[Record], bool], limit: int
    ) -> tuple[list[Record], str | None]:
        """Return records of this gateway's file, newest first, and the cursor to read on with.

        One look reads a bounded part, so that there may be few or none though others follow. Raises SandpodError:
        not_found, where there is no file; invalid_argument, for a cursor that is none; backend_unavailable.
        """
        try:
            before = None if cursor is None else Place.parse(cursor)
        except ValueError as error:
            message, step = "The cursor is none of this list.", "Leave it out."
            raise SandpodError(ErrorCode.INVALID_ARGUMENT, message, next_step=step) from error
        if (path := self._settings.file) is None:
            message = "This server keeps no file of audit records."
            step = "Look where its standard output is kept, or ask the administrator to set audit.sink=file."
            raise SandpodError(ErrorCode.NOT_FOUND, message, next_step=step)
        try:
            found, place = await asyncio.to_thread(read_back, path, before, wanted, limit)
        except OSError as error:
            message, step = "The audit records can't be read.", "Tell the administrator."
            raise SandpodError(ErrorCode.BACKEND_UNAVAILABLE, message, next_step=step) from error
        return found, None if place is None else str(place)

    def counted(self, event: str, **facts: str | int | None) -> None:
        """Record what anybody can cause without number, such as a request that was refused before it became an act."""
        self._counts.add(event, **{name: value for name, value in facts.items() if value is not None})

    @asynccontextmanager
    async def recording(self, act: Act) -> AsyncIterator[Act]:
        """Record an act that ends with the block, whose outcome is in the act or follows from how it ends."""
        token = current.set(act)
        act.number, act.tell = next(self._numbers), self.event
        try:
            with log_context.bound(owner=act.facts.get("user"), sandbox=act.facts.get("sandbox")):
                yield act
        except asyncio.CancelledError:
            act.facts["outcome"] = "cancelled"
            raise
        except BaseException:
            if "error" not in act.facts:
                act.facts["outcome"] = "failed"
            raise
        finally:
            current.reset(token)
            if act.known:
                self._write(act.record("end"), act.program("end"))

    async def begin(self, **facts: Any) -> None:
        """Note facts of the current act. Where records are required, write it; do nothing more until it is written.

        Raises SandpodError (backend_unavailable): it can't be written.
        """
        act = current.get()
        if act is None:
            return
        act.note(**facts)
        log_context.note(owner=act.facts.get("user"), sandbox=act.facts.get("sandbox"))
        act.known = True
        if not self._settings.required:
            return
        loop, record = asyncio.get_running_loop(), act.record("begin")
        waiting = [loop.create_future() for _ in self._writers]
        for writer, future in zip(self._writers, waiting, strict=True):
            writer.submit(record, act.program("begin"), _told(loop, future))
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                written = all(await asyncio.gather(*waiting))
        except TimeoutError:
            written = False
        if not written:
            act.note(error=ErrorCode.BACKEND_UNAVAILABLE)
            message = "Nothing was done: this server must record each call, and can't write its audit log now."
            step = "Tell the administrator: the server's log says why. Try again later."
            raise SandpodError(ErrorCode.BACKEND_UNAVAILABLE, message, next_step=step)


def _told(loop: asyncio.AbstractEventLoop, future: asyncio.Future[bool]) -> Any:
    """Return what tells a future of the loop from another thread."""

    def tell(written: bool) -> None:  # noqa: FBT001 - the one thing that it tells
        if not future.done():
            future.set_result(written)

    def done(written: bool) -> None:  # noqa: FBT001 - as above
        with suppress(RuntimeError):  # the loop has ended, and whoever waited with it
            loop.call_soon_threadsafe(tell, written)

    return done
