"""Terminals of a real runner: what programs find in one, and what becomes of it when its stream does not last."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from sandpod_gateway.runner.channel import Channel
from sandpod_gateway.runner.connection import RunnerConnection, open_connection
from sandpod_runner.protocol import messages as protocol
from support.runner.harness import PATIENCE, Client, RefusedError, Runner, running
from support.runner.terminal import Terminal

MIB = 2**20


async def typed(client: Client, command: str = "", **fields: object) -> Terminal:
    """Return a terminal that shows a prompt, or runs a command."""
    terminal = Terminal(client)
    await terminal.begin(command, **fields)
    if not command:
        await terminal.until(r"[$#] ")
    return terminal


@pytest.mark.everywhere
async def test_programs_find_a_terminal_that_works(client: Client, other: Client) -> None:
    await client.file("mkdir", path="here")
    shell = await typed(client, cols=100, rows=30, cwd="here", env={"MINE": "it is"})
    assert re.fullmatch(r"/dev/pts/\d+", await shell.run("tty"))
    assert await shell.run("stty size") == "30 100"
    assert await shell.run("echo $TERM $MINE ${PWD##*/}") == "xterm-256color it is here"
    assert await shell.run("test -t 0 && test -t 1 && test -t 2 && echo all") == "all"
    confined = "grep -E 'NoNewPrivs|Seccomp:' /proc/self/status | xargs; ulimit -n -c"
    assert await shell.run(confined) == (await client.run(confined, "shell")).out.decode().strip().replace("\n", "\r\n")
    # The listing's own descriptor is 3.
    assert (await shell.run("ls /proc/self/fd | xargs")).split() == ["0", "1", "2", "3"]

    await shell.type('sh -c \'trap "stty size; exit" WINCH; sleep 599 & echo arm""ed; wait\'\n')
    await shell.until("armed")
    await shell.tell("resize", cols=120, rows=40)
    await shell.until("40 120\r\n")

    # Who has another stream types in, too, and changes the size.
    await other.send({"t": "resize", "channel": shell.name, "cols": 70, "rows": 20})
    await other.send({"t": "stdin", "run": shell.name}, b"stty size; echo be''side\n")
    await shell.until("20 70\r\nbeside\r\n")

    await shell.type("sleep 600\n")
    await client.until_process("sleep 600")
    await shell.type("\x03code=$?\n")
    assert await shell.run("echo $code") == "130"

    await shell.type('sh -c \'echo aw""ake; read -r word; echo "heard $word"; exec sleep 601\'\n')
    await shell.until("awake")
    await shell.type("\x1a")
    await shell.until("Stopped")
    assert "sleep 601" in await shell.run("jobs")
    # The shell names the job before it gives it the terminal, and until then Ctrl-C is the shell's own.
    await shell.type("fg\nagain\n")
    await shell.until("heard again")
    await shell.type("\x03")
    assert await shell.run("jobs") == ""

    rows = (await other.ask("list")).header["runs"]
    [row] = [row for row in rows if row["run"] == shell.name]
    assert (row["language"], row["state"], row["detached"]) == ("shell", "live", True)
    await shell.type("sleep 602 & exit 7\n")
    await shell.rest()
    end = await client.until_ended(shell.name)
    assert (end["outcome"], end["exit_code"], end["stdout_bytes"]) == ("error", 7, 0)
    assert await client.processes_with("sleep 602") == []


@pytest.mark.promise("terminal-lossless", "terminal-bounded")
async def test_all_output_comes_once_over_streams_that_break_and_the_runner_keeps_little(
    client: Client, runner: Runner
) -> None:
    def memory() -> int:
        status = Path(f"/proc/{runner.pid}/status").read_text(encoding="utf-8")
        return int(re.findall(r"VmRSS:\s+(\d+)", status)[0]) * 1024

    size = 20 * MIB
    stream = await runner.connect()
    terminal = Terminal(stream)
    await terminal.begin(f"stty raw -echo; echo ready; head -c 6 > typed; seq -f %015.0f {size // 16} | cat")
    await terminal.until("ready\n")
    before = memory()
    await terminal.type("abc")
    seen, breaks = bytearray(), 0
    await terminal.type("def")
    while len(seen) < size:
        seen += await terminal.take()
        await terminal.credit(terminal.receiving.received)
        if len(seen) > (breaks + 1) * 7 * MIB:  # what is on its way is lost
            breaks += 1
            await stream.close()
            stream = await runner.connect()
            await terminal.open(stream)
    assert breaks == 2
    assert bytes(seen) == b"".join(b"%015d\n" % number for number in range(1, size // 16 + 1))
    assert memory() - before < 8 * MIB
    assert await terminal.rest() == b""
    assert await client.content("typed") == b"abcdef"
    await stream.close()


class Wire:
    """A gateway's stream to a runner, which is cut after some bytes in both directions."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, left: int) -> None:
        self._reader, self._writer, self._left = reader, writer, left

    async def read(self) -> bytes:
        data = await self._reader.read(4096)
        self._left -= len(data)
        if self._left < 0:
            await self.close()
        return data[: max(0, self._left + len(data))]

    async def write(self, data: bytes) -> None:
        self._left -= len(data)
        if self._left < 0:
            await self.close()
            raise ConnectionResetError
        self._writer.write(data)
        await self._writer.drain()

    async def close(self) -> None:
        self._writer.close()


@pytest.mark.promise("terminal-lossless")
async def test_the_gateways_end_loses_nothing_wherever_its_streams_are_cut(runner: Runner) -> None:
    connections: list[RunnerConnection] = []

    @asynccontextmanager
    async def connect() -> AsyncIterator[RunnerConnection]:
        if not connections or connections[-1].closed:
            reader, writer = await asyncio.open_unix_connection(runner.address)
            wire = Wire(reader, writer, 100_000 + 70_001 * len(connections))
            connections.append(await open_connection(wire))
        yield connections[-1]

    data = b"".join(b"%07d\n" % number for number in range(2**16))
    command = f"stty raw -echo; echo ready; head -c {len(data)}"
    channel = Channel("echo", connect, {"kind": "terminal", "timeout": PATIENCE}, command.encode())
    await channel.open()
    came = bytearray()
    while not came.endswith(b"ready\n"):
        came += await channel.read()
    begin, typing = len(came), asyncio.create_task(channel.write(data))
    while piece := await channel.read(10_000):
        came += piece
        channel.acknowledge(len(came))
    await typing
    assert came[begin:] == data
    assert len(connections) > 3
    await channel.close(stay=False)
    await connections[-1].close()


async def test_without_credit_no_more_than_a_window_comes(client: Client, other: Client) -> None:
    terminal = Terminal(client)
    await terminal.begin(f"stty raw; head -c {MIB} /dev/zero")
    while terminal.receiving.received < protocol.CHANNEL_WINDOW:
        await terminal.take()
    await client.ask("ping")  # answered after whatever there was to send
    await terminal.tell("credit", upto=1000, mark=77)
    terminal.receiving.credited = 1000
    assert len(await terminal.take()) == 1000  # as much as was acknowledged
    # Whoever does not know what came gets what was not acknowledged, and what the one before noted with it.
    again = Terminal(other)
    again.name = terminal.name
    await other.send({"t": "open", "channel": again.name})
    answer = await other.reply()
    assert (answer.kind, answer.header["offset"], answer.header["mark"]) == ("open", 1000, 77)
    left = await client.reply()
    assert (left.kind, left.header["code"]) == ("close", "session_busy")
    await other.send({"t": "data", "channel": again.name, "offset": 5}, b"after a gap")
    while (frame := await other.reply()).kind != "close":
        pass
    assert frame.header["code"] == "invalid_argument"
    with pytest.raises(RefusedError, match="no channel"):
        await terminal.open(client)


@pytest.mark.promise("terminal-ends")
async def test_a_terminal_that_nobody_comes_back_to_is_hung_up_and_one_that_is_closed_at_once(tmp_path: Path) -> None:
    hasty = "from sandpod_runner.protocol import messages; messages.CHANNEL_GRACE = 0.2; messages.MAX_CHANNELS = 2"
    trap = "trap 'echo told > {0}; exit' HUP; sleep 600 & echo ready; wait"
    with running(tmp_path, prelude=hasty) as runner:
        client, watcher = await runner.connect(), await runner.connect()
        gone, closed = await typed(client, trap.format("gone")), await typed(watcher, trap.format("closed"))
        for each in (gone, closed):
            await each.until("ready")
        with pytest.raises(RefusedError) as refused:
            await Terminal(watcher).begin()
        assert refused.value.code == "session_busy"
        await client.close()
        await closed.tell("close")
        for each, file in ((gone, "gone"), (closed, "closed")):
            end = await watcher.until_ended(each.name)
            assert (end["outcome"], end["detail"]) == ("cancelled", "Its terminal was closed.")
            assert await watcher.content(file) == b"told\n"
        with pytest.raises(RefusedError, match="has ended"):
            await gone.open(watcher, kind="terminal")

        # What does not listen is killed, as is what takes too long; a stopped run ends its terminal.
        deaf = await typed(watcher, "trap '' HUP; echo ready; while :; do sleep 600; done")
        await deaf.until("ready")
        await watcher.send({"t": "cancel", "run": deaf.name})
        async with asyncio.timeout(PATIENCE):
            assert await deaf.rest() == b"\r\n"
        assert (await watcher.until_ended(deaf.name))["outcome"] == "cancelled"
        await deaf.tell("close")
        late = Terminal(watcher)
        await late.open(kind="terminal", command="sleep 600", timeout=0.3)
        assert await late.rest() == b""
        assert (await watcher.until_ended(late.name))["outcome"] == "timeout"
        await watcher.close()
