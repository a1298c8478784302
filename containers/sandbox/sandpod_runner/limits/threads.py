"""The threads for what may block on a disk or a network.

All are started with the runner: later, programs may have used up all the processes that the sandbox may have.
"""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

_COUNT: Final = 4
_pool: Final = ThreadPoolExecutor(_COUNT, thread_name_prefix="blocking")
_Result = TypeVar("_Result")


def start_threads() -> None:
    """Start all of them."""
    together = threading.Barrier(_COUNT)
    for _ in range(_COUNT):
        _pool.submit(together.wait)  # each needs a thread of its own


async def in_thread(function: Callable[[], _Result]) -> _Result:
    """Return what a function returns that may block."""
    return await asyncio.get_running_loop().run_in_executor(_pool, function)
