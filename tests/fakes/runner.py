"""A runner in memory: it speaks the frames of a real one and runs the little Python of `fake_python.py`.

Called by `fake.py`. Several streams at once; a run's output goes to the stream that it was started on, and it is
cancelled when that stream closes. Nothing in it depends on time but the injected `sleep` and a run's timeout.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

from fakes.files import FakeFileError, FakeFiles
from fakes.installer import FakeInstaller
from fakes.memory_stream import MemoryStream, stream_pair
from fakes.python import Interpreter, Surroundings
from sandpod_api.names import WORKSPACE
from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.backends.base import ByteStream
from sandpod_runner.protocol import messages as protocol
from sandpod_runner.protocol.frames import Decoder, Frame, FrameError, encode

_SIGNALS: Final = {"cancelled": "SIGTERM", "timeout": "SIGTERM", "output_limit": "SIGKILL"}


class _StoppedError(Exception):
    """A run is to end now, with this outcome."""


class FakeRun:
    """One program, from `run` to `end`, and what is remembered of it."""

    def __init__(self, header: dict[str, Any], send: Callable[[dict[str, Any], bytes], Awaitable[None]]) -> None:
        self._header = header
        self._send = send
        self._written = {"stdout": 0, "stderr": 0}
        self._input: asyncio.Queue[str] = asyncio.Queue()
        self._partial = ""
        self._bytes = asyncio.StreamReader(limit=2**24)
        self._changed = asyncio.Condition()
        self.name = str(header["run"])
        self.log: list[tuple[str, bytes]] = []
        self.end: dict[str, Any] | None = None
        self.cancelled = False
        if not header.get("stdin"):
            self._input.put_nowait("")

    def feed(self, data: bytes, *, eof: bool) -> None:
        """Give it input."""
        self._bytes.feed_data(data)
        if eof:
            self._bytes.feed_eof()
        *lines, self._partial = (self._partial + data.decode("utf-8", "replace")).split("\n")
        for line in lines:
            self._input.put_nowait(line)
        if eof:
            self._input.put_nowait(self._partial)

    async def run(self, code: bytes, sleep: Callable[[float], Awaitable[None]], installer: FakeInstaller) -> None:
        """Interpret the program and tell how it ended."""
        run = self._header["run"]
        await self._send({"t": "started", "run": run}, b"")
        around = Surroundings(write=self._write, readline=self._input.get, sleep=sleep)
        exit_code: int | None = None
        try:
            async with asyncio.timeout(float(self._header.get("timeout", 60))):
                if self._header.get("args") == ["wheels"]:
                    exit_code = await installer.run(self._bytes, partial(self._write, "stdout"))
                else:
                    exit_code = await Interpreter(around).run(code.decode())
            outcome = "error" if exit_code else "ok"
        except TimeoutError:
            outcome = "timeout"
        except _StoppedError:
            outcome = "output_limit"
        except asyncio.CancelledError:
            if not self.cancelled:
                raise
            outcome = "cancelled"
        end = {"t": "end", "run": run, "outcome": outcome, "exit_code": exit_code, "signal": _SIGNALS.get(outcome)}
        end |= {"duration_ms": 0, "cpu_ms": 0, "max_rss_bytes": 0, "detail": None}
        end |= {f"{name}_bytes": count for name, count in self._written.items()}
        self.end = end
        async with self._changed:
            self._changed.notify_all()
        await self._send(end, b"")

    def describe(self) -> dict[str, Any]:
        """Return its row of a `list`."""
        fields = {
            "run": self.name,
            "language": "python",
            "started": 0.0,
            "detached": bool(self._header.get("detached")),
        }
        return {**fields, "state": "ended" if self.end else "live", "outcome": self.end and self.end["outcome"]}

    async def tail(self, header: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        """Return the reply to `tail`, with all that it has written after the cursor."""
        cursor = int(header.get("cursor", 0))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(float(header.get("wait", 0))), self._changed:
                await self._changed.wait_for(lambda: self.end or self.size > cursor)
        pieces, begin, end = [], 0, cursor + int(header.get("limit", protocol.FILE_PART))
        for stream, data in self.log:
            pieces.append((stream, data[max(0, cursor - begin) : max(0, end - begin)]))
            begin += len(data)
        whole = b"".join(data for _, data in pieces)
        fields = {"state": "ended" if self.end else "live", "cursor": cursor + len(whole), "dropped": 0}
        return {**fields, "pieces": [[stream, len(data)] for stream, data in pieces], "end": self.end}, whole

    @property
    def size(self) -> int:
        """Bytes that it has written."""
        return sum(self._written.values())

    async def _write(self, stream: str, data: bytes) -> None:
        for start in range(0, len(data), protocol.OUT_PIECE):
            piece = data[start : start + protocol.OUT_PIECE]
            header = {"t": "out", "run": self._header["run"], "stream": stream, "offset": self._written[stream]}
            self.log.append((stream, piece))
            self._written[stream] += len(piece)
            async with self._changed:
                self._changed.notify_all()
            await self._send(header, piece)
        if sum(self._written.values()) > int(self._header.get("output_limit", 2**31)):
            raise _StoppedError


class _Session:
    """One stream, and the runs that were started on it."""

    def __init__(self, runner: "FakeRunner", stream: ByteStream) -> None:
        self._runner = runner
        self._stream = stream
        self._runs: dict[str, tuple[FakeRun, asyncio.Task[None]]] = {}
        self._parts: dict[int, bytearray] = {}
        self._tails: set[asyncio.Task[None]] = set()

    async def serve(self) -> None:
        decoder = Decoder()
        try:
            while data := await self._stream.read():
                for frame in decoder.feed(data):
                    await self._take(frame)
        except (FrameError, ConnectionError):
            pass
        finally:
            for run, task in self._runs.values():
                run.cancelled = True
                task.cancel()
            for task in self._tails:
                task.cancel()
            await self._stream.close()

    async def _send(self, header: dict[str, Any], payload: bytes = b"") -> None:
        await self._stream.write(encode(header, payload))

    async def _take(self, frame: Frame) -> None:
        header = frame.header
        match frame.kind:
            case "hello":
                hello: dict[str, Any] = {"t": "hello", "version": protocol.VERSION, "languages": {"python": "3.11"}}
                hello |= {"workspace": WORKSPACE, "memory_limit": None}
                await self._send({**hello, "runs": sorted(self._runner.runs)})
            case "ping" | "usage":
                await self._send({"t": "pong", "id": header.get("id"), "runs": sorted(self._runner.runs), "cpu": 0})
            case "run":
                await self._start(header, frame.payload)
            case "stdin" if header.get("run") in self._runs:
                self._runs[header["run"]][0].feed(frame.payload, eof=bool(header.get("eof")))
            case "cancel" if header.get("run") in self._runs:
                run, task = self._runs[header["run"]]
                run.cancelled = True
                task.cancel()
            case "file":
                await self._file(header, frame.payload)
            case "stdin" | "cancel":
                pass
            case "list" | "tail":
                await self._recall(header)
            case "follow" | "restart":
                # No stream takes over another one's run, and there are no contexts.
                await self._refuse(header, ErrorCode.NOT_FOUND, "There is none of that name.")
            case _:
                await self._refuse(header, ErrorCode.INVALID_ARGUMENT, "There is no such kind of frame.")

    async def _recall(self, header: dict[str, Any]) -> None:
        known = self._runner.known
        if header["t"] == "list":
            rows = [run.describe() for run in known.values()]
            await self._send({"t": "reply", "id": header.get("id"), "runs": rows, "contexts": []})
        elif header.get("run") in known:
            task = asyncio.create_task(self._tail(header))
            self._tails.add(task)
            task.add_done_callback(self._tails.discard)
        else:
            await self._refuse(header, ErrorCode.NOT_FOUND, "There is none of that name.")

    async def _tail(self, header: dict[str, Any]) -> None:
        fields, data = await self._runner.known[header["run"]].tail(header)
        with contextlib.suppress(ConnectionError):
            await self._send({"t": "reply", "id": header.get("id"), **fields}, data)

    async def _refuse(self, header: dict[str, Any], code: ErrorCode, message: str) -> None:
        where = {key: value for key, value in header.items() if key in {"id", "run"}}
        await self._send({"t": "error", **where, "code": code.value, "message": message})

    async def _start(self, header: dict[str, Any], code: bytes) -> None:
        name = header.get("run")
        if not isinstance(name, str) or not protocol.RUN_ID.fullmatch(name):
            await self._refuse(header, ErrorCode.INVALID_ARGUMENT, "That is no name of a run.")
        elif name in self._runner.known:
            await self._send({"t": "known", "run": name, "as": name})
        elif header.get("language") != "python":
            await self._refuse(header, ErrorCode.UNSUPPORTED_LANGUAGE, "This sandbox runs Python only.")
        else:
            run = FakeRun(header, self._send)
            self._runner.runs.add(name)
            self._runner.known[name] = run
            self._runs[name] = (run, asyncio.create_task(self._follow(name, run, code)))

    async def _follow(self, name: str, run: FakeRun, code: bytes) -> None:
        try:
            with contextlib.suppress(ConnectionError):
                await run.run(code, self._runner.sleep, self._runner.installer)
        finally:
            self._runner.runs.discard(name)
            self._runs.pop(name, None)

    async def _file(self, header: dict[str, Any], payload: bytes) -> None:
        number = header.get("id", 0)
        if header.get("abort"):
            self._parts.pop(number, None)
            return
        content = self._parts.setdefault(number, bytearray())
        content += payload
        if header.get("op") == "write" and not header.get("last", True):
            return
        del self._parts[number]
        try:
            fields, data = self._runner.files.request(header, bytes(content))
        except FakeFileError as error:
            await self._refuse(header, error.code, str(error))
        else:
            await self._send({"t": "reply", "id": number, **fields}, data)


class FakeRunner:
    """The runner of one fake sandbox."""

    def __init__(self, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        self.files = FakeFiles()
        self.runs: set[str] = set()
        self.known: dict[str, FakeRun] = {}
        self.installer = FakeInstaller()
        self.sleep = sleep
        self._sessions: set[asyncio.Task[None]] = set()
        self._streams: list[MemoryStream] = []

    def connect(self) -> MemoryStream:
        """Return the gateway's end of a new stream."""
        ours, theirs = stream_pair()
        task = asyncio.create_task(_Session(self, ours).serve())
        self._sessions.add(task)
        task.add_done_callback(self._sessions.discard)
        self._streams = [*self._streams, ours]
        return theirs

    async def drop_streams(self) -> None:
        """Close all streams, as when a connection is lost."""
        streams, self._streams = self._streams, []
        for stream in streams:
            await stream.close()
        if self._sessions:
            await asyncio.wait(self._sessions)
