"""What the Python client and the command line cost."""

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from bench.measures import MILLIS, WARM_UP, BenchError, Refilled
from bench.rows import Row
from sandpod import AsyncSandbox
from sandpod.api import Api
from sandpod.endpoint import Endpoint
from sandpod.terminal import Terminal
from sandpod.transport import AsyncTransport

MEGABYTE: Final = 10**6
ECHO_SECONDS: Final = 300  # for all keys together
MEBIBYTE: Final = 2**20
LOCAL_SIZE: Final = 200  # MiB of a file to copy; a sandbox of the local backend has not much more
# What a process is said to have taken after its end is what its parent had, too.
_COPY: Final = """
from sandpod.cli.main import main
try:
    main()
finally:
    print(open("/proc/self/status").read().split("VmHWM:")[1].split()[0])
"""


async def client(url: str, key: str | None, count: int, refilled: Refilled) -> AsyncIterator[Row]:
    """`Sandbox.run` in a context, and keys in a terminal."""
    async with AsyncSandbox("bench-client", url=url, key=key) as sandbox:
        await refilled()
        for name, show in (("client", None), ("callback", _nothing)):
            samples = []
            for _ in range(count + WARM_UP):
                start = time.perf_counter()
                assert (await sandbox.run("print(1)", on_stdout=show)).stdout == "1\n"
                samples.append((time.perf_counter() - start) * MILLIS)
            yield Row(name, samples[WARM_UP:])
        yield Row("echo", await _echo(url, key, "bench-client", count))


async def large(url: str, key: str | None, size: int, template: str | None = None) -> AsyncIterator[Row]:
    """The memory that a file of so many MiB takes on its way in and out."""
    async with AsyncSandbox("bench-large", url=url, key=key, template=template):
        samples = await asyncio.to_thread(_both_ways, url, key, size * MEBIBYTE)
    yield Row("copy", samples, detail=f"{size} MiB")


async def upload(url: str, key: str | None, count: int, megabytes: int, refilled: Refilled) -> AsyncIterator[Row]:
    """Copy a file into a sandbox."""
    samples = []
    async with AsyncSandbox("bench-upload", url=url, key=key) as sandbox:
        await refilled()
        with tempfile.NamedTemporaryFile() as file:
            file.truncate(megabytes * MEGABYTE)
            for index in range(count + 1):
                start = time.perf_counter()
                await sandbox.files.upload(file.name, "copy")
                if index:
                    samples.append((time.perf_counter() - start) * MILLIS)
    yield Row("upload", samples, detail=f"{megabytes} MB")


def _nothing(_: str) -> None:
    pass


async def _echo(url: str, key: str | None, sandbox: str, count: int) -> list[float]:
    """Type one key after the other in a shell, and return the milliseconds until the terminal shows each."""
    shown: asyncio.Queue[bytes] = asyncio.Queue()
    api = Api(AsyncTransport(), lambda: Endpoint(url.removesuffix("/mcp"), key))
    terminal = Terminal(api, sandbox, shown.put, lambda: None)
    running, samples = asyncio.create_task(terminal.run()), []

    async def until(text: bytes) -> None:
        seen = b""
        while text not in seen:
            seen += await shown.get()

    try:
        async with asyncio.timeout(ECHO_SECONDS):
            await until(b"$ ")
            for _ in range(count + WARM_UP):
                start = time.perf_counter()
                terminal.type(b"a")
                await until(b"a")
                samples.append((time.perf_counter() - start) * MILLIS)
                terminal.type(b"\x7f")  # so that the line stays as short
                await until(b"\b")
            terminal.type(b"exit\n")
            await running
    finally:
        running.cancel()
        await api.close()
    return samples[WARM_UP:]


def _copied(url: str, key: str | None, source: str, target: str) -> float:
    """Copy a file, and return the most memory that it took, in MB."""
    environment = {**os.environ, "SANDPOD_URL": url, "SANDPOD_KEY": key or ""}
    command = [sys.executable, "-c", _COPY, "cp", "-q", source, target]
    return int(subprocess.run(command, env=environment, check=True, capture_output=True).stdout) * 1024 / MEGABYTE


def _both_ways(url: str, key: str | None, size: int) -> list[float]:
    """Copy a file of so many bytes into a sandbox and back, and return the memory that each took."""
    with tempfile.TemporaryDirectory() as folder:
        here, there, back = Path(folder, "file"), "bench-large:file", Path(folder, "back")
        with here.open("wb") as file:
            file.truncate(size)
        samples = [_copied(url, key, str(here), there), _copied(url, key, there, str(back))]
        if back.stat().st_size != size:
            raise BenchError("the copy has another size")
    return samples
