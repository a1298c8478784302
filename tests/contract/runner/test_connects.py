"""What a program without a network is told when it connects to elsewhere, and that it still reaches itself."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.runner.harness import Client, Runner, running

# Addresses that are nobody's (RFC 5737, RFC 3849): without an answer of the runner's these wait or take another one.
FAR = [("203.0.113.1", 80), ("198.51.100.7", 443), ("2001:db8::1", 443), ("::ffff:203.0.113.1", 80)]
ELSEWHERE = "127.0.0.2"

CONNECT = """
import errno, socket, sys
for place in sys.argv[1:]:
    host, port = place.rsplit(",", 1)
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as sock:
        print(errno.errorcode.get(sock.connect_ex((host, int(port))), "open"))
"""

OWN = """
import os, socket
name = socket.gethostname()
with socket.create_server(("0.0.0.0", 0)) as server:
    port = server.getsockname()[1]
    for host in ("127.0.0.1", "0.0.0.0", "localhost"):
        socket.create_connection((host, port)).close()
with socket.socket(socket.AF_UNIX) as server:
    server.bind("\\0connects")
    server.listen()
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect("\\0connects")
print("all made")
"""

ODD = """
import ctypes, errno, socket
libc = ctypes.CDLL(None, use_errno=True)
near = socket.inet_aton("127.0.0.1")
address = (2).to_bytes(2, "little") + bytes(2) + near + bytes(8)
for place, size in ((None, 16), (-1, 16), (2**63, 16), (8, 16), (address, 2), (address, 2**31)):
    with socket.socket() as sock:
        kept = ctypes.c_char_p(place) if isinstance(place, bytes) else ctypes.c_void_p(place)
        code = libc.connect(sock.fileno(), kept, ctypes.c_uint(size))
        print(errno.errorcode[ctypes.get_errno()])
libc.prctl(4, 0)
with socket.create_server(("127.0.0.1", 0)) as server:
    socket.create_connection(server.getsockname()).close()
print("unreadable")
"""

NODE = "fetch('http://203.0.113.1').catch(error => console.log(error.cause.code))"

AGAIN = """
import socket, sys
address = sys.argv[1], int(sys.argv[2])
refused = 0
while True:
    with socket.socket() as sock:
        code = sock.connect_ex(address)
    if code == 0:
        break
    refused += 1
print(refused > 0)
"""


def closed(folder: Path, prelude: str) -> contextlib.AbstractContextManager[Runner]:
    prelude = f"from sandpod_runner.limits import network as connects; {prelude}"
    return running(folder, prelude=prelude, SANDPOD_CLOSED_NETWORK="1")


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    """A runner that never looks whether the network is open after all: some machines answer for anybody."""
    with closed(tmp_path_factory.mktemp("closed"), "connects.AT_ONCE = 0") as started:
        yield started


async def test_connection_to_elsewhere_is_refused_as_unreachable(client: Client) -> None:
    result = await client.run(CONNECT, args=[f"{host},{port}" for host, port in FAR])
    assert result.out.split() == [b"ENETUNREACH"] * len(FAR), result.err


async def test_package_managers_try_once_unless_the_run_says_otherwise(client: Client) -> None:
    code = "import os\nprint(*(os.environ.get(name) for name in ('PIP_RETRIES', 'npm_config_fetch_retries')))"
    assert (await client.run(code)).out == b"0 0\n"
    assert (await client.run(code, env={"PIP_RETRIES": "3"})).out == b"3 0\n"


async def test_program_of_another_language_and_its_children_are_told_too(client: Client) -> None:
    assert (await client.run(NODE, "javascript")).out == b"ENETUNREACH\n"
    shell = await client.run("python3 -c 'import socket; socket.create_connection((\"203.0.113.1\", 80))'", "shell")
    assert b"Network is unreachable" in shell.err


async def test_what_is_no_address_or_can_not_be_read_is_left_to_the_kernel(client: Client) -> None:
    result = await client.run(ODD)
    assert result.out.split() == [b"EFAULT"] * 4 + [b"EINVAL"] * 2 + [b"unreadable"], result.err


async def test_connections_within_the_sandbox_are_made(client: Client) -> None:
    result = await client.run(OWN)
    assert result.out == b"all made\n", result.err


async def test_context_and_a_program_after_the_zygote_was_killed_are_told_too(client: Client) -> None:
    code = "import errno, socket\nprint(errno.errorcode[socket.socket().connect_ex(('203.0.113.1', 80))])"
    assert (await client.run(code, context="c")).out == b"ENETUNREACH\n"
    await client.run("import os, signal; os.kill(os.getppid(), signal.SIGKILL)")
    for context in ("c", None):
        result = await client.run(code, **({"context": context} if context else {}))
        assert result.out == b"ENETUNREACH\n", result


async def test_network_that_is_opened_later_is_found(tmp_path: Path) -> None:
    with socket.create_server((ELSEWHERE, 0)) as server:
        threading.Thread(target=accept, args=(server,), daemon=True).start()
        with closed(tmp_path, f"connects.is_own = lambda host: host != {ELSEWHERE!r}") as runner:
            client = await runner.connect()
            result = await client.run(AGAIN, args=[ELSEWHERE, str(server.getsockname()[1])])
            await client.close()
        assert result.out == b"True\n", result.err


def accept(server: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while True:
            server.accept()[0].close()


async def test_program_that_ends_while_it_asks_disturbs_no_other(client: Client) -> None:
    flood = """
import os, socket
for _ in range(20):
    if os.fork() == 0:
        while True:
            socket.socket().connect_ex(("203.0.113.1", 80))
os._exit(0)
"""
    for _ in range(2):
        assert (await client.run(flood)).outcome == "ok"
    assert (await client.run("print('alive')")).out == b"alive\n"
