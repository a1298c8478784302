"""Connections that say nothing, or half of something: they are closed, and keep nobody out."""

import asyncio
import resource
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx2
import pytest
from websockets.asyncio.client import connect as websocket

from fakes.backend import FakeBackend
from sandpod_gateway.app import Gateway
from sandpod_gateway.http import connections
from sandpod_gateway.runner import channel
from sandpod_gateway.settings import Settings
from support.gateway.peers import ACCEPT, INITIALIZE, PATIENCE, until
from support.gateway.server import listening

MOST = 20
HALF = b"POST /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"


class Peer:
    """One end of a connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def rest(self) -> bytes:
        """Return what comes until the server closes the connection."""
        try:
            return await asyncio.wait_for(self.reader.read(), PATIENCE)
        except ConnectionResetError:
            return b""


@asynccontextmanager
async def serving() -> AsyncIterator[tuple[httpx2.AsyncClient, Callable[[bytes], Any]]]:
    """Serve; gives a client, and what opens a connection and sends bytes over it."""
    settings = Settings()
    async with (
        listening(Gateway(settings, FakeBackend()), settings) as address,
        httpx2.AsyncClient(base_url=address, headers=ACCEPT, timeout=PATIENCE) as http,
        AsyncExitStack() as stack,  # a server that ends waits for what is connected
    ):

        async def connect(data: bytes) -> Peer:
            reader, writer = await asyncio.open_connection(http.base_url.host, http.base_url.port)
            stack.callback(writer.close)
            writer.write(data)
            await writer.drain()
            return Peer(reader, writer)

        yield http, connect


@pytest.mark.parametrize("data", [b"", b"P", HALF], ids=["nothing", "a byte", "half of the headers"])
async def test_a_request_that_does_not_come_is_not_waited_for(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "REQUEST_SECONDS", 0.05)
    async with serving() as (_, connect):
        peer = await connect(data)
        assert await peer.rest() == b""


async def test_bytes_that_trickle_in_do_not_put_the_end_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "REQUEST_SECONDS", 0.05)
    async with serving() as (_, connect):
        for start in (HALF, b"POST /nothing HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000000\r\n\r\n"):
            peer = await connect(start)
            ended = asyncio.create_task(peer.rest())
            async with asyncio.timeout(PATIENCE):
                while not ended.done():
                    peer.writer.write(b"a")
                    await asyncio.sleep(0.01)
            await ended  # whether an answer gets out before the end is the machine's to decide


async def test_connections_that_wait_make_room_and_those_that_are_served_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "most_connections", lambda: MOST)
    async with serving() as (http, connect):
        session = (await http.post("/mcp", json=INITIALIZE)).headers["mcp-session-id"]
        listens = {"mcp-session-id": session, "mcp-protocol-version": "2025-11-25"}
        async with http.stream("GET", "/mcp", headers=listens) as stream:
            peers = [await connect(HALF) for _ in range(5 * MOST)]
            assert (await http.get("/healthz")).status_code == 200
            assert await peers[0].rest() == b"", "the oldest that waits is the first to go"
            await until(lambda: sum(not peer.reader.at_eof() for peer in peers) <= MOST)
            answer = await http.delete("/mcp", headers=listens)
            assert answer.status_code == 200
            async for _ in stream.aiter_lines():
                pass  # it comes to its end, where a connection that was cut would raise


async def test_a_websocket_is_waited_for_and_one_whose_client_has_gone_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "REQUEST_SECONDS", 0.05)
    monkeypatch.setattr(channel, "REQUEST_TIMEOUT", None)
    settings = Settings()
    gateway = Gateway(settings, FakeBackend())
    async with listening(gateway, settings) as address:
        url = f"{address.replace('http', 'ws')}/api/v1/sandboxes/default/terminal"
        async with websocket(url) as socket:  # the sandbox never answers
            reader, writer = await asyncio.open_connection(*address.removeprefix("http://").split(":"))
            assert await Peer(reader, writer).rest() == b"", "a request is waited for no longer than this"
            writer.close()
            await (await socket.ping())
            [slot] = gateway._sandboxes._slots.values()
            assert slot.connection is not None
            await until(lambda: slot.connection is not None and bool(slot.connection.channels))
        await until(lambda: slot.connection is not None and not slot.connection.channels)
        assert not slot.connection.closed


def test_all_descriptors_that_the_system_allows_are_used_and_half_of_them_are_for_connections() -> None:
    program = (
        "import resource; from sandpod_gateway.http.connections import most_connections\n"
        "print(most_connections(), *resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    limits = (64, 200)
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        check=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, limits),
    )
    assert done.stdout.split() == ["100", "200", "200"]
