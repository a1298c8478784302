"""How runs end, told apart, and that nothing of them is left."""

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandpod_runner.ipc import process_tree
from sandpod_runner.protocol import messages as protocol
from support.gateway.peers import until
from support.runner.harness import Client, RefusedError, Result, Runner, Sandbox, running

PARENT = 1
"""Field of /proc/<pid>/stat, counted after the name."""
OF_SESSION = (
    "import os, sys\n"
    "def session(pid):\n"
    "    try: return os.getsid(pid)\n"
    "    except ProcessLookupError: return None\n"
    "print([pid for pid in map(int, filter(str.isdecimal, os.listdir('/proc'))) if session(pid) == int(sys.argv[1])])\n"
)
DAEMON = (
    "import os, sys, time\n"
    "if os.fork() == 0:\n"
    "    os.setsid()\n"
    "    if os.fork() == 0:\n"
    "        os.execvp('sleep', ['sleep', '{seconds}'])\n"
    "    os._exit(0)\n"
    "os.wait()\n"
    "print('started')\n"
)


def seen(result: Result) -> tuple[str, int | None, str | None, bytes]:
    return result.outcome, result.exit_code, result.end["signal"], result.out


@pytest.mark.promise("whole-tree", "after-timeout")
@pytest.mark.claim("run_python_code")
@pytest.mark.everywhere
async def test_timeout_ends_every_program_with_all_that_it_started_and_the_next_run_starts_at_once(
    client: Client,
) -> None:
    bye = "import signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *_: (print('bye'), sys.exit(4)))\n"
    programs = [
        (DAEMON.format(seconds=3012) + "time.sleep(99)", "python"),
        ("sh -c 'sleep 3012 & echo holds the pipe; wait'", "shell"),
        ("trap '' TERM; echo deaf; sleep 3012", "shell"),
        ("echo stops; kill -STOP $$", "shell"),
        (f"{bye}time.sleep(99)", "python"),
    ]
    results = await asyncio.gather(*(client.run(code, language, timeout=3) for code, language in programs))
    daemon, pipe, deaf, stopped, polite = (seen(result) for result in results)
    assert daemon == ("timeout", None, "SIGTERM", b"started\n")
    assert pipe == ("timeout", None, "SIGTERM", b"holds the pipe\n")
    assert deaf == ("timeout", None, "SIGKILL", b"deaf\n")
    assert (stopped[0], stopped[3]) == ("timeout", b"stops\n")
    assert polite == ("timeout", 4, None, b"bye\n")
    assert "3 seconds" in results[0].end["detail"]
    assert await client.processes_with("sleep 3012") == []
    assert (await client.run("print(1+1)")).out == b"2\n"


@pytest.mark.promise("whole-tree")
@pytest.mark.claim("run_python_code")
@pytest.mark.everywhere
async def test_daemon_that_left_its_session_is_gone_when_the_run_ends(client: Client) -> None:
    result = await client.run(DAEMON.format(seconds=3011))
    assert (result.outcome, result.out) == ("ok", b"started\n")
    assert await client.processes_with("sleep 3011") == []


@pytest.mark.claim("run_shell_command")
async def test_background_process_of_a_shell_ends_with_the_run(client: Client) -> None:
    result = await client.run("sleep 3013 & nohup setsid sleep 3013 >/dev/null 2>&1 & echo started", "shell")
    assert (result.outcome, result.out) == ("ok", b"started\n")
    assert await client.processes_with("sleep 3013") == []


@pytest.mark.everywhere
async def test_program_that_forks_away_all_the_time_is_ended(client: Client) -> None:
    hydra = "import os, time\nprint(os.getsid(0))\nwhile True:\n    if os.fork(): os._exit(0)\n    time.sleep(0.001)\n"
    result = await client.run(hydra)
    assert result.outcome == "ok"
    left = await client.run(OF_SESSION, args=[result.out.decode().strip()])
    assert left.out == b"[]\n"


@pytest.mark.everywhere
async def test_many_processes_are_ended_together(client: Client) -> None:
    code = "for i in $(seq 30); do setsid sleep 3014 & done; echo started; sleep 99"
    name = await client.start(code, "shell")
    await client.until_output(name, b"started")
    await client.send({"t": "cancel", "run": name})
    result = await client.finish(name)
    assert result.outcome == "cancelled"
    assert await client.processes_with("sleep 3014") == []


@pytest.mark.claim("stop_run")
@pytest.mark.everywhere
async def test_cancel_ends_the_program_and_its_children(client: Client) -> None:
    name = await client.start("echo started; sleep 3015 & sleep 3015", "shell")
    await client.until_output(name, b"started")
    await client.send({"t": "cancel", "run": name})
    result = await client.finish(name)
    assert (result.outcome, result.exit_code) == ("cancelled", None)
    assert await client.processes_with("sleep 3015") == []


async def test_cancel_right_after_the_start_ends_it_once(client: Client) -> None:
    name = await client.start("import time; time.sleep(99)")
    await client.send({"t": "cancel", "run": name})
    result = await client.finish(name)
    assert [frame.kind for frame in result.frames] == ["started", "end"]
    assert result.outcome == "cancelled"


@pytest.mark.promise("exit-codes", "end-known")
async def test_exit_codes_of_the_shell_are_right_every_time(client: Client) -> None:
    for _ in range(5):
        for code, exit_code in (("true", 0), ("exit 2", 2), ("nosuchcmd", 127), ("exit 256", 0), ("(exit 3)", 3)):
            result = await client.run(code, "shell")
            assert (result.exit_code, result.outcome) == (exit_code, "error" if exit_code else "ok"), code


async def test_signal_that_ended_a_program_is_named(client: Client) -> None:
    result = await client.run("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    assert (result.outcome, result.exit_code, result.end["signal"]) == ("error", None, "SIGSEGV")
    again = await client.run("kill -KILL $$", "shell")
    assert (again.outcome, again.end["signal"]) == ("error", "SIGKILL")


@pytest.mark.promise("orphans")
async def test_orphans_are_reaped(runner: Runner, client: Client) -> None:
    for _ in range(15):
        assert (await client.run("( sh -c 'sleep 0.001' & ) ; true", "shell")).outcome == "ok"
    zombies = [pid for pid in children_of(runner.pid) if stat_of(pid)[0] == "Z"]
    assert zombies == []


async def test_every_end_comes_after_all_output_and_once(client: Client) -> None:
    results = await asyncio.gather(*(client.run("echo a; echo b >&2", "shell") for _ in range(10)))
    for result in results:
        kinds = [frame.kind for frame in result.frames]
        assert kinds[0] == "started"
        assert kinds[-1] == "end"
        assert kinds.count("end") == kinds.count("started") == 1
        assert (result.out, result.err) == (b"a\n", b"b\n")


@pytest.mark.everywhere
async def test_program_can_kill_the_process_that_starts_programs_and_the_next_run_works(client: Client) -> None:
    name = await client.start("import time; print('up'); input(); print('still here')", stdin=True)
    await client.until_output(name, b"up\n")
    await client.run("import os, signal; os.kill(os.getppid(), signal.SIGKILL)")
    assert (await client.run("print(2)")).out == b"2\n"
    # What was running goes on, and its end is told although its parent is gone.
    await client.send({"t": "stdin", "run": name, "eof": True}, b"\n")
    result = await client.finish(name)
    assert (result.outcome, result.out) == ("ok", b"still here\n")


@pytest.mark.everywhere
async def test_program_that_stops_the_process_that_starts_programs_keeps_nobody_from_running(client: Client) -> None:
    name = await client.start("import time; print('up'); input(); print('still here')", stdin=True)
    await client.until_output(name, b"up\n")
    for _ in range(2):
        stopping = await client.run("import os, signal; os.kill(os.getppid(), signal.SIGSTOP)", timeout=5)
        assert stopping.outcome == "ok"
        assert (await client.run("print(2)", timeout=5)).out == b"2\n"
    await client.send({"t": "stdin", "run": name, "eof": True}, b"\n")
    assert (await client.finish(name)).out == b"still here\n"


@pytest.mark.everywhere
async def test_process_that_waits_for_its_program_runs_it_though_it_was_stopped(client: Client) -> None:
    code = (
        "import os, signal\nparent = os.getppid()\n"
        "others = open(f'/proc/{parent}/task/{parent}/children').read().split()\n"
        "[os.kill(int(pid), signal.SIGSTOP) for pid in others if int(pid) != os.getpid()]"
    )
    for _ in range(2):
        await client.run(code)
        assert (await client.run("print(2)", timeout=5)).out == b"2\n"


STOPPED_STARTER = "import os; os.WUNTRACED = 0"


@pytest.fixture(scope="module")
def unaware(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    """A runner that does not notice when its starter of programs is stopped."""
    with running(tmp_path_factory.mktemp("unaware"), prelude=STOPPED_STARTER) as started:
        yield started


async def test_run_that_a_killed_starter_of_programs_had_not_read_is_started_by_the_next_one(unaware: Runner) -> None:
    client = await unaware.connect()
    for _ in range(2):
        assert (await client.run("print(1)")).out == b"1\n"
        starter = await only_starter(unaware)
        os.kill(starter, signal.SIGSTOP)
        name = await client.start("print('served')")
        await client.ask("ping")  # answered after it was asked for
        os.kill(starter, signal.SIGKILL)
        result = await client.finish(name)
        assert (result.outcome, result.out) == ("ok", b"served\n")
    await client.close()


@pytest.mark.parametrize("context", [None, "c"])
async def test_run_can_be_ended_while_it_waits_for_its_process(unaware: Runner, context: str | None) -> None:
    client = await unaware.connect()
    os.kill(await only_starter(unaware), signal.SIGSTOP)
    name = await client.start("print('served')", context=context)
    await client.ask("ping")
    await client.send({"t": "cancel", "run": name})
    assert (await client.finish(name)).outcome == "cancelled"
    assert (await client.run("print('served')", context=context, timeout=0.2)).outcome == "timeout"
    os.kill(await only_starter(unaware), signal.SIGCONT)
    assert (await client.run("print(3)", context=context)).out == b"3\n"
    await client.close()


async def test_starter_of_programs_that_does_not_answer_is_replaced(tmp_path: Path) -> None:
    shorter = f"{STOPPED_STARTER}; from sandpod_runner.runs import run; run.START_SECONDS = 2.0"
    with running(tmp_path, prelude=shorter) as runner:
        client = await runner.connect()
        os.kill(await only_starter(runner), signal.SIGSTOP)
        result = await client.run("print(1)")
        said = "The program could not be started: it took too long."
        assert (result.outcome, result.end["detail"]) == ("error", said)
        assert (await client.run("print(2)")).out == b"2\n"
        await client.close()


async def only_starter(runner: Runner) -> int:
    """Return the process that the runner has programs started by, when nothing is left of one that was killed."""
    found: list[int] = []

    def alone() -> bool:
        found[:] = [pid for pid in process_tree.parents() if is_starter_of(runner, pid)]
        return len(found) == 1

    await until(alone)
    return found[0]


def is_starter_of(runner: Runner, pid: int) -> bool:
    """Return whether a process, which may have ended meanwhile, is the runner's child and one that starts programs."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except OSError:
        return False
    return b"sandpod_runner.zygote.server" in command and f"\nPPid:\t{runner.pid}\n" in status


@pytest.mark.everywhere
async def test_run_can_be_ended_from_another_stream_when_its_own_has_gone(sandbox: Sandbox) -> None:
    gone = await sandbox.connect()
    name = await gone.start("echo up; sleep 3016", "shell", timeout=999)
    await gone.until_output(name, b"up\n")
    await gone.close()
    again = await sandbox.connect()
    assert name in again.hello["runs"]
    await again.send({"t": "cancel", "run": name})
    assert (await again.until_ended(name))["outcome"] == "cancelled"
    assert await again.processes_with("sleep 3016") == []
    await again.close()


async def test_run_outlives_its_stream_for_the_grace_only_unless_it_is_detached(tmp_path: Path) -> None:
    shorter = "from sandpod_runner.protocol import messages as protocol; protocol.ORPHAN_GRACE = 0.3"
    with running(tmp_path, prelude=shorter) as runner:
        gone = await runner.connect()
        lost = await gone.start("echo up; sleep 3018", "shell", timeout=999)
        kept = await gone.start("echo up; sleep 3019; sleep 3019", "shell", timeout=999, detached=True)
        await gone.follow(kept)
        for name in (lost, kept):
            await gone.until_output(name, b"up\n")
        await gone.close()
        client = await runner.connect()
        assert (await client.until_ended(lost))["outcome"] == "cancelled"
        assert await client.processes_with("sleep 3018") == []
        assert (await client.ask("ping")).header["runs"] == [kept]
        await client.until_process("sleep 3019")
        await client.close()


async def test_programs_can_not_open_a_stream_of_their_own(runner: Runner, client: Client) -> None:
    code = (
        "import socket, sys\ns = socket.socket(socket.AF_UNIX)\ns.connect(sys.argv[1])\n"
        "try: print(s.recv(100))\nexcept ConnectionError: print(b'')"
    )
    assert (await client.run(code, args=[str(runner.address)])).out == b"b''\n"


async def test_runner_that_is_told_to_end_takes_its_programs_along(tmp_path: Path, client: Client) -> None:
    with running(tmp_path) as told:
        stream = await told.connect()
        name = await stream.start(DAEMON.format(seconds=3017) + "time.sleep(3017)", timeout=999)
        await stream.until_output(name, b"started")
        await client.until_process("sleep 3017")
        os.kill(told.pid, signal.SIGTERM)
        assert (await stream.finish(name)).outcome == "sandbox_lost"
        assert await asyncio.to_thread(told.process.wait, 10) == 128 + signal.SIGTERM
        assert await client.processes_with("sleep 3017") == []
        await stream.close()


@pytest.mark.everywhere
async def test_no_more_runs_than_the_limit_go_on_at_once(client: Client) -> None:
    names = [await client.start("read x", "shell", stdin=True) for _ in range(protocol.MAX_RUNS)]
    with pytest.raises(RefusedError) as refused:
        await client.run("true", "shell")
    assert refused.value.code == "session_busy"
    for name in names:
        await client.send({"t": "stdin", "run": name, "eof": True}, b"\n")
    assert {(await client.finish(name)).outcome for name in names} == {"ok"}


def children_of(parent: int) -> list[int]:
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
    return [pid for pid in pids if stat_of(pid)[PARENT : PARENT + 1] == [str(parent)]]


def stat_of(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return [""]
