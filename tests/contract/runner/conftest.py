"""Where the tests of the runner run, and a stream for each of them.

A test runs with a runner that was started directly, or with those that its module names. One that is marked
`everywhere` runs in a local sandbox too and, where there is a cluster, in a pod: it is about what can differ there,
such as limits, processes, users, folders and streams.
"""

from collections.abc import AsyncIterator, Iterator

import pytest

from support.gateway.backends import cases, servers
from support.runner.harness import Client, Runner, Sandbox, running, without
from support.runner.notebook import Notebook
from support.runner.places import claimed


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give each test its sandboxes. A module can name several runners that are started directly."""
    if "sandbox" not in metafunc.fixturenames:
        return
    places = getattr(metafunc.module, "RUNNERS", {"direct": "runner"})
    if metafunc.definition.get_closest_marker("everywhere") is not None:
        assert "runner" not in metafunc.fixturenames, "what needs its own runner runs there alone"
        places = places | {kind: f"{kind}_sandbox" for kind in servers()}
    metafunc.parametrize("sandbox", places.values(), ids=places, indirect=True, scope="module")


@pytest.fixture(scope="package")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    """A runner that was started directly."""
    with running(tmp_path_factory.mktemp("runner")) as started:
        yield started


@pytest.fixture(scope="package")
def plain_runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    """The same without IPython."""
    folder = tmp_path_factory.mktemp("plain")
    with running(folder, PYTHONPATH=without("IPython", folder)) as started:
        yield started


@pytest.fixture(scope="package")
def local_sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """A sandbox of the local backend. It ends with these tests: others count all that there are."""
    with claimed(cases()["local"]().create(per_owner=1), tmp_path_factory.mktemp("local")) as sandbox:
        yield sandbox


@pytest.fixture(scope="package")
def kubernetes_sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """A pod of the cluster."""
    with claimed(cases()["kubernetes"]().create(per_owner=1), tmp_path_factory.mktemp("kubernetes")) as sandbox:
        yield sandbox


@pytest.fixture(scope="module")
def sandbox(request: pytest.FixtureRequest) -> Sandbox:
    """What the test runs with; see above."""
    sandbox = request.getfixturevalue(request.param)
    assert isinstance(sandbox, Sandbox)
    return sandbox


@pytest.fixture
async def client(sandbox: Sandbox) -> AsyncIterator[Client]:
    """A stream."""
    client = await sandbox.connect()
    yield client
    await client.close()


@pytest.fixture
async def other(sandbox: Sandbox) -> AsyncIterator[Client]:
    """Another one."""
    client = await sandbox.connect()
    yield client
    await client.close()


@pytest.fixture
async def notebook(client: Client, request: pytest.FixtureRequest) -> AsyncIterator[Notebook]:
    """A context of its own for each test, of Python unless the module names another LANGUAGE."""
    notebook = Notebook(client, request.node.name[:100], getattr(request.module, "LANGUAGE", "python"))
    yield notebook
    await notebook.restart()
