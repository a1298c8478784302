"""How long a task may work before other tasks have their turn: for loops that the other side keeps busy."""

import asyncio
from time import monotonic
from typing import Final

TURN: Final = 0.001
"""Seconds. Each busy stream of a gateway takes one before everybody else is served."""


class Turn:
    """One task's turns. Waiting counts as work, which costs a loop that has waited one pass of the event loop."""

    def __init__(self) -> None:
        self._end = monotonic() + TURN

    @property
    def over(self) -> bool:
        """Whether it is time to let others run."""
        return monotonic() >= self._end

    async def renew(self) -> None:
        """Let every other task that is ready run once, and begin the next turn."""
        await asyncio.sleep(0)
        self._end = monotonic() + TURN
