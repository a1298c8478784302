"""npm as the gateway runs it, against a registry on this machine."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.packages.cache import FileCache
from sandpod_gateway.packages.channel import FairSlots
from sandpod_gateway.packages.npm.messages import NpmRecord, NpmState, NpmTarget
from sandpod_gateway.packages.npm.packages import NpmPackages, NpmRequirement
from sandpod_gateway.packages.settings import NpmSettings, PackageSettings
from support.servers.http_server import web_server
from support.servers.npm_registry import Registry, npm_registry

MACHINE = NpmTarget(node="v24.1.0", os="linux", cpu="arm64", libc="glibc")


def channel(settings: PackageSettings, cache: Path) -> NpmPackages:
    sandboxes: Any = None  # that are not asked for anything
    return NpmPackages(sandboxes, settings, FileCache(cache, 2**20), FairSlots(2))


@pytest.fixture
def registry() -> Iterator[Registry]:
    with npm_registry() as registry:
        yield registry


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost", "[::ffff:127.0.0.1]"])
async def test_package_at_an_address_of_this_machine_is_not_fetched(
    registry: Registry, tmp_path: Path, name: str
) -> None:
    data = registry.add("greet", "1.0.0")
    asked: list[str] = []

    def answer(path: str) -> tuple[str, bytes]:
        asked.append(path)
        return "application/octet-stream", data

    with web_server(answer) as address:
        dist = registry.versions["greet"]["1.0.0"]["dist"]
        dist["tarball"] = f"{address.replace('127.0.0.1', name)}/greet.tgz"
        settings = PackageSettings(npm=NpmSettings(registry_url=registry.url))
        packages = channel(settings, tmp_path)
        state = NpmState(environment=MACHINE, record=NpmRecord(), image={})
        with pytest.raises(SandpodError) as caught:
            async with packages.supplied("owner", [NpmRequirement("greet")], state):
                pass
    assert (caught.value.code, asked) == (ErrorCode.PACKAGE_BLOCKED, [])


def test_what_is_there_satisfies_what_was_asked_for_in_the_same_way(tmp_path: Path) -> None:
    packages = {"node_modules/a": {"version": "1.5.0"}, "node_modules/a/node_modules/inner": {"version": "1.0.0"}}
    record = {"asked": {"a": "a@1"}, "packages": packages}
    image = {"a": "9.0.0", "b": "2.0.0", "../c": "1.0.0", "d": 3}
    state = NpmState.model_validate({"environment": MACHINE.model_dump(), "record": record, "image": image})
    here = channel(PackageSettings(), tmp_path)

    def present(*texts: str) -> list[str] | None:
        found = here.present(here.parse(list(texts)), state)
        return None if found is None else [f"{package.name} {package.version}" for package in found]

    assert {name: each.source for name, each in state.packages.items()} == {"a": "installed", "b": "image"}
    assert present("a@1", "b@2.0.0") == present("a", "b") == ["a 1.5.0", "b 2.0.0"]
    assert [present("a@1.5.0"), present("b@2"), present("inner")] == [None] * 3
    nowhere = state.model_copy(update={"environment": None})
    with pytest.raises(SandpodError) as caught:
        here.present(here.parse(["a"]), nowhere)
    assert caught.value.code == ErrorCode.UNSUPPORTED_LANGUAGE
