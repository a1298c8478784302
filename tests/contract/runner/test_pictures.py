"""Figures and images that Python programs draw come back, each once."""

import io
import shutil
import struct
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from PIL import Image

from sandpod_runner.ipc.display_records import MAX_KEPT, RECORD, RecordKind
from sandpod_runner.protocol import messages as protocol
from support.runner.harness import FIND_CHANNEL, Client, Result, Runner, running
from support.runner.notebook import shown

PLOT = "import matplotlib.pyplot as plt\nplt.figure(figsize=(1, 1)).text(0, 0, 'x')\n"


@pytest.fixture(scope="module")
def drawing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    """A runner that has matplotlib imported already."""
    with running(tmp_path_factory.mktemp("drawing"), SANDPOD_PREIMPORT="matplotlib.pyplot") as started:
        yield started


@pytest.fixture
async def artist(drawing: Runner) -> AsyncIterator[Client]:
    client = await drawing.connect()
    yield client
    await client.close()
    for kept in drawing.workspace.glob("**/pictures*"):
        shutil.rmtree(kept) if kept.is_dir() else kept.unlink()


def pictures(result: Result) -> list[bytes]:
    """Return what came, which is pictures numbered from 0 on, before the end."""
    found = [frame for frame in result.frames if frame.kind == "display"]
    assert [frame.header["index"] for frame in found] == list(range(len(found)))
    assert all(frame.header["mime"] == "image/png" and frame.payload.startswith(b"\x89PNG") for frame in found)
    assert result.frames[-1].kind == "end"
    return [frame.payload for frame in found]


def width(png: bytes) -> int:
    return int(struct.unpack(">I", png[16:20])[0])


ENDINGS = {
    "plt.show()": 1,
    "": 1,
    "plt.show()\nplt.show()": 1,
    "plt.savefig('saved.png')": 1,
    "plt.savefig('saved.png')\nplt.show()": 1,
    "plt.show()\nplt.savefig('saved.png')": 1,
    "plt.gcf().show()": 1,
    "plt.show(block=False)\nplt.pause(0.01)\nplt.close()": 1,
    "plt.ion()\nplt.show()\nplt.plot([2, 1])": 1,
    "plt.figure()\nplt.plot([2, 1])\nplt.show()": 2,
    "plt.show()\nplt.plot([2, 1])\nplt.show()": 2,
    "plt.show()\nplt.plot([2, 1])": 2,
    "plt.figure()": 1,
    "plt.close()": 0,
    "plt.close('all')\nplt.show()": 0,
}


@pytest.mark.promise("figures")
async def test_each_figure_that_is_shown_or_left_open_comes_once(artist: Client) -> None:
    for ending, count in ENDINGS.items():
        result = await artist.run(PLOT + ending)
        assert (result.outcome, result.err, len(pictures(result))) == ("ok", b"", count), ending
    for backend in ("agg", "svg", "pdf"):
        result = await artist.run(f"import matplotlib\nmatplotlib.use({backend!r})\n{PLOT}plt.show()")
        assert (result.err, len(pictures(result))) == (b"", 1), backend
    for ending, exit_code in (("1 / 0", 1), ("import sys; sys.exit(3)", 3)):
        result = await artist.run(PLOT + ending)
        assert (result.exit_code, len(pictures(result))) == (exit_code, 1)


async def test_libraries_that_the_program_imports_itself_draw_the_same(client: Client) -> None:
    await client.run("import matplotlib.font_manager", timeout=60)  # which looks through all fonts once
    result = await client.run(f"{PLOT}plt.gcf().show()\nfrom PIL import Image\nImage.new('RGB', (7, 5)).show()")
    assert (result.outcome, result.err, len(pictures(result))) == ("ok", b"", 2)
    result = await client.run("import plotly.graph_objects as go\ngo.Figure(go.Bar(y=[2, 1])).show()")
    assert (result.out, result.err) == (b"", b"")
    assert shown(result) == [{"text/plain": b"Plotly figure (bar): a page in pictures/picture-001.html"}]


async def test_figures_come_in_the_order_of_their_numbers(artist: Client) -> None:
    code = "import matplotlib.pyplot as plt\nfor i in (3, 6, 9):\n    plt.figure(figsize=(i, 2)).add_subplot()\n"
    first, second, third = pictures(await artist.run(f"{code}plt.figure(1)\nplt.show()"))
    assert width(first) < width(second) < width(third)


@pytest.mark.promise("figures")
async def test_nothing_of_the_last_run_comes_again(artist: Client) -> None:
    first = pictures(await artist.run(PLOT))
    second = pictures(await artist.run(f"{PLOT}plt.title('two')"))
    third = pictures(await artist.run("import matplotlib.pyplot as plt; plt.show()"))
    assert (len(first), len(second), third) == (1, 1, [])
    assert first != second


async def test_figure_that_cannot_be_drawn_is_one_line_at_the_end(artist: Client) -> None:
    result = await artist.run(f"{PLOT}plt.title('$\\\\nosuchthing$')\nplt.figure()\nplt.plot([2, 1])")
    assert (result.outcome, len(pictures(result))) == ("ok", 1)
    assert result.err.startswith(b"A figure could not be drawn: ValueError: ")


@pytest.mark.promise("figures")
async def test_a_few_figures_are_shown_and_the_others_are_kept_as_files(artist: Client) -> None:
    code = "import matplotlib.pyplot as plt\nfor _ in range(75):\n    plt.figure(figsize=(1, 1)).add_subplot()\n"
    result = await artist.run(f"{code}plt.show()", timeout=60)
    assert len(pictures(result)) == protocol.MAX_PICTURES
    kept = [entry["path"] for entry in result.end["artifacts"]]
    assert kept == [f"pictures/picture-{number:03}.png" for number in range(1, MAX_KEPT + 1)]
    assert result.end["displays_dropped"] == 75 - protocol.MAX_PICTURES - MAX_KEPT
    assert f"too many for this answer: {MAX_KEPT}. They are whole in the folder pictures." in result.end["detail"]


NOISE = "import numpy as np\nnoise = np.random.randint(0, 256, (1500, 1600, 3), dtype=np.uint8)\n"
FIGURE = f"{NOISE}import matplotlib.pyplot as plt\nfig = plt.figure(figsize=(10, 8), dpi=200)\nplt.imshow(noise)\n"


@pytest.mark.parametrize(
    ("code", "fields"),
    [
        (FIGURE, {}),
        (f"{FIGURE}plt.close()\nfig", {"context": "large"}),
        (f"from PIL import Image\n{NOISE}Image.fromarray(noise).show()", {}),
        (f"from PIL import Image\n{NOISE}Image.fromarray(noise)", {"context": "large"}),
    ],
    ids=["figure", "value", "image", "image-value"],
)
async def test_large_picture_is_shown_smaller_and_kept_whole(artist: Client, code: str, fields: dict[str, str]) -> None:
    await artist.file("mkdir", path="below")
    result = await artist.run(code, cwd="below", timeout=60, **fields)
    (shown,) = [frame for frame in result.frames if frame.header.get("mime") in {"image/png", "image/jpeg"}]
    assert len(shown.payload) <= protocol.PICTURE_BYTES // 2
    with Image.open(io.BytesIO(shown.payload)) as small:
        assert 600 < max(small.size) <= 2000
    (kept,) = result.end["artifacts"]
    assert (kept["path"], kept["size"] > 2_000_000) == ("below/pictures/picture-001.png", True)
    assert (result.outcome, result.err, result.end["displays_dropped"]) == ("ok", b"", 0)
    assert "They are whole in the folder pictures." in result.end["detail"]


async def test_picture_with_long_sides_and_few_bytes_is_shown_smaller(artist: Client) -> None:
    code = "from PIL import Image\nfor side in (2000, 2001): Image.new('RGB', (side, 5)).show()"
    result = await artist.run(code)
    assert [width(png) for png in pictures(result)] == [2000, 2000]
    assert [entry["path"] for entry in result.end["artifacts"]] == ["pictures/picture-001.png"]


async def test_pictures_share_the_room_of_an_answer(artist: Client) -> None:
    result = await artist.run(f"from PIL import Image\n{NOISE}for _ in range(9): Image.fromarray(noise[:200]).show()")
    shown = [frame.payload for frame in result.frames if frame.kind == "display"]
    assert (len(shown), sum(map(len, shown)) <= protocol.PICTURE_BYTES) == (protocol.MAX_PICTURES, True)
    assert len(result.end["artifacts"]) == 9


async def test_large_picture_that_can_be_neither_scaled_nor_kept_is_counted(artist: Client) -> None:
    code = "open('pictures', 'w')\ndisplay({'image/png': bytes(500_000)}, raw=True)"
    result = await artist.run(code)
    assert (pictures(result), result.end["displays_dropped"], result.end["detail"]) == ([], 1, None)


async def test_image_of_pil_is_shown(artist: Client) -> None:
    code = "from PIL import Image\nfor mode in ('RGB', 'CMYK', 'F'):\n    Image.new(mode, (7, 5)).show()"
    result = await artist.run(code)
    assert (result.err, [width(png) for png in pictures(result)]) == (b"", [7, 7, 7])


async def test_processes_of_the_program_show_nothing(artist: Client) -> None:
    code = f"import os\n{PLOT}if os.fork() == 0:\n    plt.show()\n    os._exit(0)\nos.wait()\n"
    assert len(pictures(await artist.run(code))) == 1


@pytest.mark.usefixtures("runner")  # a template may have modules imported beforehand
async def test_program_that_shows_nothing_has_nothing_imported_for_it(client: Client) -> None:
    names = "('matplotlib', 'PIL', 'numpy', 'IPython', 'sandpod_runner.python.rich', 'threading')"
    result = await client.run(f"import sys\nprint([name for name in sys.modules if name.startswith({names})])")
    assert (result.out, result.end["displays_dropped"]) == (b"[]\n", 0)


async def test_first_descriptors_are_free_for_the_program_and_its_children_get_none(client: Client) -> None:
    count = "import os; print([fd for fd in range(3, 300) if os.path.exists(f'/proc/self/fd/{fd}')])"
    code = (
        "import os, subprocess, sys\nprint(os.open('.', os.O_RDONLY), flush=True)\n"
        f"subprocess.run([sys.executable, '-c', {count!r}], close_fds=False)"
    )
    assert (await client.run(code)).out == b"3\n[]\n"


JUNK = {
    "noise": b"\xff" * 100_000,
    "kind": RECORD.pack(9, 0, 0),
    "type": RECORD.pack(RecordKind.DISPLAY, 99, 0),
    "size": RECORD.pack(RecordKind.DISPLAY, 2, protocol.MAX_DISPLAY + 1),
    "result": RECORD.pack(RecordKind.RESULT, 0, 1) + b"1",
    "half": RECORD.pack(RecordKind.DISPLAY, 2, 100) + b"half",
    "many": (RECORD.pack(RecordKind.DISPLAY, 2, 1) + b"1") * (protocol.MAX_DISPLAYS + 1),
    "forms": (RECORD.pack(RecordKind.FORM, 2, 1) + b"1") * (protocol.MAX_DISPLAYS + 1),
    "kept": RECORD.pack(RecordKind.KEPT, 2, 0) * (MAX_KEPT + 1),
}


async def test_nonsense_on_the_channel_is_not_listened_to(client: Client) -> None:
    code = (
        FIND_CHANNEL + "try:\n    os.write(channel, eval(input()))\nexcept BrokenPipeError:\n    pass\nprint('goes on')"
    )
    for name, junk in JUNK.items():
        result = await client.run(code, input=repr(junk).encode())
        assert (result.outcome, result.out) == ("ok", b"goes on\n"), name
        assert len([frame for frame in result.frames if frame.kind == "display"]) <= protocol.MAX_DISPLAYS
        assert (await client.run("print(1)")).out == b"1\n"


async def test_program_that_took_the_channels_descriptor_gets_no_picture_into_its_file(
    drawing: Runner, artist: Client
) -> None:
    code = f"{FIND_CHANNEL}os.dup2(os.open('own.txt', os.O_WRONLY | os.O_CREAT), channel)\n{PLOT}plt.show()"
    result = await artist.run(code)
    assert (result.outcome, pictures(result)) == ("ok", [])
    assert (drawing.workspace / "own.txt").read_bytes() == b""


@pytest.mark.everywhere
async def test_large_displays_come_whole(client: Client) -> None:
    size = 1024 * 1024
    code = f"{FIND_CHANNEL}for _ in range(8):\n    os.write(channel, {RECORD.pack(0, 2, size)!r} + bytes({size}))"
    result = await client.run(code)
    assert [len(frame.payload) for frame in result.frames if frame.kind == "display"] == [size] * 8


async def test_library_whose_pictures_can_not_be_had_is_named(tmp_path: Path) -> None:
    package = tmp_path / "other" / "PIL"
    package.mkdir(parents=True)
    for name in ("__init__", "ImageShow"):
        (package / f"{name}.py").touch()
    with running(tmp_path, PYTHONPATH=str(package.parent)) as runner:
        client = await runner.connect()
        result = await client.run("import PIL.ImageShow; print('on')")
        assert result.out == b"on\n"
        assert result.err.startswith(b"What PIL shows can't be passed on: AttributeError")
        await client.close()
