"""What a sandbox uses at this moment."""

import asyncio
import time
from typing import Annotated, Final, NamedTuple

from pydantic import Field

from sandpod_gateway.backends.base import SandboxRecord
from sandpod_gateway.runner.connection import RunnerConnection
from sandpod_gateway.runner.messages import Count, Message, checked
from sandpod_gateway.sandboxes.requests import ask_runner
from sandpod_gateway.sandboxes.service import Sandboxes

PERIOD_SECONDS: Final = 0.2  # in which the share of a processor is measured


class _Usage(Message):
    cpu: Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)]
    memory: Count | None = None
    memory_limit: Count | None = None
    disk: Count = 0
    disk_limit: Count = 0


class Load(NamedTuple):
    """Processors in use (1.5 is one and a half), and bytes; those of memory are 0 where nothing limits it."""

    processors: float
    memory: int
    memory_limit: int
    disk: int
    disk_limit: int


async def load_of(sandboxes: Sandboxes, record: SandboxRecord) -> Load:
    """Return what a sandbox uses, which runs; to ask is no use of it. Raises sandbox_lost, backend_error."""
    return await ask_runner(sandboxes, record, measure, again=True, use=False)


async def measure(connection: RunnerConnection) -> Load:
    """Return what the sandbox at the other end uses. Raises ConnectionLostError, backend_error."""
    first, begun = checked(_Usage, await connection.ask("usage")), time.monotonic()
    await asyncio.sleep(PERIOD_SECONDS)
    last, took = checked(_Usage, await connection.ask("usage")), time.monotonic() - begun
    processors = max(0.0, last.cpu - first.cpu) / took
    return Load(processors, last.memory or 0, last.memory_limit or 0, last.disk, last.disk_limit)
