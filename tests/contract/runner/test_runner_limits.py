"""What programs see and what they may use: environment, memory, processes, files.

The runner that is started directly has tight limits, and what must not be seen in its own environment.
"""

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandpod_runner.processes.environment import count_cpus
from support.runner.harness import Client, Runner, running
from support.runner.terminal import Terminal

SUSPECT = re.compile("KEY|TOKEN|SECRET|PASS|CRED|KUBERNETES|_SERVICE_|_PORT|SANDPOD")
MIB = 1024 * 1024


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    limits = {
        "SANDPOD_MEMORY_LIMIT": str(300 * MIB),
        "SANDPOD_OPEN_FILES": "300",
        "SANDPOD_WORKSPACE_BYTES": str(MIB),
        "SANDPOD_PREIMPORT": "decimal,no_such_module",
    }
    outer = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "DB_PORT": "1", "MY_TOKEN": "s3cret", "SECRET_X": "1"}
    with running(tmp_path_factory.mktemp("limits"), **limits, **outer) as started:
        yield started


def limit_of(client: Client) -> str:
    """Return the sandbox's memory as users are told it."""
    return f"{client.hello['memory_limit'] // MIB} MiB"


ENVIRONMENTS = {
    "import os; print('\\n'.join(os.environ))": "python",
    "import os; print(open('/proc/self/environ').read().replace('\\0', '\\n'))": "python",
    "env": "shell",
    "console.log(Object.entries(process.env).join('\\n'))": "javascript",
    "console.log(require('fs').readFileSync('/proc/self/environ', 'utf8').replaceAll('\\0', '\\n'))": "javascript",
}


@pytest.mark.promise("clean-environment")
@pytest.mark.everywhere
async def test_environment_holds_harmless_names_only(client: Client) -> None:
    for code, language in ENVIRONMENTS.items():
        result = await client.run(code, language)
        assert result.exit_code == 0
        assert b"HOME" in result.out
        assert SUSPECT.findall(result.out.decode()) == []
        assert b"s3cret" not in result.out


async def test_libraries_count_the_sandboxes_processors(client: Client) -> None:
    names = ("PYTHON_CPU_COUNT", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    counts = (await client.run(f"import os\nprint(*(os.environ.get(name) for name in {names}))")).out.split()
    assert counts == [str(count_cpus()).encode()] * 3


async def test_runs_own_environment_comes_on_top(client: Client) -> None:
    result = await client.run("echo $LANG $MINE", "shell", env={"LANG": "C", "MINE": "1"})
    assert result.out == b"C 1\n"
    assert (await client.run("echo $LANG $MINE", "shell")).out == b"C.UTF-8\n"


@pytest.mark.promise("writable-places")
@pytest.mark.everywhere
async def test_home_and_caches_can_be_written(client: Client) -> None:
    code = (
        "import tempfile, pathlib, os\ntempfile.mkdtemp()\n(pathlib.Path.home() / 'x').write_text('1')\n"
        "for name in ('XDG_CACHE_HOME', 'MPLCONFIGDIR'):\n    (pathlib.Path(os.environ[name]) / 'x').write_text('1')\n"
    )
    assert (await client.run(code)).outcome == "ok"


BOMB = "a = []\nwhile True: a.append(bytearray(4_000_000))"


@pytest.mark.promise("out-of-memory")
@pytest.mark.everywhere
async def test_memory_that_runs_out_is_named_with_its_limit_and_others_go_on(client: Client) -> None:
    calm = await client.start("input(); print('calm')", stdin=True)
    result = await client.run(f"print('start')\n{BOMB}")
    assert (result.outcome, result.out) == ("out_of_memory", b"start\n")
    assert limit_of(client) in result.end["detail"]
    assert (await client.run("print(1)")).out == b"1\n"
    await client.send({"t": "stdin", "run": calm, "eof": True}, b"\n")
    assert (await client.finish(calm)).out == b"calm\n"


@pytest.mark.everywhere
async def test_child_that_takes_the_memory_ends_the_run_as_out_of_memory(client: Client) -> None:
    code = f"python3 -c '{BOMB}'; echo shell lives"
    assert (await client.run(code, "shell")).outcome == "out_of_memory"


@pytest.mark.everywhere
async def test_program_that_gives_up_for_want_of_memory_is_out_of_memory(client: Client) -> None:
    for code in ("bytearray(2**60)", "def f():\n    raise MemoryError('not enough')\nf()"):
        result = await client.run(code)
        assert (result.outcome, result.exit_code) == ("out_of_memory", 1)
        assert b"MemoryError" in result.err
        assert limit_of(client) in result.end["detail"]
    result = await client.run("console.log('begun'); new ArrayBuffer(2 ** 50)", "javascript")
    assert (result.outcome, result.exit_code, result.out) == ("out_of_memory", 1, b"begun\n")
    code = "try: bytearray(2**60)\nexcept MemoryError: raise SystemExit('caught MemoryError: yes')"
    assert (await client.run(code)).outcome == "error", "one that is handled is the program's own affair"


@pytest.mark.promise("out-of-memory")
@pytest.mark.everywhere
async def test_cell_that_takes_too_much_memory_loses_its_context_and_no_other(client: Client) -> None:
    for name in ("large", "other"):
        await client.run("x = 5", context=name)
    result = await client.run("b = []\nwhile True: b.append(bytearray(1_000_000))", context="large")
    assert (result.outcome, result.end["context_state"]) == ("out_of_memory", "lost")
    said = f"It used more than the sandbox's {limit_of(client)} of memory, of which idle contexts hold a part ("
    assert result.end["detail"].startswith(said)
    assert "; restart_context ends one). The context" in result.end["detail"]
    assert b"NameError" in (await client.run("x", context="large")).err
    assert (await client.run("print(x)", context="other")).out == b"5\n"


@pytest.mark.everywhere
async def test_javascript_that_takes_too_much_memory_is_told_alike(client: Client) -> None:
    code = "const all = []; for (;;) all.push(Buffer.alloc(1_000_000, 1))"
    for context, state in ((None, None), ("javascript", "lost")):
        result = await client.run(code, "javascript", context=context)
        assert (result.outcome, result.end["context_state"]) == ("out_of_memory", state)


async def test_cell_that_asks_for_too_much_memory_at_once_keeps_its_context(client: Client) -> None:
    await client.run("x = 5", context="asking")
    result = await client.run("b = bytearray(2 ** 60)", context="asking")
    assert (result.outcome, result.end["context_state"]) == ("out_of_memory", "kept")
    assert (await client.run("print(x)", context="asking")).out == b"5\n"


@pytest.mark.everywhere
async def test_memory_shared_by_forked_processes_is_counted_once(client: Client) -> None:
    code = (
        "import os, time\nb = bytearray(120_000_000)\n"
        "for _ in range(4):\n    if os.fork() == 0:\n        time.sleep(0.4)\n        os._exit(0)\n"
        "for _ in range(4): os.wait()\nprint('shared')\n"
    )
    assert (await client.run(code)).out == b"shared\n"


async def test_open_files_are_bounded(client: Client) -> None:
    code = (
        "import os\nf = []\ntry:\n    while True: f.append(os.open('/dev/null', 0))\n"
        "except OSError as e: print(e.errno, len(f) < 300)"
    )
    assert (await client.run(code)).out == b"24 True\n"


async def test_file_over_the_workspaces_size_is_refused_in_words(client: Client) -> None:
    result = await client.run("dd if=/dev/zero of=big bs=64k count=100 2>&1; rm -f big", "shell")
    assert b"File too large" in result.out
    python = await client.run("open('big', 'wb').write(bytes(2_000_000))")
    assert b"File too large" in python.err


@pytest.mark.everywhere
async def test_programs_leave_no_core_and_are_the_first_that_the_kernel_kills(client: Client) -> None:
    result = await client.run("ulimit -c; cat /proc/self/oom_score_adj", "shell")
    assert result.out == b"0\n1000\n"


async def test_settings_of_the_runner_are_told_and_a_module_that_can_not_be_imported_beforehand_is_left_out(
    client: Client,
) -> None:
    assert client.hello["memory_limit"] == 300 * MIB
    result = await client.run("import sys; print('decimal' in sys.modules)")
    assert result.out == b"True\n"


async def test_programs_can_not_read_the_runner_or_the_process_they_come_from(runner: Runner, client: Client) -> None:
    code = (
        "import os, sys\n"
        "for pid in (int(sys.argv[1]), os.getppid()):\n"
        "    path = f'/proc/{pid}/environ'\n"
        # Root may read everything: for root it is the files' owner that keeps everybody else out.
        "    if os.getuid() == 0: print('closed' if os.stat(path).st_uid == 0 else 'open')\n"
        "    else:\n"
        "        try: open(path); print('open')\n"
        "        except PermissionError: print('closed')\n"
    )
    assert (await client.run(code, args=[str(runner.pid)])).out == b"closed\nclosed\n"


async def test_run_gets_no_more_than_its_template_allows_whatever_it_asks_for(tmp_path: Path) -> None:
    with running(tmp_path, SANDPOD_RUN_TIMEOUT="1", SANDPOD_OUTPUT_BYTES="4096") as short:
        client = await short.connect()
        async with asyncio.timeout(60):
            loud = await client.run("print('x' * 10_000)", output_limit=1_000_000)
            late = await client.run("import time; time.sleep(99)", timeout=3600)
            modest = await client.run("print(1)", timeout=0.9, output_limit=1024)
        await client.close()
        assert [loud.outcome, late.outcome, modest.outcome] == ["output_limit", "timeout", "ok"]


async def test_what_the_kernel_killed_for_memory_is_said_though_the_program_went_on(tmp_path: Path) -> None:
    group = tmp_path / "cgroup"
    group.mkdir()
    files = {"max": str(512 * 2**20), "current": "1000", "stat": "", "events": "oom 1\noom_kill 1\n"}
    for name, content in files.items():
        (group / f"memory.{name}").write_text(content)
    prelude = f"from sandpod_runner.limits import memory; memory.find_watch.__defaults__ = ((), {str(group)!r})"
    with running(tmp_path, prelude=prelude) as runner:
        client = await runner.connect()
        assert (await client.run("true", "shell")).end["detail"] is None
        killed = f"echo 'oom_kill 2' > {group}/memory.events"
        result = await client.run(killed, "shell")
        assert (result.outcome, result.exit_code) == ("ok", 0)
        assert "512 MiB of memory had run out" in result.end["detail"]
        last = await client.run(killed.replace("2", "3", 1) + "; exit 137", "shell")
        assert last.outcome == "out_of_memory"
        await client.close()


async def test_terminal_that_takes_too_much_memory_ends_as_a_run_does(client: Client) -> None:
    terminal = Terminal(client)
    await terminal.begin("python3 -c 'data = b\"x\" * 10**9; input()'")
    await terminal.rest()
    end = await client.until_ended(terminal.name)
    assert (end["outcome"], limit_of(client) in end["detail"]) == ("out_of_memory", True)
