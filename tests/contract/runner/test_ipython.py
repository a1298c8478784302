"""What contexts can do where there is IPython, and that it leaves nothing behind. What both kinds do: test_contexts."""

import os
from pathlib import Path

import pytest

from support.runner.harness import Client, running
from support.runner.notebook import Notebook, shown, value


async def test_cells_are_evaluated_by_ipython(notebook: Notebook) -> None:
    result = await notebook.cell("from IPython import get_ipython as g\nget_ipython() is g() is not None")
    assert value(result) == {"text/plain": b"True"}


@pytest.mark.parametrize(
    ("code", "out", "err"),
    [
        ("%timeit -n 2 -r 1 pass", b"loop", b""),
        ("%%time\nx = 1", b"CPU times", b""),
        ("%%bash\necho hi; echo no >&2", b"hi\n", b"no\n"),
        ("!echo hi; echo no >&2", b"hi\n", b"no\n"),
        ("x = !echo a; echo b\nprint(x)", b"['a', 'b']\n", b""),
        ("word = 'hi'\nfor _ in range(2):\n    !echo {word} $word", b"hi hi\nhi hi\n", b""),
        ("%%writefile it.txt\ntext\n", b"Writing it.txt\n", b""),
        ("%%capture held\nprint('x')\ndisplay(1)", b"", b""),
        ("%matplotlib inline", b"", b""),
        ("%cd /tmp", b"/tmp\n", b""),
        ("    indented = 1", b"", b""),
    ],
)
async def test_what_is_no_python_is_translated(notebook: Notebook, code: str, out: bytes, err: bytes) -> None:
    result = await notebook.cell(code)
    assert (result.outcome, result.err, shown(result)) == ("ok", err, [])
    assert out in result.out


async def test_value_of_a_magic_comes_back_and_the_last_value_has_a_name(notebook: Notebook) -> None:
    assert value(await notebook.cell("%%time\n2 + 3")) == {"text/plain": b"5"}
    assert value(await notebook.cell("_ + 1")) == {"text/plain": b"6"}


async def test_reset_leaves_a_context_as_new(notebook: Notebook) -> None:
    result = await notebook.cell("x = 1\n%reset -f\nimport builtins; print('x' in globals(), open is builtins.open)")
    assert (result.out, result.err) == (b"False True\n", b"")
    assert (await notebook.cell("exit(3)")).exit_code == 3
    assert value(await notebook.cell("get_ipython() is not None")) == {"text/plain": b"True"}


async def test_help_is_shown_and_nobody_is_asked(notebook: Notebook) -> None:
    (help_text,) = shown(await notebook.cell("len?"))
    assert b"number of items" in help_text["text/plain"]
    assert b"\x1b[" not in help_text["text/plain"]


async def test_magic_that_fails_fails_the_cell_in_few_words(notebook: Notebook) -> None:
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


async def test_syntax_error_beside_a_magic_is_told_in_its_line(notebook: Notebook) -> None:
    result = await notebook.cell("\n\n%time 1\ny = ;")
    assert result.err.decode().splitlines()[:2] == ['  File "<cell 1>", line 4', "    y = ;"]


@pytest.mark.parametrize("code", ["!echo started; sleep 3024", "%%bash\necho started; sleep 3024"])
async def test_timeout_interrupts_a_command_and_keeps_the_state(notebook: Notebook, code: str) -> None:
    await notebook.cell("x = 5")
    result = await notebook.cell(code, timeout=1)
    assert (result.outcome, result.out, result.end["context_state"]) == ("timeout", b"started\n", "kept")
    assert value(await notebook.cell("x")) == {"text/plain": b"5"}


async def test_registered_form_comes_with_the_others_and_one_that_fails_does_not(notebook: Notebook) -> None:
    await notebook.cell(
        "class T:\n    def __repr__(self): return 't'\n"
        "formatters = get_ipython().display_formatter.formatters\n"
        "formatters['text/html'].for_type(T, lambda t: '<t>')\n"
        "formatters['text/latex'].for_type(T, lambda t: 1 / 0)"
    )
    forms = {"text/plain": b"t", "text/html": b"<t>"}
    result = await notebook.cell("display(T())\nT()")
    assert (shown(result), value(result), result.err) == ([forms], forms, b"")


async def test_what_was_captured_is_shown_when_it_is_asked_for(notebook: Notebook) -> None:
    await notebook.cell("%%capture held\nfrom IPython.display import HTML\nprint('x')\ndisplay(HTML('<b>'))")
    result = await notebook.cell("held.show()")
    assert (result.out, shown(result)) == (b"x\n", [{"text/html": b"<b>"}])


async def test_extension_is_told_of_cells(notebook: Notebook) -> None:
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


BROKEN = {
    "old": ("IPython.py", "version_info = (7, 34, 0, '')"),
    "failing": (
        "sitecustomize.py",
        "from IPython.core.interactiveshell import InteractiveShell\nInteractiveShell.init_magics = None",
    ),
}


@pytest.mark.parametrize(("name", "text"), BROKEN.values(), ids=BROKEN)
async def test_ipython_that_is_of_no_use_leaves_plain_python(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / name).write_text(text)
    with running(tmp_path, PYTHONPATH=str(tmp_path / "path")) as runner:
        client = await runner.connect()
        result = await client.run("x = 5\n'get_ipython' in globals(), x", context="c")
        await client.close()
    assert value(result) == {"text/plain": b"(False, 5)"}
    assert result.err.startswith(b"IPython can't be used here, so cells are plain Python: ")


async def test_runs_without_a_context_import_nothing_of_it(client: Client) -> None:
    code = "import sys\nprint([name for name in sys.modules if name.partition('.')[0] in ('IPython', 'traitlets')])"
    assert (await client.run(code)).out == b"[]\n"


async def test_first_cell_says_why_ipython_is_not_used(tmp_path: Path) -> None:
    package = tmp_path / "other" / "IPython"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('broken')", encoding="utf-8")
    with running(tmp_path, PYTHONPATH=str(package.parent)) as runner:
        client = await runner.connect()
        first = await client.run("x = 1; x", context="c")
        assert first.err == b"IPython can't be used here, so cells are plain Python: RuntimeError: broken\n"
        assert (await client.run("x", context="c")).err == b""
        await client.close()
