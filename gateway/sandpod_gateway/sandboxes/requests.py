"""Short requests to a sandbox's runner, whose stream may be lost meanwhile.

Idempotent requests are repeated: only using the stream of a restarted node shows that it is dead.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.backends.base import SandboxRecord
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.runner.connection import RunnerConnection
from sandpod_gateway.runner.demux import ConnectionLostError
from sandpod_gateway.sandboxes.service import Sandboxes

_T = TypeVar("_T")


async def ask_runner(
    sandboxes: Sandboxes,
    record: SandboxRecord,
    ask: Callable[[RunnerConnection], Awaitable[_T]],
    *,
    again: bool,
    use: bool = True,
) -> _T:
    """Return the result of `ask` with the sandbox's connection; with `again` it is repeated where the stream is lost.

    Unless it is a `use` of the sandbox, that may be suspended meanwhile. Raises sandbox_lost, or what `ask` raises.
    """
    if again:
        try:
            async with sandboxes.connection(record, use=use) as connection:
                return await ask(connection)
        except ConnectionLostError:
            pass
    doubt = "" if again else "; whether it was done is not known"
    async with talking(sandboxes, record, doubt=doubt, use=use) as connection:
        return await ask(connection)


@asynccontextmanager
async def talking(
    sandboxes: Sandboxes, record: SandboxRecord, *, doubt: str = "", use: bool = True
) -> AsyncIterator[RunnerConnection]:
    """Give the sandbox's connection. Raises sandbox_lost, whose message ends with `doubt`."""
    try:
        async with sandboxes.connection(record, use=use) as connection:
            yield connection
    except ConnectionLostError as error:
        raise sandbox_lost(error, doubt) from error


def sandbox_lost(error: ConnectionLostError, doubt: str = "") -> SandpodError:
    """Return what callers are told where the stream to a sandbox is lost for good; the message ends with `doubt`."""
    message, step = f"The sandbox went away meanwhile{doubt}.", "Call get_sandbox to see what became of it."
    return SandpodError(ErrorCode.SANDBOX_LOST, message, cause=str(error) or None, next_step=step)
