"""WebSockets of clients that read nothing, or send what costs more than it brings: little is kept, and not for long."""

import asyncio
import base64
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from ipaddress import ip_address
from pathlib import Path
from typing import Any, ClassVar

import pytest
from cryptography import x509
from starlette.types import Receive, Scope, Send
from websockets.asyncio.client import connect
from websockets.frames import Frame, Opcode

from sandpod_gateway.http import connections
from support.gateway.peers import PATIENCE, until
from support.servers.certificates import make_certificate

HANDSHAKE = (
    b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n"
    b"sec-websocket-key: " + base64.b64encode(bytes(16)) + b"\r\n\r\n"
)
LARGE = bytes(200 * 1024)  # more than a connection takes whose client does not read


class Recorded(connections.WebSocketConnection):
    """The server's end, for a look inside."""

    made: ClassVar[list["Recorded"]] = []

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.close_timeout = 0.05
        self.made.append(self)


class App:
    """Takes each WebSocket once it may, and then does what the test says."""

    def __init__(self) -> None:
        self.may, self.ended = asyncio.Event(), asyncio.Event()
        self.came: asyncio.Queue[Any] = asyncio.Queue()
        self.sends = 0  # how often much is sent at first
        self.leaves = False  # whether it ends then

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"204800")]})
            await send({"type": "http.response.body", "body": LARGE})
            return
        try:
            await self.may.wait()
            await receive()
            await send({"type": "websocket.accept"})
            for _ in range(self.sends):
                await send({"type": "websocket.send", "bytes": LARGE})
            came: Any = {"type": ""}
            while not self.leaves and came["type"] != "websocket.disconnect":
                came = await receive()
                self.came.put_nowait(came)
        finally:
            self.ended.set()


class Peer:
    """A client, of whose buffers the system keeps as little as it can."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def shake_hands(self) -> None:
        self.writer.write(HANDSHAKE)
        await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), PATIENCE)

    def stop_reading(self) -> None:
        self.writer.transport.pause_reading()  # type: ignore[attr-defined]

    def send(self, *frames: Frame) -> None:
        self.writer.write(b"".join(frame.serialize(mask=True) for frame in frames))

    async def rest(self) -> bytes:
        """Return what comes until the server closes the connection."""
        self.writer.transport.resume_reading()  # type: ignore[attr-defined]
        try:
            return await asyncio.wait_for(self.reader.read(), PATIENCE)
        except ConnectionResetError:
            return b""


@asynccontextmanager
async def serving(app: App, **options: Any) -> AsyncIterator[Peer]:
    """Serve an app; gives a client."""
    Recorded.made.clear()
    given = connections.WEBSOCKETS | {"ws": Recorded, "timeout_graceful_shutdown": 1} | options
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket() as client:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        async with connections.serving(app, listener, most=10, **given):
            client.setblocking(False)
            await asyncio.get_running_loop().sock_connect(client, listener.getsockname())
            reader, writer = await asyncio.open_connection(sock=client)
            try:
                yield Peer(reader, writer)
            finally:
                writer.transport.abort()


async def test_nothing_is_read_of_a_client_before_it_is_let_in() -> None:
    app = App()
    async with serving(app) as peer:
        peer.writer.write(HANDSHAKE)
        await until(lambda: bool(Recorded.made))
        peer.stop_reading()
        peer.send(*[Frame(Opcode.PING, bytes(100))] * 5000)
        assert not Recorded.made[0].transport.is_reading()
        app.may.set()
        peer.send(Frame(Opcode.TEXT, b"done"))
        assert (await asyncio.wait_for(app.came.get(), PATIENCE))["text"] == "done"
        peer.send(Frame(Opcode.CLOSE, b""))
        answer = await peer.rest()
        assert answer.startswith(b"HTTP/1.1 101 ")
        await asyncio.wait_for(app.ended.wait(), PATIENCE)


@pytest.mark.promise("terminal-bounded")
async def test_a_client_that_does_not_read_gets_one_pong_once_it_reads() -> None:
    app = App()
    app.may.set()
    app.sends = 1
    async with serving(app) as peer:
        await peer.shake_hands()
        peer.stop_reading()
        for number in range(5000):
            peer.send(Frame(Opcode.PING, b"%099d!" % number))
        peer.send(Frame(Opcode.TEXT, b"done"))
        assert (await asyncio.wait_for(app.came.get(), PATIENCE))["text"] == "done"
        assert Recorded.made[0].transport.get_write_buffer_size() < len(LARGE) + 1024
        peer.writer.transport.resume_reading()  # type: ignore[attr-defined]
        found = b""
        while not found.endswith(b"%099d!" % 4999):
            found += await asyncio.wait_for(peer.reader.read(2**16), PATIENCE)
        assert found.count(b"!") < 100
        peer.send(Frame(Opcode.CLOSE, b""))
        await peer.rest()


async def test_a_message_of_countless_parts_ends_the_connection() -> None:
    app = App()
    app.may.set()
    async with serving(app) as peer:
        await peer.shake_hands()
        peer.send(
            Frame(Opcode.TEXT, b"", fin=False), *[Frame(Opcode.CONT, b"", fin=False)] * 5000, Frame(Opcode.CONT, b"a")
        )
        assert (await asyncio.wait_for(app.came.get(), PATIENCE))["type"] == "websocket.disconnect"


@pytest.mark.promise("terminal-bounded")
@pytest.mark.parametrize("leaves", [True, False], ids=["the app ends", "no pong comes"])
async def test_what_a_client_does_not_read_keeps_no_connection_open(*, leaves: bool) -> None:
    app = App()
    app.may.set()
    app.sends, app.leaves = 1, leaves
    seconds = 0.05 if not leaves else 60
    async with serving(app, ws_ping_interval=seconds, ws_ping_timeout=seconds) as peer:
        await peer.shake_hands()
        peer.stop_reading()
        await until(lambda: bool(Recorded.made) and Recorded.made[0].disconnected)
        await asyncio.wait_for(app.ended.wait(), PATIENCE)


async def test_whoever_has_not_read_an_answer_gets_no_websocket() -> None:
    async with serving(App()) as peer:
        peer.stop_reading()
        peer.writer.write(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n" + HANDSHAKE)
        assert b"101" not in await peer.rest()
        assert not Recorded.made


async def test_over_tls_a_client_that_reads_is_served(tmp_path: Path) -> None:
    app, (chain, key) = App(), make_certificate(tmp_path, x509.IPAddress(ip_address("127.0.0.1")))
    app.may.set()
    app.sends = 5
    given: dict[str, Any] = {**connections.WEBSOCKETS, "ssl_certfile": chain, "ssl_keyfile": key}
    trust = ssl.create_default_context(cafile=str(chain))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"wss://127.0.0.1:{listener.getsockname()[1]}"
        async with connections.serving(app, listener, most=10, **given), connect(address, ssl=trust) as client:
            pong = await client.ping()
            assert [await asyncio.wait_for(client.recv(), PATIENCE) for _ in range(app.sends)] == [LARGE] * app.sends
            await asyncio.wait_for(pong, PATIENCE)
