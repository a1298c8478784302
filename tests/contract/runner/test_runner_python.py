"""Python code runs as `python3 file` would run it."""

import pytest

from support.runner.harness import Client

EXITS = {
    "import sys; sys.exit(7)": (7, b""),
    'import sys; sys.exit("bye")': (1, b"bye\n"),
    "import sys; sys.exit(256)": (0, b""),
    "import sys; sys.exit(-1)": (255, b""),
    "import sys; sys.exit()": (0, b""),
    "raise SystemExit(3)": (3, b""),
    "import os; os._exit(9)": (9, b""),
    "x = 1": (0, b""),
    "import asyncio": (0, b""),
    "": (0, b""),
}


@pytest.mark.promise("exit-codes")
@pytest.mark.claim("run_python_code(code)")
async def test_exit_codes_are_those_of_plain_python(client: Client) -> None:
    for code, (exit_code, err) in EXITS.items():
        result = await client.run(code)
        assert (result.exit_code, result.err, result.out) == (exit_code, err, b""), code
        assert result.outcome == ("error" if exit_code else "ok")


async def test_traceback_shows_lines_of_the_program_and_nothing_of_the_runner(client: Client) -> None:
    result = await client.run("def f():\n    raise ValueError('needle')  # here\n\nf()")
    lines = result.err.decode().splitlines()
    assert result.exit_code == 1
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[1].endswith('.py", line 4, in <module>')
    assert "    raise ValueError('needle')  # here" in lines
    assert lines[-1] == "ValueError: needle"
    assert "sandpod_runner" not in result.err.decode()


async def test_traceback_after_an_await_has_no_event_loop_in_it(client: Client) -> None:
    result = await client.run("import asyncio\nawait asyncio.sleep(0)\n1 / 0")
    lines = result.err.decode().splitlines()
    assert lines[1].endswith('.py", line 3, in <module>')
    assert lines[-1] == "ZeroDivisionError: division by zero"
    assert "asyncio/" not in result.err.decode()


async def test_syntax_error_is_told_as_python_tells_it(client: Client) -> None:
    result = await client.run("x = 1\ny = ;\n")
    lines = result.err.decode().splitlines()
    assert lines[0].endswith('.py", line 2')
    assert lines[1:] == ["    y = ;", "        ^", "SyntaxError: invalid syntax"]
    assert result.exit_code == 1


async def test_nul_byte_in_the_code_is_a_syntax_error(client: Client) -> None:
    result = await client.run(b"1\0 + 1")
    assert result.exit_code == 1
    assert b"SyntaxError" in result.err


@pytest.mark.promise("top-level-await")
@pytest.mark.claim("run_python_code(code)")
async def test_top_level_await_and_asyncio_run_both_work(client: Client) -> None:
    awaits = await client.run('import asyncio; await asyncio.sleep(0.01); print("ok")')
    runs = await client.run('import asyncio; asyncio.run(asyncio.sleep(0)); print("hi")')
    assert (awaits.out, runs.out) == (b"ok\n", b"hi\n")


@pytest.mark.claim("run_python_code(stdin)", "run_python_code(args)", "run_python_code(env)")
async def test_arguments_environment_and_input_reach_the_program(client: Client) -> None:
    code = "import sys, os\nprint(sys.argv[1:], os.environ['MY_VAR'], sys.stdin.read())"
    result = await client.run(code, args=["a b", "--c", "é"], env={"MY_VAR": "v w"}, input="ünï\n2".encode())
    assert result.out.decode() == "['a b', '--c', 'é'] v w ünï\n2\n"


async def test_modules_of_the_working_directory_can_be_imported(client: Client) -> None:
    await client.upload("deep/helper.py", b"answer = 42\n")
    result = await client.run("import helper, os; print(helper.answer, os.getcwd())", cwd="deep")
    assert result.out.decode() == f"42 {client.hello['workspace']}/deep\n"
    entries = (await client.file("list", path="deep")).header["entries"]
    assert [entry["path"] for entry in entries] == ["deep/helper.py"]


@pytest.mark.everywhere
async def test_code_is_a_real_file_outside_the_workspace_and_gone_afterwards(client: Client) -> None:
    code = "import inspect\ndef f(): return 1\nprint(inspect.getsource(f), end='')\nprint(__file__)"
    result = await client.run(code)
    source, file = result.out.decode().splitlines()
    assert source == "def f(): return 1"
    assert not file.startswith(f"{client.hello['workspace']}/")
    assert (
        file not in (await client.run(f"import os; print([p for p in [{file!r}] if os.path.exists(p)])")).out.decode()
    )


@pytest.mark.everywhere
async def test_multiprocessing_works(client: Client) -> None:
    for method in ("fork", "spawn", "forkserver"):
        code = (
            "import multiprocessing as mp\n"
            "def square(x): return x * x\n"
            "if __name__ == '__main__':\n"
            f"    with mp.get_context('{method}').Pool(2) as pool:\n"
            "        print(pool.map(square, range(4)))\n"
        )
        result = await client.run(code)
        assert (result.out, result.err, result.exit_code) == (b"[0, 1, 4, 9]\n", b"", 0), method


async def test_end_of_the_program_is_that_of_the_interpreter(client: Client) -> None:
    code = (
        "import atexit, threading, time\n"
        "class Last:\n    def __del__(self): print('finalized')\n"
        "last = Last()\n"
        "atexit.register(print, 'at exit')\n"
        "threading.Thread(target=lambda: (time.sleep(0.05), print('thread'))).start()\n"
        "threading.Thread(target=time.sleep, args=(99,), daemon=True)\n"
        "open_file = open('unclosed.txt', 'w')\n"
        "open_file.write('kept')\n"
        "print('main')\n"
    )
    result = await client.run(code)
    assert result.out == b"main\nthread\nat exit\nfinalized\n"
    assert result.exit_code == 0
    assert await client.content("unclosed.txt") == b"kept"


async def test_open_files_are_written_beside_a_daemon_thread_too(client: Client) -> None:
    code = (
        "import threading, time\n"
        "threading.Thread(target=time.sleep, args=(99,), daemon=True).start()\n"
        "open_file = open('daemon.txt', 'w')\n"
        "open_file.write('kept')\n"
    )
    result = await client.run(code)
    assert (result.outcome, result.err) == ("ok", b"")
    assert await client.content("daemon.txt") == b"kept"


async def test_runs_share_no_variables_and_no_random_numbers(client: Client) -> None:
    first = await client.run("import random; secret = 1; print(random.random())")
    second = await client.run("import random; print(random.random()); print('secret' in globals())")
    assert first.out.splitlines()[0] != second.out.splitlines()[0]
    assert second.out.endswith(b"False\n")


@pytest.mark.promise("input")
@pytest.mark.claim("run_python_code(stdin)")
async def test_input_without_any_given_is_at_its_end(client: Client) -> None:
    result = await client.run('input("name? ")')
    assert result.exit_code == 1
    assert result.out == b"name? "
    assert b"EOFError" in result.err


async def test_interrupt_of_its_own_ends_it_as_python_does(client: Client) -> None:
    result = await client.run("import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(99)")
    assert (result.end["signal"], result.exit_code) == ("SIGINT", None)
    assert b"KeyboardInterrupt" in result.err


async def test_hook_for_exceptions_is_the_programs_own(client: Client) -> None:
    result = await client.run("import sys\nsys.excepthook = lambda kind, *_: print('hooked', kind.__name__)\n1 / 0")
    assert (result.out, result.exit_code) == (b"hooked ZeroDivisionError\n", 1)


async def test_main_module_is_the_program(client: Client) -> None:
    code = "import sys, __main__\nx = 5\nprint(__name__, __main__.x, sys.modules['__main__'].__dict__ is globals())"
    assert (await client.run(code)).out == b"__main__ 5 True\n"


async def test_figures_are_measured(client: Client) -> None:
    result = await client.run("import time\nt = time.process_time()\nwhile time.process_time() - t < 0.2: pass\n")
    assert result.end["cpu_ms"] >= 200
    assert result.end["duration_ms"] >= 200
    small = await client.run("pass")
    large = await client.run("b = bytearray(60_000_000)")
    assert large.end["max_rss_bytes"] - small.end["max_rss_bytes"] > 50_000_000
