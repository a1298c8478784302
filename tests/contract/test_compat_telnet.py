"""The telnet tools of another system over local sandboxes: real servers in a sandbox, which has no other network."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx2
import pytest
import pytest_asyncio
from fastmcp import Client

from support.background import read_until
from support.gateway.served import LOCAL, Served, gateway

FLAGS = (*LOCAL, "--compat.systems", "chrishayuk", "--tools", '["all"]')
SERVER = r"""
import socket, threading
def serve(line):
    # WILL ECHO, then DO NAWS cut in two by a pause, a subnegotiation, and an escaped 255.
    line.sendall(b'hello\r\n\xff\xfb\x01\xff'); line.sendall(b'\xfd\x1f\xff\xfa\x18\x01\xff\xf0')
    for command in line.makefile('rb'):
        declined = command.count(b'\xff')
        command = command.replace(b'\xff\xfe\x01', b'').replace(b'\xff\xfc\x1f', b'').strip().decode()
        if command == 'quit':
            break
        if command == 'large':
            line.sendall(b'x' * 5000)
        elif command != 'silence':
            line.sendall(f'{command}: {declined} declined\r\n'.encode())
    line.close()
listener = socket.create_server(('127.0.0.1', 2323))
print('listening\n', end='', flush=True)
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"""

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.needs_userns]


@asynccontextmanager
async def place(*flags: str) -> AsyncIterator[Served]:
    async with gateway(*FLAGS, *flags) as address, Client(f"{address}/mcp") as mcp, httpx2.AsyncClient() as http:
        http.base_url = httpx2.URL(address)
        yield Served(mcp, http)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def here() -> AsyncIterator[Served]:
    """A caller with a server where the connections are made from."""
    async with place() as here:
        await here.call("create_sandbox", session_id="telnet")
        [sandbox] = (await here.call("list_sandboxes"))["sandboxes"]
        run = await here.call("start_run", code=SERVER, sandbox=sandbox["sandbox"])
        await read_until(here.call, run["run_id"], "listening\n")
        yield here


async def test_a_connection_stays_between_calls_until_it_is_closed(here: Served) -> None:
    made = await here.call("connect", host="127.0.0.1", port=2323)
    session = made.pop("session_id")
    assert made == {"connected": True, "host": "127.0.0.1", "port": 2323, "initial_response": "hello\r\n"}
    said = await here.call("send_command", session_id=session, command="é 'x'\"")
    assert said == {"success": True, "response": "é 'x'\": 2 declined\r\n"}
    other = (await here.call("connect", host="localhost", port=2323))["session_id"]
    listed = await here.call("list_connections")
    assert listed["count"] == 2
    assert {"session_id": other, "host": "localhost", "port": 2323} in listed["connections"]
    large = await here.call("send_command", session_id=session, command="large")
    assert large["response"] == "x" * 4096
    rest = await here.call("send_command", session_id=session, command="more")
    assert rest["response"].startswith("x" * 904)
    assert (await here.call("disconnect", session_id=session))["success"] is True
    assert [each["session_id"] for each in (await here.call("list_connections"))["connections"]] == [other]
    gone = await here.call("send_command", session_id=session, command="x")
    assert (gone["success"], "No active connection" in gone["error"]) == (False, True)
    await here.call("disconnect", session_id=other)


async def test_silence_and_the_end_of_a_connection_are_told_apart(here: Served) -> None:
    session = (await here.call("connect", host="127.0.0.1", port=2323))["session_id"]
    silent = await here.call("send_command", session_id=session, command="silence", timeout=1)
    assert (silent["success"], "said nothing within 1 seconds" in silent["error"]) == (False, True)
    assert (await here.call("send_command", session_id=session, command="on"))["response"].startswith("on: ")
    closed = await here.call("send_command", session_id=session, command="quit")
    assert (closed["success"], "has closed the connection" in closed["error"]) == (False, True)
    assert (await here.call("disconnect", session_id=session))["success"] is True


async def test_what_the_sandbox_can_not_reach_is_refused_with_what_to_do(here: Served) -> None:
    refused = await here.call("connect", host="127.0.0.1", port=here.http.base_url.port)  # the gateway's own
    assert (refused["connected"], "nothing listens there" in refused["error"]) == (False, True)
    for host in ("192.0.2.1", "example.com"):
        away = await here.call("connect", host=host, port=23)
        assert (away["connected"], "has no network" in away["error"]) == (False, True)
        assert "compat.telnet_network" in away["error"]
    for wrong in ("", "a b", "x" * 100, "a\nb"):
        assert "A host is a name" in (await here.call("connect", host=wrong, port=23))["error"]
    assert (await here.call("list_connections"))["count"] == 0


async def test_a_profile_that_there_is_not_is_refused() -> None:
    async with place("--compat.telnet-network", "web") as here:
        refused = await here.call("connect", host="example.com", port=23)
        assert (refused["connected"], "no network" in refused["error"]) == (False, True)
