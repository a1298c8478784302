"""Callers who work all the time: runs, files, background runs, terminals and claims, each with numbered marks.

A mark is written by the program into the file `marks` of its sandbox, and printed. What a caller is told of it goes
into the history. It is asked again with the same idempotency key where nothing was told.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, Final

from chaos.history import LONGEST, History
from sandpod.api import Api
from sandpod.endpoint import Endpoint
from sandpod.errors import SandpodError
from sandpod.terminal import Terminal
from sandpod.transport import AsyncTransport
from support.cluster.callers import Caller, Reply, Session

PATIENCE: Final = 45.0  # seconds for one call
TRIES: Final = 3
LOST: Final = frozenset({"sandbox_lost", "session_not_found"})
LIFETIME: Final = {"ttl": 86400, "idle_timeout": 3600}
MARKS: Final = "marks"


class Connection:
    """The connection of one caller, opened anew whenever it broke."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._stack = AsyncExitStack()
        self._session: Session | None = None

    async def call(self, tool: str, **arguments: Any) -> Reply | str:
        """Return a tool's answer, or what went wrong where none came."""
        try:
            async with asyncio.timeout(PATIENCE):
                if self._session is None:
                    self._session = await self._stack.enter_async_context(self._caller.connect())
                return await self._session.call(tool, **arguments)
        except Exception as error:  # noqa: BLE001 - whatever a caller would see
            await self.close()
            return repr(error)[:LONGEST]

    async def close(self) -> None:
        """Close it; the next call opens another."""
        stack, self._stack, self._session = self._stack, AsyncExitStack(), None
        with contextlib.suppress(Exception):
            async with asyncio.timeout(10):
                await stack.aclose()


def outcome(reply: Reply | str) -> str:
    """Return in one word what a caller was told: ok, a code, an outcome, or that no answer came."""
    if isinstance(reply, str):
        return "no answer"
    if reply.error is not None:
        return reply.error
    found = reply.data.get("outcome", "ok")
    return str(found)


@dataclass(kw_only=True)
class Worker:
    """One who works in a sandbox of their own, and takes another when it is lost.

    Args:
        work: What is done at each step; gets the mark's number.
        wanted: What the sandbox is created with.
        pause: Seconds between two steps.
    """

    name: str
    owner: str
    url: str
    key: str
    history: History
    work: "Callable[[Worker, int], Awaitable[None]]"
    wanted: dict[str, Any]
    pause: float = 0.3

    def __post_init__(self) -> None:
        self.connection = Connection(Caller(f"{self.url}/mcp", self.key))
        self.sandbox: str | None = None
        self.going = asyncio.Event()
        self.rests = asyncio.Event()
        self._mark = 0
        self._generation = 0
        self._terminal: OpenTerminal | None = None

    @property
    def persistent(self) -> bool:
        """Whether its sandbox has a persistent workspace."""
        return "workspace" in self.wanted

    async def loop(self) -> None:
        """Work until cancelled, with a rest whenever `going` is not set."""
        while True:
            if not self.going.is_set():
                self.rests.set()
                await self.going.wait()
            self.rests.clear()
            if await self.have():
                self._mark += 1
                await self.work(self, self._mark)
            await asyncio.sleep(self.pause)

    async def have(self) -> bool:
        """Have a sandbox; return whether there is one."""
        if self.sandbox is None:
            name = f"{self.name}-{self._generation}"
            reply = await self.connection.call("create_sandbox", name=name, lifetime=LIFETIME, **self.wanted)
            if isinstance(reply, str) or reply.error is not None:
                self.history.add("refused", worker=self.name, op="create", told=outcome(reply), said=said(reply))
                self._generation += outcome(reply) in LOST
                return False
            self.sandbox = str(reply["sandbox"])
            self.history.add("got", worker=self.name, owner=self.owner, sandbox=self.sandbox)
        return True

    async def check_loss(self, code: str, words: str) -> None:
        """Take in that the sandbox may have ended: look whether it has, and record what was told of it."""
        reply = await self.connection.call("get_sandbox", sandbox=self.sandbox)
        status = reply.data.get("status") if isinstance(reply, Reply) else None
        if outcome(reply) in LOST or status in {"Failed", "Expired"}:
            self.history.add("lost", worker=self.name, sandbox=self.sandbox, code=code, persistent=self.persistent)
            self.sandbox, self._generation = None, self._generation + 1
        else:
            self.history.add(
                "doubted", worker=self.name, sandbox=self.sandbox, status=status or said(reply), said=words
            )

    async def tell(self, op: str, mark: int, told: str, **more: Any) -> None:
        """Record what the caller was told of a mark, and take in what it means."""
        self.history.add("told", worker=self.name, sandbox=self.sandbox, op=op, mark=mark, told=told, **more)
        if told in LOST:
            await self.check_loss(told, str(more.get("said", "")))

    async def serves(self) -> str:
        """Return why a call can't be made in the sandbox, or nothing."""
        if self.sandbox is None:
            return ""
        reply = await self.connection.call("run_shell_command", command="echo served", sandbox=self.sandbox)
        if outcome(reply) in LOST:
            await self.check_loss(outcome(reply), said(reply))
            if self.sandbox is None:
                return ""
        if isinstance(reply, Reply) and outcome(reply) == "ok" and reply["stdout"] == "served\n":
            return ""
        return said(reply)

    async def terminal(self) -> "OpenTerminal":
        """Return its terminal, a new one where there is none any more."""
        if self._terminal is None or self._terminal.over or self._terminal.sandbox != self.sandbox:
            if self._terminal is not None:
                await self._terminal.close()
            assert self.sandbox is not None
            self._terminal = OpenTerminal(self.url, self.key, self.sandbox)
        return self._terminal

    async def end(self) -> None:
        """Close what is open, and the sandbox."""
        if self._terminal is not None:
            await self._terminal.close()
        if self.sandbox is not None:
            await self.connection.call("close_sandbox", sandbox=self.sandbox, force=True)
        await self.connection.close()


def said(reply: Reply | str) -> str:
    """Return an answer as text."""
    return (reply if isinstance(reply, str) else repr(reply.data))[:LONGEST]


async def asked(worker: Worker, tool: str, mark: int, **arguments: Any) -> Reply | str:
    """Call a tool with an idempotency key, again where no answer came."""
    for attempt in range(1, TRIES + 1):
        reply = await worker.connection.call(
            tool, sandbox=worker.sandbox, idempotency_key=f"{worker.name}-{mark}", timeout=60, **arguments
        )
        if attempt == TRIES or not (isinstance(reply, str) or reply.error == "backend_unavailable"):
            break
        await asyncio.sleep(attempt)
    return reply


async def run(worker: Worker, mark: int) -> None:
    """Let a program write a mark; every third is a shell's, and some take seconds."""
    rest = (0, 0, 2, 0, 4)[mark % 5]
    if mark % 3:
        code = f"import os, time\nprint('begin', {mark}, flush=True)\ntime.sleep({rest})\n{_mark_in_python(mark)}"
        reply = await asked(worker, "run_python_code", mark, code=code)
    else:
        command = f"echo begin {mark}; sleep {rest}; echo {mark} >>{MARKS}; echo mark {mark}"
        reply = await asked(worker, "start_run", mark, code=command, language="shell")
        if isinstance(reply, Reply) and reply.error is None:
            reply = await read_all(worker, reply["run_id"])
    await _tell_run(worker, "run", mark, reply, f"begin {mark}\nmark {mark}\n")


def _mark_in_python(mark: int) -> str:
    return f"with open({MARKS!r}, 'a') as file: file.write('{mark}\\n')\nprint('mark', {mark})\n"


async def _tell_run(worker: Worker, op: str, mark: int, reply: Reply | str, expected: str) -> None:
    told = outcome(reply)
    if told == "ok" and isinstance(reply, Reply):
        await worker.tell(op, mark, told, expected=expected, output=reply.data.get("stdout"))
    else:
        await worker.tell(op, mark, told, said=said(reply))


async def background(worker: Worker, mark: int) -> None:
    """Start a background run that prints for two seconds, and read all of it in pieces."""
    code = f"import time\nfor n in range(20): print({mark}, n, flush=True); time.sleep(0.1)\n{_mark_in_python(mark)}"
    reply = await asked(worker, "start_run", mark, code=code)
    if isinstance(reply, Reply) and reply.error is None:
        reply = await read_all(worker, reply["run_id"])
    expected = "".join(f"{mark} {n}\n" for n in range(20)) + f"mark {mark}\n"
    await _tell_run(worker, "background", mark, reply, expected)


async def read_all(worker: Worker, run_id: str) -> Reply | str:
    """Return a background run's end, with all of its output as it came piece by piece."""
    cursor, stdout, failures = 0, "", 0
    while True:
        reply = await worker.connection.call("read_run", run_id=run_id, cursor=cursor, wait=5)
        if isinstance(reply, str) or reply.error == "backend_unavailable":
            failures += 1
            if failures > TRIES:
                return reply
            await asyncio.sleep(failures)
            continue
        if reply.error is not None:
            return reply
        cursor, stdout = reply["cursor"], stdout + reply["stdout"]
        if (result := reply.data.get("result")) is not None:
            return Reply({**result, "stdout": stdout}, is_error=False)


async def file(worker: Worker, mark: int) -> None:
    """Write a file, and every second one again with another text."""
    path, text = f"kept/{mark // 2}", f"text {mark}"
    reply = await worker.connection.call("write_file", path=path, text=text, overwrite=True, sandbox=worker.sandbox)
    await worker.tell(
        "file", mark, outcome(reply), path=path, text=text, said=said(reply) if outcome(reply) != "ok" else ""
    )


async def claim(worker: Worker, mark: int) -> None:
    """Take a sandbox, let one program run in it, and close it."""
    await run(worker, mark)
    if worker.sandbox is not None:
        reply = await worker.connection.call("close_sandbox", sandbox=worker.sandbox, force=True)
        worker.history.add("closed", worker=worker.name, sandbox=worker.sandbox, told=outcome(reply))
        worker.sandbox, worker._generation = None, worker._generation + 1


class OpenTerminal:
    """A terminal whose program answers each line, and keeps it as a mark."""

    COMMAND: Final = f"stty -echo; echo begun; while read -r x; do echo $x >>{MARKS}; echo got-$x; done"

    def __init__(self, url: str, key: str, sandbox: str) -> None:
        self.sandbox = sandbox
        self.shown = bytearray()
        self.words = ""
        self._news = asyncio.Event()
        self._api = Api(AsyncTransport(), lambda: Endpoint(url, key))
        self._terminal = Terminal(self._api, sandbox, self._show, lambda: None, command=self.COMMAND)
        self._running = asyncio.create_task(self._terminal.run())
        self._running.add_done_callback(lambda _: self._news.set())

    async def _show(self, data: bytes) -> None:
        self.shown += data
        self._news.set()

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return self._running.done()

    async def until(self, text: bytes) -> str:
        """Wait for a text; return ok, or why it does not come."""
        try:
            async with asyncio.timeout(PATIENCE):
                while text not in self.shown:
                    if self.over:
                        error = None if self._running.cancelled() else self._running.exception()
                        self.words = f"{error!r} {getattr(error, 'next_step', '')}"
                        return error.code if isinstance(error, SandpodError) else "ended"
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            return "no answer"
        return "ok"

    async def say(self, mark: int) -> str:
        """Type a mark and wait for its answer; return ok, or why there is none."""
        told = await self.until(b"begun\r\n")
        if told == "ok":
            self._terminal.type(f"{mark}\n".encode())
            told = await self.until(f"got-{mark}\r\n".encode())
        return told

    async def close(self) -> None:
        """Hang up."""
        self._running.cancel()
        await asyncio.gather(self._running, return_exceptions=True)
        with contextlib.suppress(Exception):
            await self._api.close()


async def type_in_terminal(worker: Worker, mark: int) -> None:
    """Type a mark into a terminal that stays, and read its answer."""
    terminal = await worker.terminal()
    begin = len(terminal.shown)
    told = await terminal.say(mark)
    shown = terminal.shown[begin:].decode(errors="replace").removeprefix("begun\r\n")
    if told == "ok":
        await worker.tell("terminal", mark, told, expected=f"got-{mark}\r\n", output=shown)
    else:
        await terminal.close()
        await worker.tell("terminal", mark, told, said=terminal.words)


KINDS: Final[dict[str, tuple[Callable[[Worker, int], Awaitable[None]], dict[str, Any]]]] = {
    "runs": (run, {}),
    "background": (background, {}),
    "terminal": (type_in_terminal, {}),
    "files": (file, {}),
    "claims": (claim, {}),
    "lasting": (file, {"template": "chaos-lasting", "workspace": {"persistent": True}}),
}
"""What workers do, and what their sandboxes are created with."""


class Load:
    """Workers of every kind for each of several users.

    Args:
        url: Where the gateways are, by the way that is disturbed.
        keys: API keys by user.
        kinds: What is done, of KINDS.
    """

    def __init__(self, url: str, keys: dict[str, str], history: History, kinds: tuple[str, ...] = ()) -> None:
        self.workers = [
            Worker(
                name=f"{user}-{kind}", owner=f"user:{user}", url=url, key=key, history=history, work=work, wanted=wanted
            )
            for user, key in keys.items()
            for kind, (work, wanted) in KINDS.items()
            if kind in (kinds or KINDS)
        ]
        self._loops = [asyncio.create_task(worker.loop()) for worker in self.workers]

    def go(self) -> None:
        """Let all of them work."""
        for worker in self.workers:
            worker.rests.clear()
            worker.going.set()

    async def rest(self) -> None:
        """Wait until each has done what it was about to do, and does no more."""
        for worker in self.workers:
            worker.going.clear()
        for worker in self.workers:
            await worker.rests.wait()
        for each in self._loops:
            if each.done():
                each.result()  # a fault of this program's own

    async def end(self) -> None:
        """End them, and close their sandboxes."""
        for each in self._loops:
            each.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)
        await asyncio.gather(*(worker.end() for worker in self.workers))
