from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
from fastmcp import Client

from fakes.backend import FakeBackend
from sandpod_gateway.app import Gateway
from sandpod_gateway.auth.callers import LOCAL
from sandpod_gateway.settings import Settings
from support.gateway.fake_gateway import Caller, Place
from support.gateway.made_once import made_once


@pytest.fixture(scope="session", autouse=True)
def once() -> Iterator[None]:
    """What no gateway can change is worked out once."""
    with made_once():
        yield


@pytest.fixture
async def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Place]:
    """In the protocol's newer era; `ERAS` marks tests for both."""
    backend = FakeBackend()
    gateway = Gateway(Settings(), backend)
    current = [LOCAL.owner]
    for module in ("runs", "sandboxes", "files"):
        monkeypatch.setattr(f"sandpod_gateway.mcp.tools.{module}.current_owner", lambda: current[0])

    def become(owner: str) -> None:
        current[0] = owner

    @asynccontextmanager
    async def connect(owner: str) -> AsyncIterator[Caller]:
        async with Client(gateway.mcp, mode=getattr(request, "param", "auto")) as client:
            yield Caller(client, owner, become)

    async with gateway.running():
        yield Place(gateway, backend, connect)


@pytest.fixture
async def alice(place: Place) -> AsyncIterator[Caller]:
    async with place.connect("alice") as caller:
        yield caller
