"""Figures of the runner alone, without a gateway: `python tests/bench/bench_runner.py`.

One runner is started as a process of its own; each row is measured over its socket, one call after the other. Prints
milliseconds, but for the last rows.
"""

import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).parents[1]))
from sandpod_runner.ipc import process_tree
from support.runner.harness import Client, Runner, running

MODULES: Final = "numpy,pandas"
ROUNDS: Final = 200
FIRST_CELLS: Final = 10
JS_ROUNDS: Final = 20
JS_PAUSE: Final = 0.5
"""Seconds in which the next spare Node process gets ready."""
BYTES: Final = 200 * 1024 * 1024
SETTLE: Final = 1.0
"""Seconds after which the runner is idle."""


def row(name: str, values: list[float]) -> None:
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    print(f"{name:<48} {cuts[49]:8.2f} {cuts[94]:8.2f} {cuts[98]:8.2f}")


async def timed(
    action: Callable[[], Awaitable[object]],
    rounds: int,
    pause: float = 0.0,
    after: Callable[[], Awaitable[object]] | None = None,
) -> list[float]:
    values = []
    for _ in range(rounds):
        begin = time.perf_counter()
        await action()
        values.append((time.perf_counter() - begin) * 1000)
        if after is not None:
            await after()
        await asyncio.sleep(pause)
    return values


async def ping(client: Client) -> None:
    await client.send({"t": "ping", "id": 1})
    await client.next()


async def runs(
    client: Client,
    name: str,
    code: str,
    language: str,
    *,
    rounds: int,
    pause: float = 0.0,
    context: str | None = None,
) -> None:
    inside: list[float] = []

    async def once() -> None:
        result = await client.run(code, language, context=context)
        assert result.outcome == "ok", result
        inside.append(result.end["duration_ms"])

    outside = await timed(once, rounds, pause)
    row(f"{name}, from call to end", outside)
    row(f"{name}, inside", inside)


async def first_cell(client: Client) -> None:
    """Run the first cell of a context, which has to be made for it."""
    assert (await client.run("1 + 1", context="first")).outcome == "ok"


async def end_context(client: Client) -> None:
    await client.ask("restart", context="first")


async def throughput(client: Client) -> float:
    code = f"import sys\nb = b'x' * 65536\nfor _ in range({BYTES // 65536}): sys.stdout.buffer.write(b)"
    begin = time.perf_counter()
    result = await client.run(code, output_limit=2 * BYTES, timeout=120)
    assert len(result.out) == BYTES
    return BYTES / (time.perf_counter() - begin) / 1e6


def idle_memory(runner: Runner) -> str:
    """Return the memory of the runner and what it started, MB, each shared page counted once; only root may look."""
    tree = process_tree.trees([runner.pid], process_tree.parents())
    try:
        lines = [line for pid in tree for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()]
    except PermissionError:
        return "only root can see it"
    return f"{sum(int(line.split()[1]) for line in lines if line.startswith('Pss:')) / 1024:.1f}"


async def measure(runner: Runner) -> None:
    client = await runner.connect()
    await client.run("print(1)")
    print(f"{'':<48} {'p50':>8} {'p95':>8} {'p99':>8}")
    row("frame there and back", await timed(lambda: ping(client), ROUNDS))
    await runs(client, "print(1) in Python", "print(1)", "python", rounds=ROUNDS)
    await runs(client, "the same every 30 ms", "print(1)", "python", rounds=ROUNDS, pause=0.03)
    await runs(client, "1 + 1 in a context", "1 + 1", "python", rounds=ROUNDS, context="bench")
    row("its first cell", await timed(lambda: first_cell(client), FIRST_CELLS, after=lambda: end_context(client)))
    await runs(client, "true in the shell", "true", "shell", rounds=ROUNDS)
    await client.run("1", "javascript")
    await asyncio.sleep(JS_PAUSE)
    await runs(
        client, "console.log(1), a spare ready", "console.log(1)", "javascript", rounds=JS_ROUNDS, pause=JS_PAUSE
    )
    await runs(client, "the same, one after the other", "console.log(1)", "javascript", rounds=JS_ROUNDS)
    await runs(client, "1 + 1 in a context of JavaScript", "1 + 1", "javascript", rounds=ROUNDS, context="js")
    print(f"{'output, MB/s':<48} {await throughput(client):8.1f}")
    await client.close()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, running(Path(folder)) as runner:
        time.sleep(SETTLE)
        print(f"{'idle memory without pre-imports, MB':<48} {idle_memory(runner):>8}")
    with tempfile.TemporaryDirectory() as folder, running(Path(folder), SANDPOD_PREIMPORT=MODULES) as runner:
        asyncio.run(measure(runner))


if __name__ == "__main__":
    main()
