"""Contexts are processes that run one cell after the other, each a run of its own; what the code gives: test_cells."""

import pytest

from sandpod_runner.protocol import messages as protocol
from support.runner.harness import Client, RefusedError, Sandbox
from support.runner.notebook import Notebook, value

BLOCK = "print('started')\nimport time\ntime.sleep(99)"
# Its contexts start in a fraction of the time that IPython takes, which has no part in what is here.
RUNNERS = {"direct": "plain_runner"}


async def contexts(client: Client) -> dict[str, str]:
    rows = (await client.ask("list")).header["contexts"]
    assert all(set(row) == {"name", "language", "state", "started"} for row in rows)
    return {row["name"]: row["state"] for row in rows}


async def test_contexts_share_nothing_and_a_run_without_one_is_fresh(notebook: Notebook) -> None:
    await notebook.cell("x = 1")
    other = Notebook(notebook.client, "other")
    assert b"NameError" in (await other.cell("x")).err
    fresh = await notebook.client.run("x")
    assert (b"NameError" in fresh.err, fresh.end["context_state"]) == (True, None)
    await other.restart()


async def test_cell_that_does_not_listen_is_killed_and_the_loss_is_said(notebook: Notebook) -> None:
    await notebook.cell("x = 5")
    deaf = "import signal, os, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nos.system('sleep 3022 &')\n"
    result = await notebook.cell(f"{deaf}print('deaf')\ntime.sleep(99)", timeout=1)
    assert (result.outcome, result.out, result.end["context_state"]) == ("timeout", b"deaf\n", "lost")
    assert "variables are lost" in result.end["detail"]
    assert await notebook.client.processes_with("sleep 3022") == []
    again = await notebook.cell("x")
    assert (b"NameError" in again.err, again.end["context_state"], again.end["detail"]) == (True, "kept", None)


async def test_code_that_ends_the_process_loses_the_state(notebook: Notebook) -> None:
    result = await notebook.cell("import os\nprint('last words')\nos._exit(9)")
    assert (result.outcome, result.exit_code, result.out) == ("error", 9, b"last words\n")
    assert result.end["context_state"] == "lost"
    crash = await notebook.cell("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)")
    assert (crash.end["signal"], crash.end["context_state"]) == ("SIGSEGV", "lost")
    nonsense = (
        "import os, socket\n"
        "for fd in map(int, os.listdir('/proc/self/fd')):\n"
        "    try: socket.socket(fileno=os.dup(fd)).send(b'nonsense')\n"
        "    except OSError: pass\n"
        "import time\ntime.sleep(99)"
    )
    result = await notebook.cell(nonsense)
    assert (result.outcome, result.end["context_state"]) == ("error", "lost")
    assert (await notebook.cell("print(1)")).out == b"1\n"


async def test_process_that_died_between_cells_is_told_by_the_next(notebook: Notebook) -> None:
    pid = int((await notebook.cell("import os\nprint(os.getpid())")).out)
    await notebook.client.run(f"kill -KILL {pid}", "shell")
    result = await notebook.cell("print('anew')")
    assert (result.outcome, result.out, result.end["context_state"]) == ("ok", b"anew\n", "lost")
    assert (await notebook.cell("1")).end["context_state"] == "kept"


@pytest.mark.promise("concurrent-runs")
async def test_cells_of_one_context_run_in_order_and_each_has_its_own_output(notebook: Notebook) -> None:
    names = [await notebook.start(f"import time\nprint({i})\ntime.sleep(0.05)\nprint({i})") for i in range(5)]
    results = [await notebook.client.finish(name) for name in names]
    assert [result.out.decode() for result in results] == [f"{i}\n{i}\n" for i in range(5)]
    assert all(frame.kind != "end" or frame is result.frames[-1] for result in results for frame in result.frames)


async def test_cell_that_waits_can_be_cancelled_and_its_timeout_has_not_begun(notebook: Notebook) -> None:
    first = await notebook.start("print('started')\ninput()", stdin=True)
    await notebook.client.until_output(first, b"started")
    second = await notebook.start("x = 'second'", timeout=0.5)
    third = await notebook.start("print('third')")
    await notebook.client.send({"t": "cancel", "run": third})
    cancelled = await notebook.client.finish(third)
    await notebook.client.send({"t": "stdin", "run": first, "eof": True}, b"go\n")
    assert [frame.kind for frame in cancelled.frames] == ["started", "end"]
    assert (cancelled.outcome, cancelled.end["context_state"]) == ("cancelled", None)
    assert (await notebook.client.finish(first)).outcome == "ok"
    assert (await notebook.client.finish(second)).outcome == "ok"


async def test_waiting_cells_are_bounded(notebook: Notebook) -> None:
    first = await notebook.start(BLOCK)
    await notebook.client.until_output(first, b"started")
    waiting = [await notebook.start("1") for _ in range(protocol.MAX_CELLS)]
    with pytest.raises(RefusedError) as refused:
        await notebook.cell("1")
    assert refused.value.code == "session_busy"
    await notebook.client.send({"t": "cancel", "run": first})
    assert [(await notebook.client.finish(name)).outcome for name in waiting] == ["ok"] * protocol.MAX_CELLS


async def test_contexts_are_bounded_and_one_that_was_restarted_makes_room(client: Client) -> None:
    books = [Notebook(client, f"book {i}") for i in range(protocol.MAX_CONTEXTS + 1)]
    for book in books[:-1]:
        await book.cell("1")
    with pytest.raises(RefusedError) as refused:
        await books[-1].cell("1")
    assert refused.value.code == "session_busy"
    await books[0].restart()
    assert (await books[-1].cell("1")).outcome == "ok"
    for book in books[1:]:
        await book.restart()


@pytest.mark.claim("list_contexts")
async def test_contexts_run_side_by_side_and_are_listed(notebook: Notebook) -> None:
    name = await notebook.start("print('started')\ninput()", stdin=True)
    await notebook.client.until_output(name, b"started")
    other = Notebook(notebook.client, "other")
    assert (await other.cell("1")).outcome == "ok"
    states = await contexts(notebook.client)
    assert (states[notebook.name], states["other"]) == ("busy", "idle")
    await notebook.client.send({"t": "stdin", "run": name, "eof": True}, b"go\n")
    assert (await notebook.client.finish(name)).outcome == "ok"
    await other.restart()
    assert "other" not in await contexts(notebook.client), "nothing of it is left"


@pytest.mark.everywhere
async def test_restart_ends_the_process_all_that_came_from_it_and_the_cell_that_it_runs(notebook: Notebook) -> None:
    # The daemon is there once its parent has ended.
    daemon = "import subprocess\nsubprocess.Popen(['sleep', '3023'], start_new_session=True)"
    await notebook.cell(f"x = 1\n{daemon}")
    assert await notebook.client.processes_with("sleep 3023") != []
    name = await notebook.start(BLOCK)
    await notebook.client.until_output(name, b"started")
    await notebook.restart()
    result = await notebook.client.finish(name)
    assert (result.outcome, result.end["context_state"]) == ("cancelled", "lost")
    assert await notebook.client.processes_with("sleep 3023") == []
    again = await notebook.cell("x")
    assert (b"NameError" in again.err, again.end["context_state"]) == (True, "kept")


async def test_context_that_is_unknown_or_cannot_be_is_refused(client: Client) -> None:
    for context in ("nobody", 5, None):
        with pytest.raises(RefusedError) as refused:
            await client.ask("restart", context=context)
        assert refused.value.code == "not_found"
    for fields in ({"context": ""}, {"context": "x" * 129}, {"context": 5}, {"context": "c", "language": "shell"}):
        with pytest.raises(RefusedError) as refused:
            await client.run("1", **fields)
        assert refused.value.code == "invalid_argument", fields


async def test_environment_arguments_and_folder_of_a_cell_stay(notebook: Notebook) -> None:
    await notebook.client.file("mkdir", path="place")
    show = "import os, sys\nprint(os.environ.get('MINE'), sys.argv[1:], os.path.basename(os.getcwd()))"
    first = await notebook.cell(show)
    second = await notebook.cell(show, env={"MINE": "1"}, args=["a"], cwd="place")
    third = await notebook.cell(show)
    assert first.out.decode() == "None [] workspace\n"
    assert second.out.decode() == third.out.decode() == "1 ['a'] place\n"


async def test_thread_of_an_earlier_cell_writes_to_the_current_one(notebook: Notebook) -> None:
    await notebook.cell(
        "import threading\ngo, gone = threading.Event(), threading.Event()\n"
        "def work():\n    go.wait()\n    print('from the thread')\n    gone.set()\n"
        "threading.Thread(target=work).start()"
    )
    assert (await notebook.cell("go.set()\nassert gone.wait(9)")).out == b"from the thread\n"


async def test_child_that_a_cell_leaves_lives_and_its_output_is_not_the_next_cells(notebook: Notebook) -> None:
    child = "while read line; do echo noise; done; echo end >done.txt"
    await notebook.cell(f"import subprocess\nchild = subprocess.Popen(['sh', '-c', {child!r}], stdin=-1, text=True)")
    code = "for _ in range(1000): child.stdin.write('x\\n')\nchild.stdin.close()\nprint(child.wait())"
    result = await notebook.cell(code)
    assert (result.out, result.err) == (b"0\n", b"")
    assert (await notebook.cell("open('done.txt').read()")).outcome == "ok"


async def test_forked_process_does_not_become_a_second_context(notebook: Notebook) -> None:
    result = await notebook.cell("import os\npid = os.fork()\nif pid: os.waitpid(pid, 0)\nprint(pid == 0)")
    assert sorted(result.out.split()) == [b"False", b"True"]
    assert (await notebook.cell("print('one')")).out == b"one\n"


async def test_child_of_a_cell_that_fails_ends_or_becomes_another_program_is_told_and_ends_alone(
    notebook: Notebook,
) -> None:
    pid = (await notebook.cell("import os, sys\ny = 41\nprint(os.getpid())")).out
    fork = "pid = os.fork()\nif pid == 0: {}\nelse: print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))"
    for code, out, err in (
        ("raise ValueError('kid')", b"1\n", b"ValueError: kid"),
        ("sys.exit(3)", b"3\n", b""),
        ("input()", b"1\n", b"EOFError: EOF when reading a line"),
        ("os.execvp('echo', ['echo', 'exec'])", b"exec\n0\n", b""),
    ):
        result = await notebook.cell(fork.format(code))
        assert (result.outcome, result.out, (result.err.splitlines() or [b""])[-1]) == ("ok", out, err), code
    pool = "import concurrent.futures, multiprocessing\nhow = multiprocessing.get_context('fork')\n"
    pool += "pool = concurrent.futures.ProcessPoolExecutor(2, how)\n"
    assert (await notebook.cell(f"{pool}print(list(pool.map(abs, [-1, -2])))")).out == b"[1, 2]\n"
    assert (await notebook.cell("print(list(pool.map(abs, [-3])))")).out == b"[3]\n"
    await notebook.cell("pool.shutdown()")
    # More than both pipes hold, on both at once.
    both = "text = 'x' * 999 + '\\n'\nfor i in range(1000): print(text, end=''); print(text, end='', file=sys.stderr)"
    result = await notebook.cell(
        f"import subprocess\nsubprocess.run([sys.executable, '-c', {'import sys; ' + both!r}])"
    )
    assert (result.outcome, len(result.out), len(result.err)) == ("ok", 10**6, 10**6)
    children = "open(f'/proc/self/task/{os.getpid()}/children').read()"
    assert (await notebook.cell(f"print(y + 1, os.getpid(), {children})")).out.split() == [b"42", *pid.split()]


DAMAGE = {
    # Whether the context is there in the next cell.
    "import os; os.close(1); os.close(2)": True,
    "import sys; sys.stdout.close(); sys.stderr.close()": True,
    "import sys; sys.__stdout__.close(); sys.stdout = None; del sys.stderr": True,
    "import builtins; builtins.print = builtins.len = builtins.open = builtins.isinstance = None": False,
    "import sys; sys.modules.clear(); sys.path.clear()": True,
    "import os; os.environ.clear(); os.umask(0o777)": True,
    "import time; time.time = time.monotonic = lambda: 0": True,
    "import warnings, asyncio; asyncio.set_event_loop_policy(None); warnings.simplefilter('error')": True,
    "import faulthandler; faulthandler._stack_overflow()": False,
    "import os; os.closerange(3, 256)": False,
    "import signal; signal.signal = None": False,
}


async def test_context_that_its_own_cell_has_damaged_works_or_says_that_it_was_lost(notebook: Notebook) -> None:
    other = Notebook(notebook.client, "other")
    await other.cell("y = 41")
    for code, is_kept in DAMAGE.items():
        await notebook.cell("z = 1")
        result = await notebook.cell(code)
        assert result.end["context_state"] == ("kept" if is_kept else "lost"), (code, result)
        assert result.outcome == ("ok" if is_kept else "error"), code
        assert ("variables are lost" in (result.end["detail"] or "")) is not is_kept
        if "overflow" in code:
            assert result.end["signal"] == "SIGSEGV"
        again = await notebook.cell("import sys\nprint('back')\nprint('err', file=sys.stderr)\nprint('z' in globals())")
        assert (again.out, again.err) == (f"back\n{is_kept}\n".encode(), b"err\n"), code
        await notebook.restart()
    assert await other.text("y") == "41"
    assert (await notebook.client.run("print(1)")).out == b"1\n"
    await other.restart()


async def test_cell_that_swallows_each_interrupt_is_ended(notebook: Notebook) -> None:
    code = "while True:\n  try: __import__('time').sleep(1)\n  except: pass"
    result = await notebook.cell(code, timeout=0.5)
    assert (result.outcome, result.end["context_state"]) == ("timeout", "lost")


async def test_context_whose_folder_was_removed_goes_on_and_can_go_elsewhere(notebook: Notebook) -> None:
    await notebook.cell("import os, shutil\nhome = os.getcwd()\nos.makedirs('d/e')\nos.chdir('d/e')")
    await notebook.cell("shutil.rmtree(f'{home}/d')")
    assert (await notebook.cell("print(1)")).out == b"1\n"
    for code, error in (("1/0", b"ZeroDivisionError: division by zero"), ("open('x', 'w')", b"FileNotFoundError: ")):
        result = await notebook.cell(code)
        assert (result.exit_code, result.err.splitlines()[-1].startswith(error)) == (1, True), result
    result = await notebook.cell("os.chdir(home)\nprint(open('x', 'w').write('there'))")
    assert (result.out, result.end["context_state"]) == (b"5\n", "kept")


async def test_output_over_the_limit_keeps_the_state(notebook: Notebook) -> None:
    await notebook.cell("x = 5")
    result = await notebook.cell("while True: print('y' * 1000)", output_limit=10_000)
    assert (result.outcome, len(result.out), result.end["context_state"]) == ("output_limit", 10_000, "kept")
    after = await notebook.cell("print(x)")
    assert (after.out, after.end["context_state"]) == (b"5\n", "kept")


async def test_figures_of_use_are_each_cells_own(notebook: Notebook) -> None:
    code = "import time\nt = time.process_time()\nwhile time.process_time() - t < 0.2: pass"
    busy, idle = await notebook.cell(code), await notebook.cell("1")
    assert busy.end["cpu_ms"] >= 200
    assert idle.end["cpu_ms"] < 200
    assert busy.end["max_rss_bytes"] > 1_000_000


async def test_stream_that_goes_away_takes_no_context_with_it(sandbox: Sandbox, notebook: Notebook) -> None:
    await notebook.cell("x = 5")
    other = await sandbox.connect()
    result = await Notebook(other, notebook.name).cell("x")
    await other.close()
    assert value(result) == {"text/plain": b"5"}
    assert (await notebook.cell("print(x)")).out == b"5\n"


@pytest.mark.everywhere
async def test_what_an_interrupted_cell_has_started_ends_with_it_and_what_an_earlier_one_left_stays(
    notebook: Notebook,
) -> None:
    server = "import subprocess\nserver = subprocess.Popen(['sleep', '3061'])"
    assert (await notebook.cell(server)).outcome == "ok"
    code = 'sleep 3062 & setsid sleep 3062 & trap "" INT; echo started; sleep 3062'
    result = await notebook.cancelled(f"subprocess.run(['bash', '-c', {code!r}])")
    assert (result.outcome, result.end["context_state"]) == ("cancelled", "kept")
    assert await notebook.client.processes_with("sleep 3062") == []
    assert len(await notebook.client.processes_with("sleep 3061")) == 1
    assert (await notebook.cell("server.poll() is None")).outcome == "ok"


async def test_second_interrupt_is_for_what_the_cell_has_started_alone(notebook: Notebook) -> None:
    server = "import subprocess, time\nserver = subprocess.Popen(['sleep', '3068'])"
    assert (await notebook.cell(server)).outcome == "ok"
    deaf = "try:\n    print('started', flush=True)\n    time.sleep(99)\nexcept KeyboardInterrupt:\n    time.sleep(99)"
    result = await notebook.cancelled(deaf)
    assert (result.outcome, result.end["context_state"]) == ("cancelled", "kept")
    assert await notebook.text("server.poll() is None") == "True"


async def test_first_cell_of_a_context_ends_with_what_it_has_started(notebook: Notebook) -> None:
    result = await notebook.cancelled("import subprocess\nsubprocess.run(['sh', '-c', 'echo started; sleep 3063'])")
    assert (result.outcome, result.end["context_state"]) == ("cancelled", "kept")
    assert await notebook.client.processes_with("sleep 3063") == []


async def test_streams_that_a_cell_has_closed_are_there_again_in_the_next_one(notebook: Notebook) -> None:
    for name in ("stdout", "stderr"):
        await notebook.cell(f"import sys\nsys.{name} = open('o.txt', 'w')\nsys.{name}.close()")
        result = await notebook.cell("import sys\nprint('out')\nprint('err', file=sys.stderr)")
        assert (result.out, result.err) == (b"out\n", b"err\n"), name
    await notebook.cell(
        "class Loud:\n    def write(self, text): sys.__stdout__.write(text.upper())\nsys.stdout = Loud()"
    )
    assert (await notebook.cell("print('its own')")).out == b"ITS OWN\n"
