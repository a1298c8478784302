"""What the Python client and the command line cost."""

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from typing import Final

from bench.measures import MILLIS, WARM_UP
from bench.rows import Row
from sandpod import AsyncSandbox

MEGABYTE: Final = 10**6
SIZE: Final = 200  # MB; a sandbox of the local backend has not much more
# What a process is said to have taken after its end is what its parent had, too.
_COPY: Final = """
from sandpod.cli.main import main
try:
    main()
finally:
    print(open("/proc/self/status").read().split("VmHWM:")[1].split()[0])
"""


async def client(url: str, key: str | None, count: int) -> AsyncIterator[Row]:
    """`Sandbox.run` in a context, and the memory that a large file takes on its way in and out."""
    samples = []
    async with AsyncSandbox("bench-client", url=url, key=key) as sandbox:
        for _ in range(count + WARM_UP):
            start = time.perf_counter()
            assert (await sandbox.run("print(1)")).stdout == "1\n"
            samples.append((time.perf_counter() - start) * MILLIS)
        yield Row("client", samples[WARM_UP:])
        with tempfile.TemporaryDirectory() as folder:
            here, there = f"{folder}/file", "bench-client:file"
            with open(here, "wb") as file:  # noqa: ASYNC230, PTH123 - nothing else is going on
                file.truncate(SIZE * MEGABYTE)
            ways = (here, there), (there, f"{folder}/back")
            yield Row("copy", [await asyncio.to_thread(_copied, url, key, *way) for way in ways])


async def upload(url: str, key: str | None, count: int, megabytes: int) -> AsyncIterator[Row]:
    """Copy a file into a sandbox."""
    samples = []
    async with AsyncSandbox("bench-upload", url=url, key=key) as sandbox:
        with tempfile.NamedTemporaryFile() as file:
            file.truncate(megabytes * MEGABYTE)
            for index in range(count + 1):
                start = time.perf_counter()
                await sandbox.files.upload(file.name, "copy")
                if index:
                    samples.append((time.perf_counter() - start) * MILLIS)
    yield Row("upload", samples, detail=f"{megabytes} MB")


def _copied(url: str, key: str | None, source: str, target: str) -> float:
    """Copy a file, and return the most memory that it took, in MB."""
    environment = {**os.environ, "SANDPOD_URL": url, "SANDPOD_KEY": key or ""}
    command = [sys.executable, "-c", _COPY, "cp", "-q", source, target]
    return int(subprocess.run(command, env=environment, check=True, capture_output=True).stdout) * 1024 / MEGABYTE
