"""Background work that is repeated for as long as a server runs."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from prometheus_client import Counter

from sandpod_gateway.errors import SandpodError

logger = logging.getLogger(__name__)


async def every(seconds: float, work: Callable[[], Awaitable[None]], *, task: str, failures: Counter) -> None:
    """Repeat `work` until cancelled, with a pause of so many seconds before each round.

    A round that fails is logged and counted under the task's name, and the next one follows.
    """
    last: str | None = None
    while True:
        await asyncio.sleep(seconds)
        try:
            await work()
        except Exception as error:
            failures.labels(task).inc()
            if repr(error) != last:  # once, not every other second for as long as it lasts
                if isinstance(error, SandpodError):
                    logger.error("%s: %s %s", task, error.message, error.next_step)  # noqa: TRY400 - no bug of ours
                else:
                    logger.exception("%s failed", task)
            last = repr(error)
        else:
            if last is not None:
                logger.info("%s works again", task)
            last = None
