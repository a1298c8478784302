"""What contexts can do where there is IPython, and that it leaves nothing behind. What both kinds do: test_contexts."""

import os
from pathlib import Path

import pytest

from support.runner.harness import Client, running
from support.runner.notebook import Notebook, shown, value

TRANSLATED = {
    "%timeit -n 2 -r 1 pass": (b"loop", b""),
    "%%time\nx = 1": (b"CPU times", b""),
    "%%bash\necho hi; echo no >&2": (b"hi\n", b"no\n"),
    "!echo hi; echo no >&2": (b"hi\n", b"no\n"),
    "x = !echo a; echo b\nprint(x)": (b"['a', 'b']\n", b""),
    "word = 'hi'\nfor _ in range(2):\n    !echo {word} $word": (b"hi hi\nhi hi\n", b""),
    "%%writefile it.txt\ntext\n": (b"Writing it.txt\n", b""),
    "%%capture held\nprint('x')\ndisplay(1)": (b"", b""),
    "%matplotlib inline": (b"", b""),
    "%cd /tmp": (b"/tmp\n", b""),
    "    indented = 1": (b"", b""),
}


async def test_what_is_no_python_is_translated(notebook: Notebook) -> None:
    for code, (out, err) in TRANSLATED.items():
        result = await notebook.cell(code)
        assert (result.outcome, result.err, shown(result)) == ("ok", err, []), code
        assert out in result.out
    captured = await notebook.cell("held.show()")
    assert (captured.out, shown(captured)) == (b"x\n", [{"text/plain": b"1"}])


async def test_last_value_has_a_name_and_a_reset_leaves_a_context_as_new(notebook: Notebook) -> None:
    assert await notebook.text("from IPython import get_ipython as g\nget_ipython() is g() is not None") == "True"
    assert value(await notebook.cell("%%time\n2 + 3")) == {"text/plain": b"5"}
    assert await notebook.text("_ + 1") == "6"
    result = await notebook.cell("x = 1\n%reset -f\nimport builtins; print('x' in globals(), open is builtins.open)")
    assert (result.out, result.err) == (b"False True\n", b"")
    assert (await notebook.cell("exit(3)")).exit_code == 3
    assert await notebook.text("get_ipython() is not None") == "True"
    (help_text,) = shown(await notebook.cell("len?"))
    assert b"number of items" in help_text["text/plain"]
    assert b"\x1b[" not in help_text["text/plain"]


async def test_magic_that_fails_fails_the_cell_in_few_words(notebook: Notebook) -> None:
    syntax = await notebook.cell("\n\n%time 1\ny = ;")
    assert syntax.err.decode().splitlines()[:2] == ['  File "<cell 1>", line 4', "    y = ;"]
    unknown = await notebook.cell("%nosuch")
    assert (unknown.exit_code, unknown.err) == (1, b"UsageError: Line magic function `%nosuch` not found.\n")
    failed = await notebook.cell("%%bash\nexit 3")
    assert failed.outcome == "error"
    assert failed.err.splitlines()[-1].startswith(b"subprocess.CalledProcessError: ")
    await notebook.cell("def f(): raise ValueError('needle')")
    inside = (await notebook.cell("%timeit -n 1 -r 1 f()")).err.decode()
    assert "def f(): raise ValueError('needle')" in inside
    assert "IPython" not in inside
    assert "\x1b[" not in inside


async def test_cancel_interrupts_a_command_and_keeps_the_state(notebook: Notebook) -> None:
    await notebook.cell("x = 5")
    for code in ("!echo started; sleep 3024", "%%bash\necho started; sleep 3024"):
        result = await notebook.cancelled(code)
        assert (result.outcome, result.end["context_state"]) == ("cancelled", "kept")
    assert await notebook.client.processes_with("sleep 3024") == []
    assert await notebook.text("x") == "5"


async def test_registered_forms_come_with_the_others_and_extensions_are_told_of_cells(notebook: Notebook) -> None:
    await notebook.cell(
        "class T:\n    def __repr__(self): return 't'\n"
        "formatters = get_ipython().display_formatter.formatters\n"
        "formatters['text/html'].for_type(T, lambda t: '<t>')\n"
        "formatters['text/latex'].for_type(T, lambda t: 1 / 0)"
    )
    forms = {"text/plain": b"t", "text/html": b"<t>"}
    result = await notebook.cell("display(T())\nT()")
    assert (shown(result), value(result), result.err) == ([forms], forms, b"")
    await notebook.cell(
        "events = get_ipython().events\n"
        "events.register('pre_run_cell', lambda info: print('before', info.raw_cell))\n"
        "events.register('post_run_cell', lambda result: print('after', result.result, result.error_in_exec))"
    )
    assert (await notebook.cell("1 + 1")).out == b"before 1 + 1\nafter 2 None\n"
    assert (await notebook.cell("1 / 0")).out == b"before 1 / 0\nafter None division by zero\n"


async def test_workspace_gets_no_files_and_is_not_where_ipython_comes_from(tmp_path: Path) -> None:
    with running(tmp_path) as runner:
        (runner.workspace / "IPython.py").write_text("raise RuntimeError")
        (runner.workspace / "traitlets.py").write_text("raise RuntimeError")
        client = await runner.connect()
        result = await client.run("get_ipython().history_manager.enabled, _", context="c")
        await client.close()
        assert (value(result), result.err) == ({"text/plain": b"(False, '')"}, b"")
        assert sorted(entry.name for entry in runner.workspace.iterdir()) == ["IPython.py", "traitlets.py"]
        assert not [name for _, _, names in os.walk(tmp_path) for name in names if name.endswith(".sqlite")]


SAID = b"IPython can't be used here, so cells are plain Python: "
USELESS = {
    "old": ("IPython.py", "version_info = (7, 34, 0, '')", b""),
    "broken": ("IPython.py", "raise RuntimeError('broken')", SAID + b"RuntimeError: broken\n"),
    "failing": (
        "sitecustomize.py",
        "from IPython.core.interactiveshell import InteractiveShell\nInteractiveShell.init_magics = None",
        SAID + b"TypeError: 'NoneType' object is not callable\n",
    ),
}


@pytest.mark.parametrize(("name", "text", "said"), USELESS.values(), ids=USELESS)
async def test_ipython_that_is_of_no_use_leaves_plain_python_and_the_first_cell_says_why(
    tmp_path: Path, name: str, text: str, said: bytes
) -> None:
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / name).write_text(text)
    with running(tmp_path, PYTHONPATH=str(tmp_path / "path")) as runner:
        client = await runner.connect()
        result = await client.run("x = 5\n'get_ipython' in globals(), x", context="c")
        assert (value(result), result.err) == ({"text/plain": b"(False, 5)"}, said)
        assert (await client.run("x", context="c")).err == b""
        await client.close()


async def test_display_of_ipython_works_without_a_shell(client: Client) -> None:
    code = (
        "from IPython.display import HTML, clear_output, display, publish_display_data\n"
        "display(HTML('<b>'))\nclear_output()\npublish_display_data({'text/plain': 'raw'})\n"
    )
    result = await client.run(code)
    assert (result.outcome, result.err) == ("ok", b"")
    assert shown(result) == [{"text/html": b"<b>"}, {"text/plain": b"raw"}]


async def test_runs_without_a_context_import_nothing_of_it(client: Client) -> None:
    code = "import sys\nprint([name for name in sys.modules if name.partition('.')[0] in ('IPython', 'traitlets')])"
    assert (await client.run(code)).out == b"[]\n"
