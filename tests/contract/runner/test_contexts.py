"""Cells of a context share its variables; each is a run of its own."""

from typing import Any

import pytest

from sandpod_runner.protocol import messages as protocol
from support.runner.harness import Client, RefusedError, Sandbox
from support.runner.notebook import RUNNERS, Notebook, value

BLOCK = "print('started')\nimport time\ntime.sleep(99)"
__all__ = ["RUNNERS"]


async def contexts(client: Client) -> dict[str, str]:
    await client.send({"t": "list", "id": 1})
    reply = await client.next()
    assert reply is not None
    rows = reply.header["contexts"]
    assert all(set(row) == {"name", "language", "state", "started"} for row in rows)
    return {row["name"]: row["state"] for row in rows}


@pytest.mark.everywhere
async def test_variables_stay_and_the_last_value_comes_back(notebook: Notebook) -> None:
    first = await notebook.cell("x = 20\ndef f(): return x * 2")
    second = await notebook.cell("print('text')\nf() + 2")
    assert (first.outcome, first.exit_code, first.end["context_state"], value(first)) == ("ok", 0, "kept", {})
    assert (second.out, value(second)) == (b"text\n", {"text/plain": b"42"})


async def test_contexts_share_nothing_and_a_run_without_one_is_fresh(notebook: Notebook) -> None:
    await notebook.cell("x = 1")
    other = Notebook(notebook.client, "other")
    assert b"NameError" in (await other.cell("x")).err
    fresh = await notebook.client.run("x")
    assert (b"NameError" in fresh.err, fresh.end["context_state"]) == (True, None)
    await other.restart()


@pytest.mark.parametrize(
    "code",
    [
        "x = 1",
        "None",
        "1;",
        "(1) ;  # hush",
        "'ü';",
        "def f(): pass",
        "",
        "# nothing",
        "print(1)",
        "for _ in range(2): 5",
    ],
)
async def test_cell_without_a_last_value_has_no_result(notebook: Notebook, code: str) -> None:
    result = await notebook.cell(code)
    assert (result.outcome, value(result)) == ("ok", {})


async def test_semicolon_elsewhere_keeps_no_value_back(notebook: Notebook) -> None:
    assert value(await notebook.cell("x = 1; x  # not this;")) == {"text/plain": b"1"}
    assert value(await notebook.cell("(\r\n';')")) == {"text/plain": b"';'"}


async def test_value_comes_in_all_its_forms(notebook: Notebook) -> None:
    code = (
        "class Rich:\n"
        "    def __repr__(self): return 'plain ü'\n"
        "    def _repr_html_(self): return '<b>ü</b>'\n"
        "    def _repr_png_(self): return b'png'\n"
        "    def _repr_jpeg_(self): return b'jpeg'\n"
        "    def _repr_svg_(self): return '<svg/>'\n"
        "    def _repr_json_(self): return {'a': 1}, {'expanded': True}\n"
        "    def _repr_latex_(self): raise ValueError\n"
        "Rich()\n"
    )
    assert value(await notebook.cell(code)) == {
        "text/plain": "plain ü".encode(),
        "text/html": "<b>ü</b>".encode(),
        "image/png": b"png",
        "image/svg+xml": b"<svg/>",
        "application/json": b'{"a": 1}',
    }
    assert set(value(await notebook.cell("Rich"))) == {"text/plain"}


async def test_bundle_of_forms_comes_too(notebook: Notebook) -> None:
    bundle = {"text/plain": "not this", "text/html": "<i>", "image/png": "cG5n", "application/x-own": "no"}
    code = f"class B:\n    def __repr__(self): return 'b'\n    def _repr_mimebundle_(self, **_): return {bundle!r}\nB()"
    assert value(await notebook.cell(code)) == {"text/plain": b"b", "text/html": b"<i>", "image/png": b"png"}


async def test_large_text_is_cut_and_other_large_forms_are_left_out_and_counted(notebook: Notebook) -> None:
    text = value(await notebook.cell("'ü' * 1_000_000"))["text/plain"]
    assert len(text) <= protocol.MAX_RESULT
    assert text.decode().endswith("ü... (2000002 bytes in all)")
    code = "class H:\n    def _repr_html_(self): return 'x' * 600_000\n    def __repr__(self): return 'h'\nH()"
    result = await notebook.cell(code)
    assert (value(result), result.end["displays_dropped"]) == ({"text/plain": b"h"}, 1)


async def test_exit_ends_the_cell_and_not_the_context(notebook: Notebook) -> None:
    await notebook.cell("import sys\nx = 5")
    codes = [await notebook.cell(code) for code in ("sys.exit(3)", "sys.exit()", "sys.exit('bye')", "exit(2)")]
    assert [(code.outcome, code.exit_code) for code in codes] == [("error", 3), ("ok", 0), ("error", 1), ("error", 2)]
    assert codes[2].err == b"bye\n"
    assert (await notebook.cell("print(x)")).out == b"5\n"


async def test_traceback_shows_lines_of_all_cells_and_nothing_of_the_runner(notebook: Notebook) -> None:
    await notebook.cell("def f():\n    raise ValueError('needle')  # first")
    result = await notebook.cell("x = 1\nf()  # second")
    lines = result.err.decode().splitlines()
    assert (result.outcome, result.exit_code) == ("error", 1)
    assert lines[:3] == [
        "Traceback (most recent call last):",
        '  File "<cell 2>", line 2, in <module>',
        "    f()  # second",
    ]
    assert '  File "<cell 1>", line 2, in f' in lines
    assert "    raise ValueError('needle')  # first" in lines
    assert lines[-1] == "ValueError: needle"
    assert "sandpod_runner" not in result.err.decode()
    assert (await notebook.cell("x")).outcome == "ok"


async def test_syntax_error_and_failing_repr_are_told_as_python_tells_them(notebook: Notebook) -> None:
    syntax = await notebook.cell("x = 1\ny = ;\n")
    assert syntax.err.decode().splitlines() == [
        '  File "<cell 1>", line 2', "    y = ;", "        ^", "SyntaxError: invalid syntax"
    ]  # fmt: skip
    assert b"SyntaxError" in (await notebook.cell(b"1\0")).err
    failing = await notebook.cell("class C:\n    def __repr__(self): raise ValueError('no text')\nC()")
    assert (failing.exit_code, failing.err.splitlines()[-1]) == (1, b"ValueError: no text")


async def test_top_level_await_has_one_event_loop_that_stays(notebook: Notebook) -> None:
    first = await notebook.cell("import asyncio\nloop = asyncio.get_running_loop()\nawait asyncio.sleep(0, 'value')")
    assert value(first) == {"text/plain": b"'value'"}
    second = await notebook.cell("await asyncio.sleep(0)\nloop is asyncio.get_running_loop()")
    assert value(second) == {"text/plain": b"True"}


@pytest.mark.promise("top-level-await")
async def test_asyncio_run_works_before_and_after_an_await(notebook: Notebook) -> None:
    run = "import asyncio; asyncio.run(asyncio.sleep(0)); print('hi')"
    results = [await notebook.cell(code) for code in (run, "await asyncio.sleep(0)", run, "await asyncio.sleep(0)")]
    assert [result.outcome for result in results] == ["ok"] * 4
    both = await notebook.cell("await asyncio.sleep(0)\nasyncio.run(asyncio.sleep(0))")
    assert both.exit_code == 1
    assert b"await the coroutine there, in place of asyncio.run()" in both.err


async def test_task_that_a_cell_leaves_goes_on_in_the_next_one(notebook: Notebook) -> None:
    first = (
        "import asyncio\nevent, done = asyncio.Event(), asyncio.Event()\n"
        "async def work():\n    await event.wait()\n    print('worked')\n    done.set()\n"
        "task = asyncio.create_task(work())\nawait asyncio.sleep(0)"
    )
    await notebook.cell(first)
    assert (await notebook.cell("event.set()\nawait done.wait()")).out == b"worked\n"


@pytest.mark.parametrize("code", [BLOCK, f"import asyncio\nawait asyncio.sleep(0)\n{BLOCK}", "while True: pass"])
async def test_timeout_interrupts_the_cell_and_keeps_the_state(notebook: Notebook, code: str) -> None:
    await notebook.cell("x = 5")
    result = await notebook.cell(code, timeout=1)
    assert (result.outcome, result.exit_code, result.end["context_state"]) == ("timeout", 1, "kept")
    assert result.end["detail"] == "It was stopped after 1 seconds. The context keeps its variables."
    assert b"KeyboardInterrupt" in result.err
    assert (await notebook.cell("x")).frames[1].payload == b"5"


async def test_cancel_interrupts_what_the_cell_waits_for(notebook: Notebook) -> None:
    await notebook.cell("x = 5")
    name = await notebook.start("import os\nprint('started')\nos.system('sleep 3021')")
    await notebook.client.until_output(name, b"started")
    await notebook.client.send({"t": "cancel", "run": name})
    result = await notebook.client.finish(name)
    assert (result.outcome, result.end["context_state"]) == ("cancelled", "kept")
    assert await notebook.client.processes_with("sleep 3021") == []
    assert value(await notebook.cell("x")) == {"text/plain": b"5"}


async def test_cell_that_does_not_listen_is_killed_and_the_loss_is_said(notebook: Notebook) -> None:
    await notebook.cell("x = 5")
    deaf = "import signal, os, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nos.system('sleep 3022 &')\n"
    result = await notebook.cell(f"{deaf}print('deaf')\nwhile True: pass", timeout=1)
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


@pytest.mark.parametrize("context", ["nobody", 5, None])
async def test_restart_of_an_unknown_context_is_not_found(client: Client, context: object) -> None:
    await client.send({"t": "restart", "id": 8, "context": context})
    answer = await client.next()
    assert answer is not None
    assert (answer.kind, answer.header["id"], answer.header["code"]) == ("error", 8, "not_found")


@pytest.mark.parametrize(
    "fields",
    [
        {"context": ""},
        {"context": "x" * 129},
        {"context": 5},
        {"context": "c", "language": "shell"},
    ],
)
async def test_context_that_cannot_be_is_refused(client: Client, fields: dict[str, Any]) -> None:
    with pytest.raises(RefusedError) as refused:
        await client.run("1", **fields)
    assert refused.value.code == "invalid_argument"


async def test_environment_arguments_and_folder_of_a_cell_stay(notebook: Notebook) -> None:
    await notebook.client.file("mkdir", path="place")
    show = "import os, sys\nprint(os.environ.get('MINE'), sys.argv[1:], os.path.basename(os.getcwd()))"
    first = await notebook.cell(show)
    second = await notebook.cell(show, env={"MINE": "1"}, args=["a"], cwd="place")
    third = await notebook.cell(show)
    assert first.out.decode() == "None [] workspace\n"
    assert second.out.decode() == third.out.decode() == "1 ['a'] place\n"


async def test_input_is_each_cells_own(notebook: Notebook) -> None:
    first = await notebook.cell("print(input())", input=b"one\nleft\n")
    second = await notebook.cell("import sys\nprint(sys.stdin.read())", input=b"two")
    third = await notebook.cell("input()")
    assert (first.out, second.out) == (b"one\n", b"two\n")
    assert b"EOFError" in third.err


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


async def test_output_over_the_limit_keeps_the_state(notebook: Notebook) -> None:
    await notebook.cell("x = 5")
    result = await notebook.cell("while True: print('y' * 1000)", output_limit=10_000)
    assert (result.outcome, len(result.out), result.end["context_state"]) == ("output_limit", 10_000, "kept")
    after = await notebook.cell("print(x)")
    assert (after.out, after.end["context_state"]) == (b"5\n", "kept")


async def test_figures_come_with_the_cell_that_draws_them(notebook: Notebook) -> None:
    await notebook.cell("import matplotlib.pyplot as plt", timeout=60)
    first = await notebook.cell("fig, ax = plt.subplots()\nax.plot([1, 2])\nfig")
    second = await notebook.cell("plt.show()")
    third = await notebook.cell("ax.set_title('two')\nfig")
    shown = [[frame.kind for frame in result.frames if frame.kind == "display"] for result in (first, second, third)]
    assert shown == [["display"], [], []]
    assert set(value(first)) == {"text/plain"}
    assert value(third)["image/png"].startswith(b"\x89PNG")


async def test_figures_of_use_are_each_cells_own(notebook: Notebook) -> None:
    code = "import time\nt = time.process_time()\nwhile time.process_time() - t < 0.2: pass"
    busy, idle = await notebook.cell(code), await notebook.cell("1")
    assert busy.end["cpu_ms"] >= 200
    assert idle.end["cpu_ms"] < 200
    assert busy.end["max_rss_bytes"] > 1_000_000


async def test_nonsense_from_a_contexts_process_is_its_own_loss(notebook: Notebook) -> None:
    code = (
        "import os, socket\n"
        "for fd in map(int, os.listdir('/proc/self/fd')):\n"
        "    try: socket.socket(fileno=os.dup(fd)).send(b'nonsense')\n"
        "    except OSError: pass\n"
        "import time\ntime.sleep(99)"
    )
    result = await notebook.cell(code)
    assert (result.outcome, result.end["context_state"]) == ("error", "lost")
    assert (await notebook.cell("print(1)")).out == b"1\n"


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
    code = "subprocess.run(['bash', '-c', 'sleep 3062 & setsid sleep 3062 & trap \"\" INT; sleep 3062'])"
    result = await notebook.cell(code, timeout=1)
    assert (result.outcome, result.end["context_state"]) == ("timeout", "kept")
    assert await notebook.client.processes_with("sleep 3062") == []
    assert len(await notebook.client.processes_with("sleep 3061")) == 1
    assert (await notebook.cell("server.poll() is None")).outcome == "ok"


async def test_first_cell_of_a_context_ends_with_what_it_has_started(notebook: Notebook) -> None:
    result = await notebook.cell("import subprocess\nsubprocess.run(['sleep', '3063'])", timeout=1)
    assert (result.outcome, result.end["context_state"]) == ("timeout", "kept")
    assert await notebook.client.processes_with("sleep 3063") == []


@pytest.mark.parametrize("name", ["stdout", "stderr"])
async def test_stream_that_a_cell_has_closed_is_there_again_in_the_next_one(notebook: Notebook, name: str) -> None:
    await notebook.cell(f"import sys\nsys.{name} = open('o.txt', 'w')\nsys.{name}.close()")
    result = await notebook.cell("import sys\nprint('out')\nprint('err', file=sys.stderr)")
    assert (result.out, result.err) == (b"out\n", b"err\n")
