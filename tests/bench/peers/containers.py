"""The commands `docker exec` and `kubectl exec`, and the copies that go with them.

Each run is one command: that is what a program without Sandpod does, and what it waits for.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from functools import partial
from tempfile import NamedTemporaryFile

from bench.peers.plan import JAVASCRIPT, PYTHON, Plan, per_second, said, timed
from bench.rows import Row

# As much as Sandpod's own sandboxes may have; what they are kept from besides costs a run nothing.
LIMITS = ("--network=none", "--cap-drop=ALL", "--security-opt=no-new-privileges", "--memory=512m", "--cpus=1")


async def execs(exec_: tuple[str, ...], others: Sequence[tuple[str, ...]], plan: Plan, by: str) -> AsyncIterator[Row]:
    """Runs by a command that starts a program in a container: one after the other, then in all of them at once."""
    python = partial(said, *exec_, "python3", "-c", PYTHON, expect="1")
    yield Row("call", await timed(plan.calls, python), by)
    node = partial(said, *exec_, "node", "-e", JAVASCRIPT, expect="1")
    yield Row("scripts", await timed(plan.calls // 6, node), by)
    works = [partial(said, *each, "python3", "-c", PYTHON, expect="1") for each in others]
    yield Row("together", [await per_second(plan.runs, works)], by)


async def copies(command: tuple[str, ...], target: str, plan: Plan, by: str) -> AsyncIterator[Row]:
    """Copy a file into a container."""
    with NamedTemporaryFile() as file:
        file.truncate(plan.megabytes * 10**6)
        copy = partial(said, *command, file.name, target)
        yield Row("upload", await timed(plan.fresh, copy), by)


async def docker(plan: Plan) -> AsyncIterator[Row]:
    """Containers of Docker that wait, one for each sandbox; and one that starts for one run."""
    run = ("docker", "run", *LIMITS)
    fresh = partial(said, *run, "--rm", "--entrypoint=python3", plan.image, "-c", PYTHON, expect="1")
    yield Row("fresh", await timed(plan.fresh, fresh, 1), "docker run")
    async with AsyncExitStack() as stack:
        made = []
        for _ in plan.pods:
            made.append(await said(*run, "--detach", "--init", "--entrypoint=sleep", plan.image, "infinity"))
            stack.push_async_callback(said, "docker", "rm", "--force", made[-1])
        ways = [("docker", "exec", each) for each in made]
        async for row in execs(ways[0], ways, plan, "docker exec"):
            yield row
        async for row in copies(("docker", "cp"), f"{made[0]}:/tmp/copy", plan, "docker cp"):
            yield row


async def kubectl(plan: Plan) -> AsyncIterator[Row]:
    """The pods of Sandpod's own sandboxes, past Sandpod."""
    there = ("--namespace", plan.namespace)
    ways = [("kubectl", "exec", *there, pod, "--") for pod in plan.pods]
    async for row in execs(ways[0], ways, plan, "kubectl exec"):
        yield row
    target = f"{plan.pods[0]}:/workspace/copy"
    async for row in copies(("kubectl", "cp", *there), target, plan, "kubectl cp"):
        yield row
