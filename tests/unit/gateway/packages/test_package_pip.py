"""pip as the gateway runs it, against an index on this machine."""

import hashlib
import io
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.packages.cache import FileCache
from sandpod_gateway.packages.channel import FairSlots
from sandpod_gateway.packages.errors import ConflictError
from sandpod_gateway.packages.pip.packages import PythonPackages, State, Target, Wheel
from sandpod_gateway.packages.sandbox import InstalledPackage
from sandpod_gateway.packages.settings import PackageSettings
from support.servers.http_server import web_server
from support.servers.package_index import Index, package_index, wheel

MACHINE = Target(
    markers={"python_version": "3.13", "python_full_version": "3.13.1", "platform_machine": "aarch64"},
    abi="cp313",
    platform="linux-aarch64",
    libc=("glibc", "2.31"),
)


@pytest.fixture
def index() -> Iterator[Index]:
    with package_index() as index:
        yield index


def channel(index: Index, cache: Path = Path(), *, kept: int = 2**20, seconds: float = 180) -> PythonPackages:
    sandboxes: Any = None  # that are not asked for anything
    settings = PackageSettings(index_url=index.url, timeout=seconds)
    return PythonPackages(sandboxes, settings, FileCache(cache, kept), FairSlots(2))


async def resolve(index: Index, *wanted: str, pins: dict[str, str] | None = None, seconds: float = 180) -> list[Wheel]:
    packages, state = channel(index, seconds=seconds), State(environment=MACHINE, installed={})
    return (await packages._resolve(list(map(Requirement, wanted)), state, pins or {})).packages


async def test_wheels_are_those_for_the_sandboxes_python_and_not_for_this_one(index: Index) -> None:
    for tag in ("cp313-cp313-manylinux_2_28_aarch64", "cp313-cp313-manylinux_2_35_aarch64", "cp311-cp311-linux_x86_64"):
        index.add("native", "1.0", tag=tag)
    needs = ('old; python_version < "3.13"', 'new; python_version >= "3.13" and platform_machine == "aarch64"')
    index.add("main", "1.0", content=wheel("main", "1.0", needs=("native", *needs)))
    index.add("old", "1.0")
    index.add("new", "1.0")
    found = await resolve(index, "main")
    assert {each.filename for each in found} == {
        "main-1.0-py3-none-any.whl",
        "new-1.0-py3-none-any.whl",
        "native-1.0-cp313-cp313-manylinux_2_28_aarch64.whl",
    }


@pytest.mark.promise("python-packages")
@pytest.mark.claim("install_packages")
async def test_source_packages_are_never_taken(index: Index) -> None:
    index.files["source-1.0.tar.gz"] = b""
    with pytest.raises(SandpodError) as caught:
        await resolve(index, "source")
    assert caught.value.code == ErrorCode.NOT_FOUND
    assert "source packages are not built" in caught.value.message
    assert index.downloads() == []


def source_package(marker: Path) -> bytes:
    """Return a source package that makes a file when it is prepared."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as archive:
        for name, text in {
            "pyproject.toml": "[build-system]\nrequires = []\nbuild-backend = 'backend'\nbackend-path = ['.']\n",
            "backend.py": f"open({str(marker)!r}, 'w')\n",
        }.items():
            member = tarfile.TarInfo(f"evil-1.0/{name}")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    return data.getvalue()


@pytest.mark.parametrize("depth", [1, 2])
async def test_requirement_by_an_address_is_refused_before_anything_is_fetched_or_run(
    index: Index, tmp_path: Path, depth: int
) -> None:
    marker = tmp_path / "ran"
    index.files["evil-1.0.tar.gz"] = source_package(marker)
    address = f"{index.url.removesuffix('simple')}files/evil-1.0.tar.gz"
    index.add("main2", "1.0", content=wheel("main2", "1.0", needs=("main1",)))
    index.add("main1", "1.0", content=wheel("main1", "1.0", needs=(f"evil @ {address}",)))
    with pytest.raises(SandpodError) as caught:
        await resolve(index, f"main{depth}")
    assert not marker.exists()
    assert "/files/evil-1.0.tar.gz" not in index.asked
    assert caught.value.code == ErrorCode.PACKAGE_BLOCKED
    assert caught.value.message.startswith("evil is required by an address")


@pytest.mark.parametrize(
    ("file", "size", "message"),
    [
        ("METADATA", 4 * 2**20, "The metadata of big is too large to be read."),
        # What zip packs into sixty kilobytes.
        ("WHEEL", 60_000_000, "The metadata of a package is too large"),
    ],
)
async def test_wheel_with_more_metadata_than_fits_into_memory_is_refused(
    index: Index, file: str, size: int, message: str
) -> None:
    text = "Metadata-Version: 2.1\nName: big\nVersion: 1.0\n\n" + "A" * size
    index.add("big", "1.0", content=wheel("big", "1.0", files={f"big-1.0.dist-info/{file}": text}))
    with pytest.raises(SandpodError, match=message) as caught:
        await resolve(index, "big")
    assert caught.value.code == ErrorCode.PACKAGE_BLOCKED


async def test_address_that_is_not_required_does_no_harm(index: Index) -> None:
    needs = ('evil @ http://127.0.0.1:9/evil.tar.gz ; extra == "more" or python_version < "3"',)
    index.add("main", "1.0", content=wheel("main", "1.0", needs=needs))
    assert [each.name for each in await resolve(index, "main")] == ["main"]


async def test_file_at_an_address_of_this_machine_is_not_fetched(index: Index) -> None:
    data = index.add("greet", "1.0")
    asked: list[str] = []

    def answer(path: str) -> tuple[str, bytes]:
        asked.append(path)
        return "application/octet-stream", data

    with web_server(answer) as address:
        for name in ("127.0.0.1", "localhost", "[::ffff:127.0.0.1]"):
            place = address.replace("127.0.0.1", name)
            index.pages["greet"] = f'<a href="{place}/greet-1.0-py3-none-any.whl">greet</a>'
            with pytest.raises(SandpodError) as caught:
                await resolve(index, "greet")
            assert (caught.value.code, asked) == (ErrorCode.PACKAGE_BLOCKED, [])


async def test_version_that_is_there_in_other_words_is_not_installed_again(index: Index, tmp_path: Path) -> None:
    index.add("greet", "2024.7", content=wheel("greet", "2024.7"))
    for there, missing in (("2024.07", 0), ("2024.6", 1)):
        state = State(environment=MACHINE, installed={"greet": InstalledPackage(version=there)})
        async with channel(index, tmp_path).supplied("owner", [Requirement("greet")], state) as (found, files):
            assert ([each.name for each in found.packages], len(files)) == (["greet"], missing)


async def test_configuration_of_the_machine_is_not_followed(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_NO_BINARY", ":all:")
    index.add("greet", "1.0")
    assert [each.name for each in await resolve(index, "greet")] == ["greet"]


async def test_versions_that_exclude_each_other_are_a_conflict(index: Index) -> None:
    index.add("greet", "1.0")
    with pytest.raises(ConflictError):
        await resolve(index, "greet", pins={"greet": "2.0"})


async def test_download_that_is_not_what_was_announced_is_refused(index: Index, tmp_path: Path) -> None:
    index.add("greet", "1.0")
    packages, state = channel(index, tmp_path, kept=0), State(environment=MACHINE, installed={})
    async with packages.supplied("owner", [Requirement("greet")], state) as (_, [(_, content)]):
        assert hashlib.sha256(content.file.read()).hexdigest() == content.sha256
    index.add("greet", "1.0", content=wheel("greet", "1.0", files={"greet/more.py": ""}))
    with pytest.raises(SandpodError, match="What was downloaded of greet is not what the index announced") as caught:
        async with packages.supplied("owner", [Requirement("greet")], state):
            pass
    assert caught.value.code == ErrorCode.BACKEND_ERROR


async def test_index_that_does_not_answer_is_given_up(index: Index) -> None:
    index.add("greet", "1.0")
    index.hold.clear()
    with pytest.raises(SandpodError) as caught:
        await resolve(index, "greet", seconds=0.5)
    assert caught.value.code == ErrorCode.TIMEOUT


async def test_index_that_does_not_let_this_server_in_is_not_one_without_the_package() -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(403)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            with pytest.raises(SandpodError) as caught:
                await resolve(Index(url=f"http://127.0.0.1:{server.server_port}/simple"), "greet")
        finally:
            server.shutdown()
            thread.join()
    assert caught.value.code == ErrorCode.BACKEND_UNAVAILABLE


def test_what_a_sandbox_says_of_itself_is_checked() -> None:
    installed = {"good": {"version": "1.0"}, "../bad": {"version": "1"}, "worse": {"version": "1 --pre"}, "x": 3}
    state = State.model_validate({"environment": MACHINE.model_dump(), "installed": installed})
    assert list(state.installed) == ["good"]
    for field, value in (("abi", "--pre"), ("platform", "linux-x; y"), ("libc", ["glibc", "$(x)"])):
        with pytest.raises(ValueError, match=field):
            Target.model_validate({**MACHINE.model_dump(), field: value})


def test_musl_has_wheels_of_its_own() -> None:
    options = MACHINE.model_copy(update={"libc": ("", "")}).pip_options()
    assert "musllinux_1_2_aarch64" in options
    assert not any("manylinux" in option for option in options)
