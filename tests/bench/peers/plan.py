"""How much the peers are asked to do, and how their answers are timed."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

MILLIS: Final = 1000
WARM_UP: Final = 3
"""Calls before the first that counts: a peer's calls take longer than Sandpod's, and get no faster after these."""
PYTHON: Final = "print(1)"
JAVASCRIPT: Final = "console.log(1)"


class PeerError(RuntimeError):
    """A peer can't be measured here; the text says why."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What every peer does.

    Attributes:
        image: The image of Sandpod's sandboxes, which the peers' containers run, too.
        namespace: Where Sandpod's sandboxes are.
        pods: The pods of the sandboxes that are in use.
        calls: Calls of each kind.
        fresh: Fresh sandboxes.
        megabytes: The size of the file to copy.
        runs: Runs in each of as many sandboxes as there are pods, all at once.
    """

    image: str
    namespace: str
    pods: Sequence[str]
    calls: int
    fresh: int
    megabytes: int
    runs: int


async def said(*command: str, expect: str | None = None) -> str:
    """Return what a program prints.

    Raises:
        PeerError: It failed, or printed something else than what is expected.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
    except OSError as error:
        raise PeerError(f"{command[0]} can't be started: {error.strerror}") from error
    out, err = await process.communicate()
    text = out.decode().strip()
    if process.returncode != 0 or (expect is not None and text != expect):
        last = (err.decode().strip() or text).splitlines()[-1:]
        name = " ".join([Path(command[0]).name, *command[1:2]])
        raise PeerError(f"{name} failed: {''.join(last)[:300]}")
    return text


async def timed(count: int, work: Callable[[], Awaitable[object]], warm_up: int = WARM_UP) -> list[float]:
    """Return the milliseconds of so many calls, one after the other, after some that do not count."""
    samples = []
    for index in range(count + warm_up):
        begun = time.perf_counter()
        await work()
        if index >= warm_up:
            samples.append((time.perf_counter() - begun) * MILLIS)
    return samples


async def per_second(runs: int, works: Sequence[Callable[[], Awaitable[object]]]) -> float:
    """Return how many runs a second there are when each of several works runs so often, all of them at once."""

    async def repeat(work: Callable[[], Awaitable[object]]) -> None:
        for _ in range(runs):
            await work()

    for work in works:
        await work()
    begun = time.perf_counter()
    await asyncio.gather(*(repeat(work) for work in works))
    return runs * len(works) / (time.perf_counter() - begun)
