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
        sandboxes: Any = None  # that are not asked for anything
        packages = NpmPackages(sandboxes, settings, FileCache(tmp_path, 2**20), FairSlots(2))
        state = NpmState(environment=MACHINE, record=NpmRecord(), image={})
        with pytest.raises(SandpodError) as caught:
            async with packages.supplied("owner", [NpmRequirement("greet")], state):
                pass
    assert (caught.value.code, asked) == (ErrorCode.PACKAGE_BLOCKED, [])
