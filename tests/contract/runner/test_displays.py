"""What programs display comes back in its forms: from fresh runs, and from contexts with IPython and without it."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest

from sandpod_runner.protocol import messages as protocol
from support.runner.harness import Client, Result, Runner, running, without
from support.runner.notebook import RUNNERS, Notebook, shown, value

__all__ = ["RUNNERS"]

Run = Callable[[str], Awaitable[Result]]

LIBRARIES = "matplotlib.pyplot,pandas,pandas.io.formats.style,plotly.graph_objects,PIL.Image"
"""Imported beforehand, once for all programs; that a program's own imports are noticed as well: test_pictures."""
THING = (
    "class Thing:\n"
    "    def __repr__(self): return 'plain'\n"
    "    def _repr_html_(self): return '<b>ü</b>'\n"
    "    def _repr_markdown_(self): return '**ü**'\n"
)
FORMS = {"text/plain": b"plain", "text/html": "<b>ü</b>".encode(), "text/markdown": "**ü**".encode()}
PLOT = "import matplotlib.pyplot as plt\nfig, ax = plt.subplots(figsize=(1, 1))\n"
PLOTLY = "import plotly.graph_objects as go\nfig = go.Figure(go.Bar(y=[2, 1]))\n"


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    with running(tmp_path_factory.mktemp("runner"), SANDPOD_PREIMPORT=LIBRARIES) as started:
        yield started


@pytest.fixture(scope="module")
def plain_runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    folder = tmp_path_factory.mktemp("plain")
    with running(folder, SANDPOD_PREIMPORT=LIBRARIES, PYTHONPATH=without("IPython", folder)) as started:
        yield started


@pytest.fixture(params=["fresh", "context"])
async def run(client: Client, request: pytest.FixtureRequest) -> AsyncIterator[Run]:
    """Run code in a process of its own, or in a context."""
    notebook = Notebook(client, request.node.name[:100])
    yield client.run if request.param == "fresh" else notebook.cell
    if request.param == "context":
        await notebook.restart()


@pytest.mark.claim("run_python_code")
async def test_value_is_displayed_in_all_its_forms(run: Run) -> None:
    result = await run(f"{THING}display(Thing(), 5)\ndisplay('text')")
    assert (result.outcome, result.out, result.err) == ("ok", b"", b"")
    assert shown(result) == [FORMS, {"text/plain": b"5"}, {"text/plain": b"'text'"}]
    code = "class Bare:\n    def _repr_html_(self): return '<b>'\ndisplay(Bare(), object)"
    assert shown(await run(code)) == [{"text/html": b"<b>"}, {"text/plain": b"<class 'object'>"}], (
        "text that says nothing"
    )
    code = "display({'text/html': '<b>', 'application/json': {'a': [1]}, 'image/png': 'cG5n', 'x/y': 'no'}, raw=True)"
    forms = {"text/html": b"<b>", "application/json": b'{"a": [1]}', "image/png": b"png"}
    assert shown(await run(code)) == [forms]
    result = await run("class C:\n    def __repr__(self): raise ValueError('no text')\ndisplay(C())")
    assert (result.exit_code, result.err.splitlines()[-1]) == (1, b"ValueError: no text")
    code = "import os\nif os.fork() == 0:\n    display(1)\n    os._exit(0)\nos.wait()\ndisplay(2)"
    assert shown(await run(code)) == [{"text/plain": b"2"}], "a forked process displays nothing"


async def test_displays_are_bounded_and_the_rest_is_counted(run: Run) -> None:
    result = await run(f"{THING}for _ in range(12): display(Thing())")
    assert sum(len(forms) for forms in shown(result)) == protocol.MAX_DISPLAYS
    assert result.end["displays_dropped"] == 3 * 12 - protocol.MAX_DISPLAYS
    large = await run(f"{THING}Thing._repr_html_ = lambda _: 'x' * 5_000_000\ndisplay(Thing())")
    assert (list(shown(large)[0]), large.end["displays_dropped"]) == (["text/plain", "text/markdown"], 1)


async def test_picture_takes_the_place_of_text_and_an_open_figure_comes_once_and_later_as_it_is_then(run: Run) -> None:
    code = (
        "class P:\n    def _repr_png_(self): return b'png'\n    def __repr__(self): return 'a picture'\n"
        "display(P())\nfrom PIL import Image\ndisplay(Image.new('RGB', (7, 5)))"
    )
    own, image = shown(await run(code))
    assert own == {"image/png": b"png"}
    assert list(image) == ["image/png"]
    result = await run(f"{PLOT}display(fig)\nplt.show()")
    assert ([list(forms) for forms in shown(result)], result.err) == ([["image/png"]], b"")
    first, second = shown(await run(f"{PLOT}display(fig)\nax.set_title('two')\ndisplay(fig)"))
    assert first != second


@pytest.mark.claim("run_python_code")
async def test_figure_of_plotly_is_kept_as_a_page_and_tables_come_as_html(run: Run) -> None:
    result = await run(
        f"{PLOTLY}fig.show()\nimport plotly.io\nplotly.io.show({{'data': [{{'y': [1]}}]}})\ndisplay(fig)"
    )
    assert (result.outcome, result.out, result.err, len(result.end["artifacts"])) == ("ok", b"", b"", 3)
    texts = [forms["text/plain"].decode().split(": a page in ") for forms in shown(result)]
    assert [text for text, _ in texts] == ["Plotly figure (bar)", "Plotly figure (scatter)", "Plotly figure (bar)"]
    named = [path for _, path in texts]
    assert sorted(named) == sorted(artifact["path"] for artifact in result.end["artifacts"])
    page = await run(f"print(open({named[0]!r}).read())")
    assert b"cdn.plot.ly" in page.out
    assert b'"type":"bar"' in page.out
    result = await run(
        "import pandas as pd\ntable = pd.DataFrame({'a': [1]})\ndisplay(table, table.style.highlight_max())"
    )
    plain, styled = shown(result)
    assert (plain["text/plain"], result.err) == (b"   a\n0  1", b"")
    assert b"<table" in plain["text/html"]
    assert list(styled) == ["text/html"]
    assert b"background-color" in styled["text/html"]


async def test_last_value_of_a_library_comes_in_its_forms(notebook: Notebook) -> None:
    for code, kinds in (
        (f"{PLOTLY}fig", ["text/plain"]),
        ("from PIL import Image\nImage.new('RGB', (7, 5))", ["text/plain", "image/png"]),
        ("import pandas as pd\npd.DataFrame({'a': [1]})", ["text/plain", "text/html"]),
        ("pd.DataFrame({'a': [1]}).style", ["text/plain", "text/html"]),
        (f"{PLOT}plt.close()\nfig", ["text/plain", "image/png"]),
    ):
        result = await notebook.cell(code)
        assert (list(value(result)), shown(result), result.out, result.err) == (kinds, [], b"", b""), code
    large = value(await notebook.cell("import numpy as np\npd.DataFrame(np.zeros((3000, 3000)))"))
    assert large["text/plain"].endswith(b"[3000 rows x 3000 columns]")
    assert sum(map(len, large.values())) < 100_000


async def test_figures_come_with_the_cell_that_draws_them(notebook: Notebook) -> None:
    first = await notebook.cell(f"{PLOT}ax.plot([1, 2])\nfig")
    second = await notebook.cell("plt.show()")
    third = await notebook.cell("ax.set_title('two')\nfig")
    assert [len(shown(result)) for result in (first, second, third)] == [1, 0, 0]
    assert set(value(first)) == {"text/plain"}
    assert value(third)["image/png"].startswith(b"\x89PNG")
