"""What the code of a Python context's cells gives, with IPython and without it: values, errors, exits, interrupts."""

import pytest

from sandpod_runner.protocol import messages as protocol
from support.runner.notebook import RUNNERS, Notebook, value

HOSTILE = {
    # The value's text, or the last line of an error of the expression's own.
    "10**5000": "ValueError: Exceeds the limit ",
    "v = []\nfor _ in range(100_000): v = [v]\nv": "RecursionError: maximum recursion depth exceeded",
    "a = []; a.append(a); a": "[[...]]",
    "Shown(__repr__=lambda s: 5)": "TypeError: __repr__ returned non-string (type int)",
    "Shown(__repr__=lambda s: '\\ud83d')": "\\ud83d",
    "Shown(_repr_html_=lambda s: 1 / 0)": "shown",
    "Shown(_repr_html_=lambda s: 5)": "shown",
    "Shown(_repr_mimebundle_=lambda s, **_: 1 / 0)": "shown",
    "Shown(_repr_json_=lambda s: v)": "shown",
    "Meta('M', (), {'__repr__': lambda s: 'shown'})()": "shown",
    "from unittest.mock import MagicMock; MagicMock()": "<MagicMock id=",
    "Shown(__getattr__=lambda s, n: lambda *a, **k: s)": "shown",
    "Shown(__class__=property(lambda s: 1 / 0))": "ZeroDivisionError: division by zero",
    "...": "Ellipsis",
    "raise type('E', (Exception,), {'__str__': lambda s: 1 / 0})()": "E: <exception str() failed>",
    "raise type('E', (Exception,), {'__class__': property(lambda s: 1 / 0)})()": "E",
}
HOSTILE_TYPES = (
    "y = 41\n"
    "class Meta(type):\n    def __getattr__(cls, name): raise KeyError(name)\n"
    "def Shown(**names): return type('Shown', (), {'__repr__': lambda s: 'shown', **names})()\n"
)
BLOCK = "print('started')\nimport time\ntime.sleep(99)"
WITHOUT_VALUE = [
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
]
RICH = (
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
__all__ = ["RUNNERS"]


@pytest.mark.everywhere
async def test_variables_stay_and_the_last_value_comes_back(notebook: Notebook) -> None:
    first = await notebook.cell("x = 20\ndef f(): return x * 2")
    second = await notebook.cell("print('text')\nf() + 2")
    assert (first.outcome, first.exit_code, first.end["context_state"], value(first)) == ("ok", 0, "kept", {})
    assert (second.out, value(second)) == (b"text\n", {"text/plain": b"42"})
    results = {code: await notebook.cell(code) for code in WITHOUT_VALUE}
    assert {code: (result.outcome, value(result)) for code, result in results.items()} == dict.fromkeys(
        WITHOUT_VALUE, ("ok", {})
    )
    assert await notebook.text("x = 1; x  # not this;") == "1"
    assert await notebook.text("(\r\n';')") == "';'"


async def test_value_comes_in_all_its_forms(notebook: Notebook) -> None:
    assert value(await notebook.cell(RICH)) == {
        "text/plain": "plain ü".encode(),
        "text/html": "<b>ü</b>".encode(),
        "image/png": b"png",
        "image/svg+xml": b"<svg/>",
        "application/json": b'{"a": 1}',
    }
    assert set(value(await notebook.cell("Rich"))) == {"text/plain"}
    bundle = {"text/plain": "not this", "text/html": "<i>", "image/png": "cG5n", "application/x-own": "no"}
    code = f"class B:\n    def __repr__(self): return 'b'\n    def _repr_mimebundle_(self, **_): return {bundle!r}\nB()"
    assert value(await notebook.cell(code)) == {"text/plain": b"b", "text/html": b"<i>", "image/png": b"png"}
    code = "class Value:\n    def _repr_json_(self): return {'a': float('nan')}\nValue()"
    assert set(value(await notebook.cell(code))) == {"text/plain"}


async def test_large_text_is_cut_and_other_large_forms_are_left_out_and_counted(notebook: Notebook) -> None:
    text = value(await notebook.cell("'ü' * 1_000_000"))["text/plain"]
    assert len(text) <= protocol.MAX_RESULT
    assert text.decode().endswith("ü... (2000002 bytes in all)")
    code = "class H:\n    def _repr_html_(self): return 'x' * 600_000\n    def __repr__(self): return 'h'\nH()"
    result = await notebook.cell(code)
    assert (value(result), result.end["displays_dropped"]) == ({"text/plain": b"h"}, 1)


async def test_value_or_error_that_can_not_be_shown_is_told_and_harms_nothing(notebook: Notebook) -> None:
    await notebook.cell(HOSTILE_TYPES)
    for code, text in HOSTILE.items():
        result = await notebook.cell(code)
        forms = value(result)
        assert set(forms) <= {"text/plain"}, code
        last = (result.err.decode().splitlines() or [""])[-1]
        told = forms["text/plain"].decode() if result.outcome == "ok" else last.removeprefix("__main__.")
        assert told.startswith(text), (code, result)
        assert (result.end["context_state"], await notebook.text("y")) == ("kept", "41"), code
    for method in ("__repr__", "_repr_mimebundle_"):
        late = await notebook.cell(f"import time\nShown({method}=lambda s, **_: time.sleep(99))", timeout=0.5)
        assert (late.outcome, late.end["context_state"], await notebook.text("y")) == ("timeout", "kept", "41"), method
    # A coroutine's warning, that it was not awaited, comes when it is given up: with IPython that is later.
    assert value(await notebook.cell("async def f(): pass\nf()"))["text/plain"].startswith(b"<coroutine object f at ")


async def test_exit_ends_the_cell_and_not_the_context(notebook: Notebook) -> None:
    await notebook.cell("import sys\nx = 5")
    codes = [await notebook.cell(code) for code in ("sys.exit(3)", "sys.exit()", "sys.exit('bye')", "exit(2)")]
    assert [(code.outcome, code.exit_code) for code in codes] == [("error", 3), ("ok", 0), ("error", 1), ("error", 2)]
    assert codes[2].err == b"bye\n"
    assert (await notebook.cell("print(x)")).out == b"5\n"


async def test_error_shows_lines_of_all_cells_and_nothing_of_the_runner(notebook: Notebook) -> None:
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
    syntax = await notebook.cell("x = 1\ny = ;\n")
    assert syntax.err.decode().splitlines() == [
        '  File "<cell 3>", line 2', "    y = ;", "        ^", "SyntaxError: invalid syntax"
    ]  # fmt: skip
    assert b"SyntaxError" in (await notebook.cell(b"1\0")).err
    failing = await notebook.cell("class C:\n    def __repr__(self): raise ValueError('no text')\nC()")
    assert (failing.exit_code, failing.err.splitlines()[-1]) == (1, b"ValueError: no text")
    assert await notebook.text("x") == "1"


async def test_top_level_await_has_one_event_loop_that_stays_with_the_tasks_in_it(notebook: Notebook) -> None:
    first = await notebook.text("import asyncio\nloop = asyncio.get_running_loop()\nawait asyncio.sleep(0, 'value')")
    assert first == "'value'"
    assert await notebook.text("await asyncio.sleep(0)\nloop is asyncio.get_running_loop()") == "True"
    task = (
        "event, done = asyncio.Event(), asyncio.Event()\n"
        "async def work():\n    await event.wait()\n    print('worked')\n    done.set()\n"
        "task = asyncio.create_task(work())\nawait asyncio.sleep(0)"
    )
    await notebook.cell(task)
    assert (await notebook.cell("event.set()\nawait done.wait()")).out == b"worked\n"


@pytest.mark.promise("top-level-await")
async def test_asyncio_run_works_before_and_after_an_await(notebook: Notebook) -> None:
    run = "import asyncio; asyncio.run(asyncio.sleep(0)); print('hi')"
    results = [await notebook.cell(code) for code in (run, "await asyncio.sleep(0)", run, "await asyncio.sleep(0)")]
    assert [result.outcome for result in results] == ["ok"] * 4
    both = await notebook.cell("await asyncio.sleep(0)\nasyncio.run(asyncio.sleep(0))")
    assert both.exit_code == 1
    assert b"await the coroutine there, in place of asyncio.run()" in both.err


async def test_timeout_and_cancel_interrupt_the_cell_and_keep_the_state(notebook: Notebook) -> None:
    await notebook.cell("x = 5")
    late = await notebook.cell(BLOCK, timeout=1)
    assert (late.outcome, late.exit_code, late.end["context_state"]) == ("timeout", 1, "kept")
    assert late.end["detail"] == "It was stopped after 1 seconds. The context keeps its variables."
    assert b"KeyboardInterrupt" in late.err
    awaiting = f"import asyncio\nawait asyncio.sleep(0)\n{BLOCK}"
    for code in (awaiting, "print('started')\nwhile True: pass", "import os\nos.system('echo started; sleep 3021')"):
        result = await notebook.cancelled(code)
        assert (result.outcome, result.end["context_state"]) == ("cancelled", "kept"), code
    assert await notebook.client.processes_with("sleep 3021") == []
    assert await notebook.text("x") == "5"


async def test_input_is_each_cells_own(notebook: Notebook) -> None:
    first = await notebook.cell("print(input())", input=b"one\nleft\n")
    second = await notebook.cell("import sys\nprint(sys.stdin.read())", input=b"two")
    third = await notebook.cell("input()")
    assert (first.out, second.out) == (b"one\n", b"two\n")
    assert b"EOFError" in third.err
