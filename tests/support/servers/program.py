"""A server that is a program of its own, and prints where it serves."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


@asynccontextmanager
async def started(*command: object, within: float = 60) -> AsyncIterator[str]:
    """Start a program, give the first line that it prints, and kill it afterwards."""
    process = await asyncio.create_subprocess_exec(
        *map(str, command), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    assert process.stdout is not None
    try:
        yield (await asyncio.wait_for(process.stdout.readline(), within)).decode().strip()
    finally:
        process.kill()
        await process.wait()
