"""A program's own word that it is over: believed about itself, and about nothing else."""

import asyncio

import pytest

from sandpod_runner.ipc.display_records import DONE, RECORD, RecordKind
from support.runner.harness import FIND_CHANNEL, PATIENCE, Client


def says(code: int = 0, cpu: float = 0.0, max_rss: int = 0) -> str:
    """Return Python code that says that the program is over."""
    word = RECORD.pack(RecordKind.DONE, 0, DONE.size) + DONE.pack(code, cpu, max_rss)
    return f"{FIND_CHANNEL}os.write(channel, {word!r})\n"


async def gone(client: Client, pid: int) -> None:
    """Wait until a process is gone; each look is a frame there and back."""
    async with asyncio.timeout(PATIENCE):
        while (await client.run(f"test -e /proc/{pid}", "shell")).exit_code == 0:
            pass


async def test_program_that_says_that_it_is_over_and_goes_on_is_ended(client: Client) -> None:
    code = "import os, signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint(os.getpid(), flush=True)\n"
    result = await client.run(f"{code}{says(7)}while True: pass")
    assert (result.outcome, result.exit_code) == ("error", 7)
    await gone(client, int(result.out))


async def test_what_it_had_left_behind_is_ended_too(client: Client) -> None:
    child = "['/bin/sh', '-c', 'sleep 3017'], start_new_session=True, stdout=subprocess.DEVNULL"
    code = f"import subprocess\nprint(subprocess.Popen({child}).pid, flush=True)\n{says()}"
    result = await client.run(f"{code}os._exit(0)")
    assert result.outcome == "ok"
    await gone(client, int(result.out))


@pytest.mark.everywhere
async def test_honest_word_has_the_programs_own_numbers(client: Client) -> None:
    thread = "import threading\nthreading.Thread(target=input, daemon=True).start()\n"
    for end in ("", thread):
        code = f"import time\nwhile time.process_time() < 0.2: pass\n{end}raise SystemExit(3)"
        result = await client.run(code, stdin=True)
        assert result.exit_code == 3
        assert 150 < result.end["cpu_ms"] < 2000
        assert result.end["max_rss_bytes"] > 1_000_000


@pytest.mark.everywhere
async def test_honest_word_of_node_has_the_programs_own_numbers(client: Client) -> None:
    child = "require('child_process').execSync('i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done'); "
    own = "while (process.cpuUsage().user < 300_000) for (let i = 0; i < 1e6; i++); "
    result = await client.run(f"{child}{own}process.exit(3)", "javascript")
    assert (result.outcome, result.exit_code) == ("error", 3)
    assert 150 < result.end["cpu_ms"] < 5000
    assert result.end["max_rss_bytes"] > 10_000_000


@pytest.mark.parametrize(
    "code",
    [
        "require('child_process').spawn('sleep', ['3018'], { detached: true, stdio: 'ignore' }); process.exit(3)",
        "new (require('worker_threads').Worker)('for (;;);', { eval: true }); process.exit(3)",
        "require('fs').closeSync(4); process.exit(3)",
        "require('fs').writeSync(4, 'nonsense'); process.exit(3)",
    ],
)
async def test_node_that_leaves_something_or_has_no_word_is_waited_for(client: Client, code: str) -> None:
    result = await client.run(code, "javascript")
    assert (result.outcome, result.exit_code) == ("error", 3)
    assert await client.processes_with("sleep 3018") == []


async def test_programs_that_node_starts_get_its_streams_alone(client: Client) -> None:
    code = "require('child_process').execSync('ls /proc/self/fd', { stdio: 'inherit' })"
    for context in (None, "streams"):
        result = await client.run(code, "javascript", context=context)
        assert result.out.split() == [b"0", b"1", b"2", b"3"]  # the last is the folder that is listed


@pytest.mark.parametrize("cpu", [float("nan"), float("inf"), -1.0])
async def test_numbers_that_are_none_do_no_harm(client: Client, cpu: float) -> None:
    result = await client.run(says(cpu=cpu, max_rss=-5).replace("nan", "float('nan')"))
    assert result.outcome == "ok"
    assert 0 <= result.end["cpu_ms"] < 5000
    assert result.end["max_rss_bytes"] >= 0


async def test_cell_does_not_end_its_context_with_it(client: Client) -> None:
    await client.run("kept = 5", context="word")
    await client.run(f"{says(9)}\nprint('goes on')", context="word")
    result = await client.run("print(kept)", context="word")
    assert (result.outcome, result.out) == ("ok", b"5\n")


async def test_child_that_runs_to_the_end_of_the_program_does_not_speak_for_it(client: Client) -> None:
    parent = "if child:\n    os.waitpid(child, 0)\n    print('parent')\n"
    code = f"import os\nchild = os.fork()\n{parent}raise SystemExit(4 if child else 0)"
    result = await client.run(code)
    assert (result.exit_code, result.out) == (4, b"parent\n")
