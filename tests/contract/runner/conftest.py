"""A runner for each test module, and a stream to it for each test."""

from collections.abc import AsyncIterator, Iterator

import pytest

from contract.notebook import Notebook
from contract.runner_harness import Client, Runner, running


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    with running(tmp_path_factory.mktemp("runner")) as started:
        yield started


@pytest.fixture
async def client(runner: Runner) -> AsyncIterator[Client]:
    client = await runner.connect()
    yield client
    await client.close()


@pytest.fixture
async def notebook(client: Client, request: pytest.FixtureRequest) -> AsyncIterator[Notebook]:
    """A context of its own for each test; the oldest empty one makes room."""
    notebook = Notebook(client, request.node.name[:100])
    yield notebook
    await notebook.restart()
