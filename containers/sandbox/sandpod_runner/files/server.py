"""The file requests of one stream, done one after the other in a thread, so that no disk keeps the runner waiting.

In order, since parts of a file come one by one; bounded, by not reading the stream while too much waits.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from sandpod_runner.files.artifacts import Artifacts
from sandpod_runner.files.disk import DiskWatch
from sandpod_runner.files.operations import Reply, Uploads, operation
from sandpod_runner.files.workspace import Workspace
from sandpod_runner.limits.threads import in_thread
from sandpod_runner.protocol.errors import Refusal, refusal_of
from sandpod_runner.protocol.fields import request_id
from sandpod_runner.protocol.frames import Frame
from sandpod_runner.protocol.paths import unspell

if TYPE_CHECKING:
    from sandpod_runner.files.archives import Archives

logger = logging.getLogger(__name__)

MAX_WAITING: Final = 64
MAX_WAITING_BYTES: Final = 8 * 1024 * 1024

Answer = Callable[[int, Reply | Refusal], None]


@dataclass(frozen=True, slots=True)
class Storage:
    """A sandbox's files: where they are, what watches their size where no file system does, and which are artifacts."""

    workspace: Workspace
    disk: DiskWatch | None
    artifacts: Artifacts


class FileServer:
    """The file requests of one stream.

    `answer` gets a request's number with its reply or refusal, `hold` whether the stream must not be read for now.
    """

    def __init__(self, storage: Storage, answer: Answer, hold: Callable[[bool], None]) -> None:
        self._storage = storage
        self._archives: Archives | None = None
        self._uploads = Uploads(storage.workspace, storage.disk)
        self._answer = answer
        self._hold = hold
        self._waiting: asyncio.Queue[tuple[int, Frame] | None] = asyncio.Queue()  # None after the last one
        self._bytes = 0
        self._room = asyncio.Event()
        self._room.set()
        self._worker: asyncio.Task[None] | None = None

    def submit(self, frame: Frame) -> None:
        """Take a `file` frame. Raises Refusal: invalid_argument: It has no id."""
        self._waiting.put_nowait((request_id(frame.header), frame))
        self._bytes += len(frame.payload)
        if self._full():
            self._hold(True)
        if self._worker is None:
            self._worker = asyncio.get_running_loop().create_task(self._work())

    def sendable(self, can_send: bool) -> None:  # noqa: FBT001 - the one thing it is about
        """Record whether replies can be sent now; the next request waits until they can."""
        if can_send:
            self._room.set()
        else:
            self._room.clear()

    def close(self) -> None:
        """Forget what waits, and remove what is half written, once the request that is being done is done."""
        self._room.set()
        while not self._waiting.empty():
            self._waiting.get_nowait()
        self._waiting.put_nowait(None)

    async def _work(self) -> None:
        while (request := await self._waiting.get()) is not None:
            number, frame = request
            self._bytes -= len(frame.payload)
            answer = await in_thread(partial(self._do, number, frame.header, frame.payload))
            if answer is not None:
                await self._room.wait()
                self._answer(number, answer)
            if not self._full():
                self._hold(False)
        await in_thread(self._uploads.close)

    def _do(self, number: int, fields: dict[str, Any], payload: bytes) -> Reply | Refusal | None:
        for name in ("path", "destination"):
            if isinstance(path := fields.get(name), str):
                fields[name] = unspell(path)
        try:
            return self._carry_out(number, fields, payload)
        except Refusal as refusal:
            return refusal
        except OSError as error:
            return refusal_of(error)
        except Exception:
            logger.exception("a file request failed")
            return Refusal("backend_error", "The request failed inside the runner.")

    def _carry_out(self, number: int, fields: dict[str, Any], payload: bytes) -> Reply | None:
        op, workspace = fields.get("op"), self._storage.workspace
        workspace.restore()
        if op == "archive":
            if self._archives is None:
                from sandpod_runner.files.archives import Archives  # noqa: PLC0415 - hardly any stream needs it

                self._archives = Archives(workspace)
            return self._archives.part(fields)
        reply = self._uploads.part(number, fields, payload) if op == "write" else operation(op)(workspace, fields)
        if op in {"write", "move"} and reply is not None:
            with contextlib.suppress(Refusal):  # a file that a tool has put there is no artifact
                path = fields.get("path" if op == "write" else "destination")
                self._storage.artifacts.uploaded(workspace.relative(path))
        return reply

    def _full(self) -> bool:
        return self._waiting.qsize() >= MAX_WAITING or self._bytes >= MAX_WAITING_BYTES
