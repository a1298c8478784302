"""Fixtures of the contract suite: a started backend of each kind, and an owner whose sandboxes are closed after."""

import compileall
import functools
import os
import tempfile
import uuid
import venv
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from sandpod_gateway.auth.callers import owner_of
from sandpod_gateway.backends.base import Backend, ClaimRequest
from sandpod_gateway.backends.local import environments
from sandpod_gateway.backends.local import host as local_host
from sandpod_gateway.backends.local.backend import LocalBackend
from sandpod_gateway.backends.local.settings import LocalSettings
from sandpod_gateway.cli.setup import find_added_packages
from support.gateway.backends import Case, cases, servers, started
from support.gateway.made_once import made_once
from support.gateway.probes import SETTINGS, Box
from support.gateway.served import Served, connected, gateway
from support.runner.harness import PACKAGE


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "obligation(id): the promise of a backend that the test is about")
    config.addinivalue_line("markers", "needs_userns: needs user namespaces, as local sandboxes do")
    # Sandboxes can only read the runner's source: each would compile all of it anew, a third of what its start costs.
    compileall.compile_dir(PACKAGE / "sandpod_runner", quiet=1)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the tests of local sandboxes out where it was said that there are no user namespaces, and say so."""
    if "SANDPOD_TEST_NO_USERNS" not in os.environ:
        return
    left_out = [item for item in items if item.get_closest_marker("needs_userns")]
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=left_out)
    config.stash[_LEFT_OUT] = len(left_out)


_LEFT_OUT = pytest.StashKey[int]()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if count := config.stash.get(_LEFT_OUT, 0):
        terminalreporter.write_line(f"SANDPOD_TEST_NO_USERNS: {count} tests of local sandboxes were left out.")


@pytest.fixture(scope="session", autouse=True)
def once() -> Iterator[None]:
    """What no gateway can change is worked out once."""
    with made_once():
        yield


@pytest.fixture(scope="session", autouse=True)
def plain_python() -> Iterator[None]:
    """Local sandboxes for which no Python is chosen have one with a single package, whatever this machine's own has.

    Interpreters are asked once for what they are.
    """
    inspect = local_host.inspect
    with tempfile.TemporaryDirectory(prefix="python-") as parent, pytest.MonkeyPatch.context() as patch:
        folder = Path(parent) / "plain"  # the one above is this user's alone, and sandboxes have others
        venv.create(folder, symlinks=True)
        find_added_packages(folder)
        package = next(folder.glob("lib/python3*/site-packages")) / "plain-1.0.dist-info"
        package.mkdir()
        (package / "METADATA").write_text("Metadata-Version: 2.1\nName: plain\nVersion: 1.0\n", encoding="utf-8")
        python = {"python": str(folder / "bin/python3")}

        def inspected(settings: LocalSettings) -> local_host.Host:
            is_chosen = settings.python is not None or environments.ready(settings) is not None
            return inspect(settings if is_chosen else settings.model_copy(update=python))

        patch.setattr(local_host, "inspect", inspected)
        for look in ("_installation", "_node_version"):
            patch.setattr(local_host, look, functools.cache(getattr(local_host, look)))
        yield


@pytest.fixture(scope="session", params=cases())
def case(request: pytest.FixtureRequest) -> Case:
    """A kind of backend."""
    return cases()[request.param]()


@pytest.fixture(params=servers())
def server_flags(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """The flags of a gateway with one kind of sandboxes."""
    return servers()[request.param]


async def _emptied(backend: Backend, owner: str) -> None:
    for name in (owner, f"{owner}-b"):
        for record in await backend.list(name):
            await backend.delete(record.name)


@pytest.fixture
def owner(case: Case) -> str:
    """A caller that no other test knows; `<owner>-b` is another one."""
    return owner_of(case.tenant, f"test-{uuid.uuid4().hex[:12]}")


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def common(case: Case) -> AsyncIterator[Backend]:
    async with started(case.create(per_owner=8)) as backend:
        yield backend


@pytest_asyncio.fixture(loop_scope="session")
async def backend(common: Backend, owner: str) -> AsyncIterator[Backend]:
    """A started backend."""
    yield common
    await _emptied(common, owner)


@pytest_asyncio.fixture(loop_scope="session")
async def narrow(case: Case, owner: str) -> AsyncIterator[Backend]:
    """A started backend that gives an owner two sandboxes."""
    async with started(case.create(per_owner=2)) as backend:
        yield backend
        await _emptied(backend, owner)


@pytest_asyncio.fixture(loop_scope="session")
async def warm_only(case: Case, owner: str) -> AsyncIterator[Backend]:
    """A started backend that makes no sandbox on demand."""
    async with started(case.create(per_owner=8, cold_start=False)) as backend:
        yield backend
        await _emptied(backend, owner)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def address() -> AsyncIterator[str]:
    """A gateway with local sandboxes, for all tests that need no settings of their own."""
    async with gateway() as address:
        yield address


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def served(address: str) -> AsyncIterator[Served]:
    """A caller of that gateway, whose default sandbox is the module's."""
    async with connected(address, Served) as here:
        yield here


@pytest_asyncio.fixture(loop_scope="session")
async def alone(address: str) -> AsyncIterator[Served]:
    """A caller of that gateway whose default sandbox no other test has used."""
    async with connected(address, Served) as here:
        yield here


@pytest.fixture(scope="module")
def secret() -> Iterator[str]:
    """Something in the gateway's environment that no sandbox may see."""
    os.environ["SANDPOD_TEST_SECRET"] = "do-not-tell"
    yield "do-not-tell"
    del os.environ["SANDPOD_TEST_SECRET"]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def box(secret: str) -> AsyncIterator[Box]:
    """A local sandbox for all probes of a module that leave it as it was."""
    assert secret in os.environ.values()
    async with started(LocalBackend(SETTINGS)) as backend:
        yield Box(backend, (await backend.claim(ClaimRequest(owner="tester"))).name)


@pytest_asyncio.fixture(loop_scope="module")
async def victim(box: Box) -> AsyncIterator[Box]:
    """A local sandbox for a probe that may break it."""
    record = await box.backend.claim(ClaimRequest(owner="tester"))
    yield Box(box.backend, record.name)
    await box.backend.delete(record.name)
