"""Hints, followed as a model would: what one says to call or to do is done, and then the program works."""

import ast
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from support.background import read_until
from support.gateway.served import LIBRARIES, LOCAL, Served, connected, gateway
from support.servers.npm_registry import Registry, npm_registry
from support.servers.package_index import Index, package_index

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.needs_userns]


def call_in(hint: str) -> str:
    """Return the one call that a hint names."""
    [call] = re.findall(r"\w+\([^)]*\)", hint)
    return str(call)


class Place(Served):
    """A caller, and what packages it can get."""

    index: Index
    registry: Registry

    async def obey(self, hint: str) -> None:
        """Make the one call that the hint names."""
        call = ast.parse(call_in(hint), mode="eval").body
        assert isinstance(call, ast.Call)
        assert isinstance(call.func, ast.Name)
        done = await self.call(
            call.func.id, **{word.arg or "": ast.literal_eval(word.value) for word in call.keywords}, wait=120
        )
        assert done["status"] == "success", done

    async def names_of(self) -> set[str]:
        return {tool.name for tool in await self.mcp.list_tools()}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def place() -> AsyncIterator[Place]:
    sizes = ("--local.memory", "256Mi", "--local.workspace-size", "16Mi", "--local.tmp-size", "64Mi")
    with package_index() as index, npm_registry() as registry:
        sources = ("--packages.index-url", index.url, "--packages.npm.registry-url", registry.url)
        async with gateway(*LOCAL, *LIBRARIES, *sizes, *sources) as address, connected(address, Place) as here:
            here.index, here.registry = index, registry
            # Each is downloaded once, by whichever test comes first.
            index.add("greet-me", "1.0")
            registry.add("@made/one", "1.2.0")
            yield here


@pytest.mark.claim("instructions", "install_packages(language)", "work_with_sandpod.text")
async def test_missing_module_is_there_after_the_call_that_the_hint_names(place: Place) -> None:
    code = "import greet_me\nprint(greet_me.VERSION)"
    other = (await place.call("create_sandbox"))["sandbox"]
    for own in ({}, {"sandbox": other}):
        failed = await place.python(code, **own)
        assert failed["outcome"] == "error"
        await place.obey(failed["hint"])
        assert (await place.python(code, **own))["stdout"] == "1.0\n"


async def test_missing_module_of_a_fresh_sandbox_comes_with_the_run_as_the_hint_says(place: Place) -> None:
    for run, code in ((place.python, "import greet_me"), (place.js, "require('@made/one')")):
        failed = await run(code, fresh=True)
        assert "install_packages" not in failed["hint"], "that sandbox is gone"
        packages = ast.literal_eval(re.findall(r"packages=(\[.*?\])", failed["hint"])[0])
        assert (await run(code, packages=packages, fresh=True))["outcome"] == "ok"


@pytest.mark.claim("list_packages")
async def test_module_that_has_another_name_is_there_by_its_packages_name(place: Place) -> None:
    place.index.add("pymupdf", "1.0")
    failed = await place.python("import fitz")
    await place.obey(failed["hint"])
    listed = (await place.call("list_packages"))["packages"]
    assert "pymupdf" in {package["name"] for package in listed if package["source"] == "installed"}
    sources = [package["source"] for package in listed]
    assert sources == sorted(sources, key=["installed", "image"].index), "those that were installed come first"


@pytest.mark.claim("install_packages(language)")
async def test_missing_npm_package_is_there_after_the_call_that_the_hint_names(place: Place) -> None:
    code = 'console.log(require("@made/one/index.js").VERSION)'

    async def in_background() -> dict[str, Any]:
        run_id = (await place.call("start_run", code=code, language="javascript"))["run_id"]
        first = await read_until(place.call, run_id)
        again = await place.call("read_run", run_id=run_id, cursor=first["cursor"])
        assert again["result"]["hint"] == first["result"]["hint"], "also when what it wrote was read before"
        return {**first["result"], "stdout": first["stdout"]}

    async def runs() -> list[dict[str, Any]]:
        return [await place.js(code), await place.shell(f"node -e '{code}'"), await in_background()]

    failed = await runs()
    assert [run["outcome"] for run in failed] == ["error"] * 3
    [call] = {call_in(run["hint"]) for run in failed}
    await place.obey(call)
    assert [run["stdout"] for run in await runs()] == ["1.2.0\n"] * 3


async def test_missing_file_of_javascript_is_found_where_the_hint_says(place: Place) -> None:
    await place.shell("mkdir -p lib && echo 'exports.v = 7' > lib/made.js")
    failed = await place.js("console.log(require('./made.js').v)")
    assert "list_files" in failed["hint"]
    listed = (await place.call("list_files", recursive=True))["entries"]
    [found] = [entry["path"] for entry in listed if entry["path"].endswith("made.js")]
    assert (await place.js(f"console.log(require('./{found}').v)"))["stdout"] == "7\n"


@pytest.mark.parametrize(
    ("tool", "code"),
    [
        ("run_python_code", "import urllib.request; urllib.request.urlopen('http://192.0.2.1')"),
        ("run_python_code", "import urllib.request; urllib.request.urlopen('https://sandpod.example')"),
        ("run_js_code", "fetch('https://sandpod.example')"),
        ("run_js_code", "require('http').get('http://192.0.2.1')"),
    ],
)
async def test_no_network_is_told_with_the_profiles_that_there_are_and_the_other_ways(
    place: Place, tool: str, code: str
) -> None:
    hint = (await place.call(tool, code=code))["hint"]
    [content] = await place.mcp.read_resource("sandpod://capabilities")
    assert '"networks": ["none"]' in getattr(content, "text", "")
    assert "no network" in hint
    assert "no other profile" in hint
    named = set(re.findall(r"[a-z]+_[a-z]+", hint))
    assert named == {"write_file", "upload_file", "install_packages"} <= await place.names_of()
    await place.call("write_file", path="in.txt", text="data", overwrite=True)
    assert (await place.shell("cat in.txt"))["stdout"] == "data"


async def test_figure_for_a_display_comes_back_once_the_backend_is_left_alone(served: Served) -> None:
    draw = "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()"
    for backend in ("TkAgg", "QtAgg"):
        failed = await served.python(f"import matplotlib\nmatplotlib.use('{backend}')\n{draw}")
        assert (failed["outcome"], served.pictures) == ("error", [])
        assert "leave matplotlib's backend as it is" in failed["hint"]
    assert (await served.python(draw))["outcome"] == "ok"
    assert len(served.pictures) == 1


async def test_commands_that_install_lead_to_the_call_that_does(place: Place) -> None:
    place.index.add("by-hand", "1.0")
    for command in ("python3 -m pip install --retries 0 by-hand", "npm install by-hand"):
        hint = (await place.shell(f"({command}) || (echo 'npm: command not found' >&2; exit 1)"))["hint"]
        assert "install_packages" in hint
    commands = ("!pip install -q by-hand", "%pip install by-hand", "!python -m pip install by-hand")
    runs = [await place.python(command) for command in commands]
    assert [run["outcome"] for run in runs] == ["error"] * 3
    ran = await place.python("!PIP_RETRIES=0 pip install by-hand", context="notebook", timeout=60)
    assert ran["outcome"] == "ok", "a notebook goes on after a command that fails"
    [call] = {call_in(run["hint"]) for run in (*runs, ran)}
    await place.obey(call)
    installed = (await place.call("list_packages"))["packages"]
    assert "by-hand" in {package["name"] for package in installed if package["source"] == "installed"}
    await place.call("restart_context", context="notebook")


async def test_variable_of_an_earlier_call_is_there_in_a_context_as_the_hint_says(place: Place) -> None:
    await place.python("kept = 42")
    failed = await place.python("print(kept)")
    assert "pass the same `context`" in failed["hint"]
    await place.python("kept = 42", context="hinted")
    assert (await place.python("print(kept)", context="hinted"))["stdout"] == "42\n"
    assert (await place.python("print(never)", context="hinted"))["hint"] is None
    await place.call("restart_context", context="hinted")
    failed = await place.js("console.log(kept)")
    assert "pass the same `context`" in failed["hint"]


async def test_missing_file_is_found_by_the_tool_that_the_hint_names(place: Place) -> None:
    await place.shell("mkdir -p deep && echo 7 > deep/found.txt")
    for failed in (
        await place.python("open('found.txt')"),
        await place.js("require('fs').readFileSync('found.txt')"),
        await place.shell("cat found.txt"),
    ):
        assert failed["hint"].startswith("There is no 'found.txt': list_files tells what is there.")
    listed = (await place.call("list_files", recursive=True))["entries"]
    [found] = [entry["path"] for entry in listed if entry["path"].endswith("found.txt")]
    assert (await place.python(f"print(open('{found}').read())"))["stdout"] == "7\n\n"


async def test_program_that_is_not_there_is_named(place: Place) -> None:
    for failed in (
        await place.shell("no-such-program --version"),
        await place.python("import subprocess; subprocess.run(['no-such-program'])"),
    ):
        assert "no program 'no-such-program' here" in failed["hint"]


async def test_download_that_fails_without_a_word_is_told_to_have_no_network(place: Place) -> None:
    for command in ("curl -s http://192.0.2.1", "curl -s http://192.0.2.1 | head"):
        assert "no network" in (await place.shell(f"curl() {{ return 7; }}; {command}"))["hint"]
    assert (await place.shell("true"))["hint"] is None


async def test_windows_have_no_package_but_no_display(place: Place) -> None:
    failed = await place.python("raise ModuleNotFoundError(\"No module named 'tkinter'\")")
    assert "no display" in failed["hint"]
    assert "install_packages" not in failed["hint"]


async def test_path_that_is_read_only_leads_to_two_that_are_not(place: Place) -> None:
    for failed in (
        await place.python("open('/etc/new.txt', 'w')"),
        await place.js("require('fs').writeFileSync('/etc/new.txt', '1')"),
        await place.shell("echo 1 > /etc/new.txt"),
    ):
        folders = re.findall(r"/\w+", failed["hint"])
        assert folders == ["/workspace", "/tmp"]
        for folder in folders:
            assert (await place.python(f"open('{folder}/new.txt', 'w').write('1')"))["outcome"] == "ok"


async def test_full_folder_takes_files_again_when_some_are_deleted(place: Place) -> None:
    await place.python("open('fill.bin', 'wb').write(bytes(12 << 20))")
    more = "open('more.bin', 'wb').write(bytes(8 << 20))"
    failed = await place.python(more)
    assert "delete what is not needed there" in failed["hint"]
    await place.call("delete_file", path="fill.bin")
    assert (await place.python(more))["outcome"] == "ok"
    await place.call("delete_file", path="more.bin")


async def test_program_that_took_too_much_memory_works_in_parts(place: Place) -> None:
    # It keeps what it took: memory is watched here, and a moment's use may pass unseen.
    failed = await place.python("import signal\ndata = bytearray(400 << 20)\nsignal.pause()", timeout=60)
    assert failed["outcome"] == "out_of_memory"
    assert failed["hint"] == "It used more than the sandbox's 256 MiB of memory. Work on the data in parts."
    assert (await place.python("for _ in range(8):\n    data = bytearray(50 << 20)"))["outcome"] == "ok"


@pytest.mark.claim("run_python_code(timeout)")
async def test_program_that_was_too_slow_ends_with_a_longer_timeout(place: Place) -> None:
    code = "import time; time.sleep(1.5); print('done')"
    failed = await place.python(code, timeout=0.5)
    assert (failed["outcome"], "longer one as `timeout`" in failed["hint"]) == ("timeout", True)
    assert (await place.python(code, timeout=60))["stdout"] == "done\n"
