"""`attach` and `ready`: the way in that the gateway and the startup probe use, over the runner's named socket."""

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from contract.runner_harness import MAIN, PACKAGE, PATIENCE, Client, search_path

NAME = f"sandpod-runner-test-{os.getpid()}"
OTHER_NAME = f"from sandpod_runner import protocol; protocol.SOCKET = '\\0{NAME}'"


def command(*arguments: str, prelude: str = OTHER_NAME) -> list[str]:
    return [sys.executable, "-I", "-c", MAIN.format(prelude), str(PACKAGE), *arguments]


@contextlib.contextmanager
def serving(folder: Path, **env: str) -> "Iterator[subprocess.Popen[bytes]]":
    variables = {"PATH": search_path(), "SANDPOD_WORKSPACE": str(folder), "TMPDIR": str(folder), **env}
    process = subprocess.Popen(
        command("serve"), env=variables, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
    )
    try:
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE)


async def heard(process: "subprocess.Popen[bytes]", word: bytes) -> bytes:
    """Return the line that a process says with this word in it."""
    assert process.stderr is not None
    while line := await asyncio.to_thread(process.stderr.readline):
        if word in line:
            return line
    raise AssertionError(f"it ended without {word!r}")


def joined(sock: socket.socket) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(command("attach"), stdin=sock.fileno(), stdout=sock.fileno())


@contextlib.asynccontextmanager
async def attached() -> AsyncIterator[tuple[Client, "subprocess.Popen[bytes]"]]:
    ours, theirs = socket.socketpair()
    with theirs:
        process = joined(theirs)
    client = Client(ours)
    await client.greet()
    try:
        yield client, process
    finally:
        await client.close()
        await asyncio.to_thread(process.wait, PATIENCE)


async def test_attach_joins_its_streams_to_the_runner_and_ends_with_them(tmp_path: Path) -> None:
    with serving(tmp_path) as process:
        await heard(process, b"ready")
        async with attached() as (client, attach):
            assert (await client.run("print('hello')")).out == b"hello\n"
            large = await client.run("import sys; sys.stdout.write('x' * 3_000_000)")
            assert len(large.out) == 3_000_000
            echo = await client.run("cat", "shell", input=bytes(2_000_000))
            assert echo.out == bytes(2_000_000)
        assert attach.returncode == 0


async def test_attach_ends_when_the_runner_does(tmp_path: Path) -> None:
    with serving(tmp_path) as process:
        await heard(process, b"ready")
        async with attached() as (client, attach):
            process.terminate()
            assert await client.next() is None
            assert await asyncio.to_thread(attach.wait, PATIENCE) == 0


async def test_ready_tells_whether_the_runner_answers(tmp_path: Path) -> None:
    assert await asyncio.to_thread(subprocess.call, command("ready")) == 1
    with serving(tmp_path) as process:
        await heard(process, b"ready")
        assert await asyncio.to_thread(subprocess.call, command("ready")) == 0


async def test_attach_without_a_runner_says_so() -> None:
    result = await asyncio.to_thread(
        subprocess.run, command("attach"), check=False, capture_output=True, stdin=subprocess.DEVNULL
    )
    assert result.returncode == 1
    assert b"can't be reached" in result.stderr


async def test_runner_that_reaches_what_it_must_not_ends_and_names_it(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        with serving(tmp_path, SANDPOD_PROBES=address) as process:
            assert (await heard(process, b"NetworkOpen")).decode() == f"NetworkOpen: reached {address}\n"
            assert await asyncio.to_thread(process.wait, PATIENCE) == 78


async def test_runner_that_may_have_a_network_serves_and_says_so(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        probes = f"127.0.0.1:{listener.getsockname()[1]}"
        with serving(tmp_path, SANDPOD_PROBES=probes, SANDPOD_ALLOW_OPEN_NETWORK="1") as process:
            await heard(process, b"NetworkOpen")
            await heard(process, b"ready")
            async with attached() as (client, _):
                assert (await client.run("print(1)")).out == b"1\n"


@pytest.mark.parametrize("arguments", [["nosuch"], ["serve", "--stream-fd", "x"], ["serve", "more"], ["attach", "x"]])
async def test_wrong_use_is_told(arguments: list[str]) -> None:
    result = await asyncio.to_thread(subprocess.run, command(*arguments), check=False, capture_output=True)
    assert result.returncode == 2
    assert result.stderr.startswith(b"usage:")
