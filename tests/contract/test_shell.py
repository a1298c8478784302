"""`sandpod shell`: a terminal in a local sandbox, typed into as a person does it."""

import asyncio
import hashlib
import os
import signal
import sys

import pytest

from sandpod.api import Api
from sandpod.endpoint import Endpoint
from sandpod.terminal import Terminal
from sandpod.transport import AsyncTransport
from support.gateway.served import Served
from support.pty_program import in_terminal
from support.servers.cut_connections import way_to

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.needs_userns]

LOST = b"\r\nsandpod: The connection is lost. Trying again; Ctrl-C ends this.\r\n"
SHELL = (sys.executable, "-m", "sandpod", "shell")


@pytest.mark.promise("terminal-lossless")
async def test_a_shell_has_size_signals_colours_and_one_life_over_broken_connections(
    alone: Served, address: str
) -> None:
    async with way_to(address) as way, in_terminal(*SHELL, "--url", way.address) as shell:
        before = shell.modes()
        await shell.until(r"\$ ")
        assert shell.modes() != before
        shell.type("KEPT=5; stty size; printf '\\033[31mred\\033[0m\\n'\n")
        await shell.until("30 100\r\n\x1b\\[31mred\x1b\\[0m")
        shell.resize(120, 40)
        shell.type("until [ \"$(stty size)\" = '40 120' ]; do sleep 0.02; done; echo re''sized\n")
        await shell.until("resized")
        shell.type("sh -c 'echo sl\"\"eeps; exec sleep 600'\n")
        await shell.until("sleeps")
        shell.type("\x03")
        await shell.until(r"\^C[^$]*\$ ")
        shell.type("echo code $?\n")
        await shell.until("code 130")
        # While the connection breaks, nothing that is typed or shown is lost.
        shell.type("for n in $(seq 3000); do echo line-$n; done; read -r typed; echo got $typed-$KEPT\n")
        await shell.until("line-100\r")
        way.cut()
        shell.type("word\n")
        await shell.until("connection is lost")
        await shell.until("got word-5")
        shown = bytes(shell.shown).replace(LOST, b"").decode().splitlines()
        assert [line for line in shown if line.startswith("line-")] == [f"line-{n + 1}" for n in range(3000)]
        shell.type("exit 3\n")
        assert await shell.process.wait() == 3
        assert shell.modes() == before
        runs = (await alone.call("list_runs"))["runs"]
        assert [(each["language"], each["state"]) for each in runs] == [("shell", "ended")]


async def test_whatever_ends_it_the_terminal_is_as_it_was(alone: Served, address: str) -> None:
    async with in_terminal(*SHELL, "--url", address, "-c", "echo runs; exec sleep 600") as shell:
        before = shell.modes()
        await shell.until("runs")
        shell.process.send_signal(signal.SIGTERM)
        assert await shell.process.wait() == 130
        assert shell.modes() == before
    async with in_terminal(*SHELL, "--url", address, "no-such\x1b[2J") as shell:
        assert await shell.process.wait() == 2
        assert shell.modes() == before
        assert b"\x1b[2J" not in shell.shown
        await shell.until("sandpod: .*\r\n")
    async with in_terminal("sh", "-c", f"{' '.join(SHELL)} --url {address} </dev/null") as shell:
        assert await shell.process.wait() == 2
        await shell.until("needs a terminal")
    [run] = (await alone.call("list_runs"))["runs"]
    assert (await alone.call("read_run", run_id=run["run_id"], wait=60, until="end"))["state"] == "ended"


async def test_a_shell_whose_sandbox_ends_under_it_says_so(alone: Served, address: str) -> None:
    async with in_terminal(*SHELL, "--url", address) as shell:
        before = shell.modes()
        await shell.until(r"\$ ")
        shell.type("echo in; exec sleep 600\n")
        await shell.until("in\r\n")
        [sandbox] = (await alone.call("list_sandboxes"))["sandboxes"]
        await alone.call("close_sandbox", sandbox=sandbox["sandbox"], force=True)
        assert await shell.process.wait() == 1
        assert shell.modes() == before
        # Its end may come before the stream's.
        await shell.until(r"sandpod: The sandbox (has ended, and the terminal with it|was closed while)[^\n]*\.\r\n")
        assert shell.shown.count(b"sandpod: ") == 1


async def test_what_is_pasted_arrives_once_whatever_breaks(alone: Served, address: str) -> None:
    data = os.urandom(2**20 + 1)
    shown = bytearray()
    async with way_to(address) as way:
        begun = asyncio.Event()

        async def show(piece: bytes) -> None:
            shown.extend(piece)
            begun.set()

        api = Api(AsyncTransport(), lambda: Endpoint(way.address))
        command = f"stty raw -echo; echo begun; head -c {len(data)} | sha256sum"
        terminal = Terminal(api, "default", show, lambda: None, command=command)
        running = asyncio.create_task(terminal.run())
        await begun.wait()
        for begin in range(0, len(data), 50_000):
            terminal.type(data[begin : begin + 50_000])
            if begin % 250_000 == 0:
                way.cut()
            while terminal.is_full:  # noqa: ASYNC110 - as the program takes it
                await asyncio.sleep(0.01)
        ended = await running
        await api.close()
    assert (ended.exit_code, way.cuts > 2) == (0, True)
    assert hashlib.sha256(data).hexdigest() in shown.decode()
    assert [each["outcome"] for each in (await alone.call("list_runs"))["runs"]] == ["ok"]
