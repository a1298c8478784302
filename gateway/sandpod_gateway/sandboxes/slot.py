"""What a gateway remembers of one sandbox."""

import asyncio
from dataclasses import dataclass, field

from sandpod_gateway.runner.connection import RunnerConnection


@dataclass(slots=True)
class Slot:
    """A sandbox's connection, and the lock under which it is opened."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    connection: RunnerConnection | None = None
    users: int = 0
    last_used: float = 0.0
    closing: bool = False
    reported: set[str] = field(default_factory=set)  # resumes and contexts that the caller knows to be lost
    replaces: str | None = None  # for the first caller: what became of the sandbox that was here before
