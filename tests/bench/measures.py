"""How each figure is taken, as a client sees it: through MCP over HTTP, one call after the other.

Called by `bench.py` with a connected session. Each yields rows; none judges them.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

import httpx2

from bench.rows import Row
from support.cluster.callers import Reply, Session

WARM_UP = 10  # calls before the first that counts
NODE_PAUSE = 0.25  # seconds in which the next Node gets ready
MILLIS = 1000
MEGA = 1_000_000

PRINT_TIMES = """
import time
for _ in range({count}):
    print(repr(time.time()), flush=True)
    time.sleep(0.15)
"""

PRINT_MUCH = """
import os
block = b"x" * 99_999 + b"\\n"
for _ in range({blocks}):
    os.write(1, block)
"""

Refilled = Callable[[], Awaitable[object]]
"""Returns once the pool is full: the start of what replaces a sandbox in it is measured elsewhere."""

CGROUP_MEMORY = "cat /sys/fs/cgroup/memory.current 2>/dev/null || cat /sys/fs/cgroup/memory/memory.usage_in_bytes"


class BenchError(RuntimeError):
    """A call did not do what it is measured for."""


def checked(reply: Reply) -> Reply:
    """Return the reply of a run that went well.

    Raises:
        BenchError: It did not.
    """
    if reply.data.get("outcome") != "ok":
        raise BenchError(f"the run failed: {reply.data}")
    return reply


async def timed(count: int, call: Callable[[], Awaitable[Reply]], pause: float = 0) -> tuple[list[float], list[Reply]]:
    """Return the milliseconds and the replies of so many calls, after some that do not count, `pause` seconds apart."""
    samples, replies = [], []
    for index in range(count + WARM_UP):
        await asyncio.sleep(pause)
        start = time.perf_counter()
        reply = checked(await call())
        if index >= WARM_UP:
            samples.append((time.perf_counter() - start) * MILLIS)
            replies.append(reply)
    return samples, replies


async def in_turns(
    count: int, plain: Callable[[], Awaitable[Reply]], other: Callable[[], Awaitable[Reply]]
) -> tuple[list[float], list[float]]:
    """Return the milliseconds of each `other`, and how many more these are than a `plain` one took just before.

    The two take turns, so that both meet the same load.
    """

    async def took(call: Callable[[], Awaitable[Reply]]) -> float:
        start = time.perf_counter()
        checked(await call())
        return (time.perf_counter() - start) * MILLIS

    pairs = [(await took(plain), await took(other)) for _ in range(count + WARM_UP)][WARM_UP:]
    return [each for _, each in pairs], [each - first for first, each in pairs]


async def difference(plain: Session, other: Session, count: int) -> AsyncIterator[Row]:
    """How much longer the same run takes at another gateway."""
    sandbox = await plain.create(name="bench-plain")
    others = await other.create(name="bench-other", secrets={"BENCH_TOKEN": "a-value-that-is-masked"})
    _, more = await in_turns(
        count, lambda: plain.python("print(1)", sandbox=sandbox), lambda: other.python("print(1)", sandbox=others)
    )
    yield Row("team", more)
    await plain.close(sandbox)
    await other.close(others)


async def rest(
    session: Session, http: httpx2.AsyncClient, api: str, count: int, refilled: Refilled
) -> AsyncIterator[Row]:
    """The same run by the REST API, at the address `api`, and by MCP in turns with it."""
    body = {"code": "print(1)", "sandbox": await session.create(name="bench-rest")}
    await refilled()

    async def call() -> Reply:
        answer = await http.post(f"{api}/runs", json=body)
        return Reply(answer.json(), answer.is_error)

    samples, more = await in_turns(count, lambda: session.python(**body), call)
    yield Row("rest", samples)
    yield Row("rest-more", more)
    await session.close(body["sandbox"])


async def e2b(
    session: Session, http: httpx2.AsyncClient, api: str, count: int, refilled: Refilled
) -> AsyncIterator[Row]:
    """E2B's `run_code`, at the address `api`, and a cell by MCP in turns with it: no process is started for either."""
    made = (await http.post(f"{api}/v2/sandboxes", json={})).json()
    sandbox = await session.create(name="bench-e2b")
    await refilled()
    headers = {"e2b-sandbox-id": made["sandboxID"], "x-access-token": made["envdAccessToken"]}

    async def call() -> Reply:
        answer = await http.post(f"{api}/execute", json={"code": "print(1)"}, headers=headers)
        outcome = "ok" if '"text": "1' in answer.text else answer.text  # in one piece or in two
        return Reply({"outcome": outcome}, answer.is_error)

    cell = partial(session.python, "print(1)", sandbox=sandbox, context="bench")
    samples, more = await in_turns(count, cell, call)
    yield Row("e2b", samples)
    yield Row("e2b-more", more)
    await session.close(sandbox)
    await http.delete(f"{api}/sandboxes/{made['sandboxID']}")


async def calls(session: Session, count: int, refilled: Refilled) -> AsyncIterator[Row]:
    """A sandbox in use, in each language; the Python runs also as the runner timed them."""
    sandbox = await session.create(name="bench-calls")
    await refilled()
    samples, replies = await timed(count, lambda: session.python("print(1)", sandbox=sandbox))
    yield Row("call", samples)
    yield Row("runner", [reply["duration_ms"] for reply in replies])
    samples, replies = await timed(count, lambda: session.python("1+1", sandbox=sandbox, context="bench"))
    yield Row("context", samples)
    yield Row("cell", [reply["duration_ms"] for reply in replies])
    log = {"code": "console.log(1)", "sandbox": sandbox}
    samples, replies = await timed(count // 6, lambda: session.call("run_js_code", **log), NODE_PAUSE)
    yield Row("javascript", samples)
    yield Row("node", [reply["duration_ms"] for reply in replies])
    samples, replies = await timed(count // 6, lambda: session.call("run_js_code", **log))
    yield Row("scripts", samples)
    yield Row("nodes", [reply["duration_ms"] for reply in replies])
    yield Row("listing", await bare(session, count // 3))
    samples, _ = await timed(count // 3, lambda: session.call("run_shell_command", command="true", sandbox=sandbox))
    yield Row("shell", samples)
    yield Row("eight", await eight_at_once(session, sandbox, count // 30))
    await session.close(sandbox)


async def bare(session: Session, count: int) -> list[float]:
    """Return the milliseconds of a call that runs nothing: what protocol, client and server cost."""
    samples = []
    for _ in range(count):
        start = time.perf_counter()
        await session.call("list_sandboxes")
        samples.append((time.perf_counter() - start) * MILLIS)
    return samples


async def eight_at_once(session: Session, sandbox: str, rounds: int) -> list[float]:
    """Return how many times as long each of eight runs takes as one alone; they sleep, so no processor is missed."""

    async def one() -> float:
        start = time.perf_counter()
        checked(await session.python("import time; time.sleep(0.2)", sandbox=sandbox))
        return time.perf_counter() - start

    alone = [await one() for _ in range(rounds)]
    together = [took for _ in range(rounds) for took in await asyncio.gather(*(one() for _ in range(8)))]
    typical = sorted(alone)[len(alone) // 2]
    return [took / typical for took in together]


async def in_template(session: Session, count: int, template: str, key: str) -> AsyncIterator[Row]:
    """Runs in a sandbox of another template."""
    sandbox = await session.create(name="bench-template", template=template)
    samples, _ = await timed(count, lambda: session.python("print(1)", sandbox=sandbox))
    await session.close(sandbox)
    yield Row(key, samples)


async def fresh(session: Session, count: int, refilled: Refilled) -> AsyncIterator[Row]:
    """From nothing to the first output of a warm sandbox; the pool is full again before each try.

    Those with a secret take turns with those without, so that both meet the same load.
    """
    given: dict[str, dict[str, Any]] = {"fresh": {}, "secret": {"secrets": {"BENCH_TOKEN": "a-value-that-is-masked"}}}
    samples: dict[str, list[float]] = {key: [] for key in ("claim", *given)}
    for index in range(count):
        for key, arguments in given.items():
            await refilled()
            claimed, first = await one_fresh(session, f"bench-{key}-{index}", arguments)
            samples[key].append(first)
            samples["claim"] += [claimed] if key == "fresh" else []
    for key, each in samples.items():
        yield Row(key, each)


async def one_fresh(session: Session, name: str, arguments: dict[str, Any]) -> tuple[float, float]:
    """Run something in a new sandbox; return the milliseconds until that was there, and to the first output."""
    first = 0.0

    async def note(_: str) -> None:
        nonlocal first
        first = first or time.perf_counter()

    start = time.perf_counter()
    sandbox = await session.create(name=name, **arguments)
    claimed = time.perf_counter()
    checked(await session.python("print(1)", sandbox=sandbox, on_output=note))
    # What is printed just before the end may come with the result alone.
    first = first or time.perf_counter()
    await session.close(sandbox)
    return (claimed - start) * MILLIS, (first - start) * MILLIS


async def packages(session: Session, count: int) -> AsyncIterator[Row]:
    """Install a pandas that the image has not, and what it needs, into new sandboxes; the first fills the cache."""
    samples = []
    for index in range(count + 1):
        sandbox = await session.create(name=f"bench-packages-{index}")
        start = time.perf_counter()
        done = await session.call("install_packages", packages=["pandas<3"], sandbox=sandbox, wait=300)
        took = (time.perf_counter() - start) * MILLIS
        if done.is_error or done["status"] != "success":
            print(f"  packages were not measured, since the index can't be had: {done}")
            return
        if index:
            samples.append(took)
        await session.close(sandbox)
    if samples:
        yield Row("packages", samples)


async def first_byte(session: Session, count: int) -> AsyncIterator[Row]:
    """From a program's write to its arrival here; the sandbox's clock is this machine's."""
    sandbox = await session.create(name="bench-byte")
    samples: list[float] = []

    async def note(text: str) -> None:
        now = time.time()
        for written in text.split():
            with contextlib.suppress(ValueError):
                samples.append((now - float(written)) * MILLIS)

    checked(await session.python(PRINT_TIMES.format(count=count), sandbox=sandbox, on_output=note))
    await session.close(sandbox)
    yield Row("byte", samples)


async def throughput(session: Session, megabytes: int) -> AsyncIterator[Row]:
    """How fast a program's output leaves its sandbox. The result keeps head and tail only."""
    sandbox = await session.create(name="bench-output")
    code = PRINT_MUCH.format(blocks=megabytes * 10)
    samples = []
    for _ in range(3):
        reply = checked(await session.python(code, sandbox=sandbox, timeout=120))
        if reply["stdout_bytes"] != megabytes * MEGA:
            raise BenchError(f"only {reply['stdout_bytes']} bytes came")
        samples.append(megabytes / (reply["duration_ms"] / MILLIS))
    await session.close(sandbox)
    yield Row("output", samples)


async def cold(session: Session, count: int, template: str) -> AsyncIterator[Row]:
    """A sandbox of a template that has no pool, and what it takes while it is idle."""
    samples, memory = [], []
    warm = await session.create(name="bench-imported")
    imported = await idle_memory(session, warm)
    await session.close(warm)
    for index in range(count):
        start = time.perf_counter()
        sandbox = await session.create(name=f"bench-cold-{index}", template=template)
        samples.append((time.perf_counter() - start) * MILLIS)
        memory.append(await idle_memory(session, sandbox))
        await session.close(sandbox)
    yield Row("cold", samples)
    yield Row("memory", memory)
    yield Row("imported", [imported])


async def idle_memory(session: Session, sandbox: str) -> float:
    """Return what the pod's control group holds, MB."""
    used = checked(await session.call("run_shell_command", command=CGROUP_MEMORY, sandbox=sandbox))
    return int(used["stdout"]) / MEGA


async def rate(session: Session, count: int, processor_seconds: Callable[[], float]) -> AsyncIterator[Row]:
    """Calls that the gateway serves for one second of its processor time, eight at once."""
    sandboxes = [await session.create(name=f"bench-rate-{index}") for index in range(8)]

    async def work(sandbox: str) -> None:
        for _ in range(count // len(sandboxes)):
            checked(await session.python("print(1)", sandbox=sandbox))

    await asyncio.gather(*(work(sandbox) for sandbox in sandboxes))
    before = processor_seconds()
    await asyncio.gather(*(work(sandbox) for sandbox in sandboxes))
    spent = processor_seconds() - before
    for sandbox in sandboxes:
        await session.close(sandbox)
    yield Row("rate", [count // len(sandboxes) * len(sandboxes) / spent])
