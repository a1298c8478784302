"""Work that is repeated for as long as the server runs, and outlives its own failures."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from prometheus_client import Counter

from sandpod_gateway.errors import SandpodError

logger = logging.getLogger(__name__)


async def every(seconds: float, work: Callable[[], Awaitable[None]], *, task: str, failures: Counter) -> None:
    """Do something again and again until cancelled; a round that fails is logged and counted, and the next one comes.

    Args:
        seconds: Pause before each round.
        work: One round.
        task: What the log and the metric call it.
        failures: Counts failed rounds by task.
    """
    last: str | None = None
    while True:
        await asyncio.sleep(seconds)
        try:
            await work()
        except Exception as error:  # noqa: BLE001 - the outermost loop: whatever it is, the next round must come
            failures.labels(task).inc()
            if repr(error) != last:  # once, not every other second for as long as it lasts
                _log(task, error)
            last = repr(error)
        else:
            if last is not None:
                logger.info("%s works again", task)
            last = None


def _log(task: str, error: Exception) -> None:
    if isinstance(error, SandpodError):
        logger.error("%s: %s %s", task, error.message, error.next_step)
    else:
        logger.error("%s failed", task, exc_info=error)
