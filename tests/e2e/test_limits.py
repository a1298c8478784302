"""What a greedy or hostile program takes is its own sandbox's, never a neighbour's or the node's."""

import pytest

from support.cluster.callers import Session
from support.cluster.cluster import Cluster

MEMORY_BOMB = """
blocks = []
while True:
    blocks.append(bytearray(16 * 1024 * 1024))
"""

FORK_BOMB = """
import os, time
made = 0
try:
    while True:
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)
        made += 1
except OSError as error:
    print("stopped:", error.strerror, made < 5000)
"""

DISK_BOMB = """
block = b"x" * (1024 * 1024)
with open("big", "wb") as file:
    for _ in range(20_000):
        file.write(block)
"""

TWO_BUSY_PROCESSES = """
import os, time
for _ in range(2):
    if os.fork() == 0:
        end = time.monotonic() + 1
        while time.monotonic() < end: pass
        os._exit(0)
for _ in range(2): os.wait()
"""


async def unharmed(session: Session, sandbox: str) -> bool:
    reply = await session.python("print(sum(range(10)))", sandbox=sandbox)
    return bool(reply["stdout"] == "45\n")


@pytest.mark.promise("memory-bomb", "out-of-memory")
async def test_memory_bomb_ends_its_own_run_and_says_out_of_memory(
    session: Session, other: str, sandbox: str, cluster: Cluster
) -> None:
    before = await cluster.restarts()
    reply = await session.python(MEMORY_BOMB, sandbox=other, timeout=60)
    assert (reply.data.get("outcome"), reply.error) == ("out_of_memory", None), reply
    assert (await session.python("print('alive')", sandbox=other))["stdout"] == "alive\n"
    assert await unharmed(session, sandbox)
    assert await cluster.restarts() == before


@pytest.mark.promise("fork-bomb")
async def test_fork_bomb_stops_at_the_limit_and_leaves_nothing(
    session: Session, other: str, sandbox: str, cluster: Cluster
) -> None:
    before = await cluster.restarts()
    reply = await session.python(FORK_BOMB, sandbox=other, timeout=60)
    assert "stopped: Resource temporarily unavailable True" in reply["stdout"], reply
    count = "ls -d /proc/[0-9]* | wc -l"
    left = await session.call("run_shell_command", command=count, sandbox=other)
    assert left["outcome"] == "ok", left
    assert int(left["stdout"]) < 30, left
    assert await unharmed(session, sandbox)
    assert await cluster.restarts() == before


@pytest.mark.promise("disk-full")
async def test_disk_bomb_stops_at_the_workspace_size(session: Session, other: str, sandbox: str) -> None:
    reply = await session.python(DISK_BOMB, sandbox=other, timeout=60)
    assert reply["outcome"] in {"error", "out_of_memory"}, reply
    assert (await session.python("import os; os.remove('big'); print('room again')", sandbox=other))["outcome"] == "ok"
    assert await unharmed(session, sandbox)


@pytest.mark.promise("cpu-bounded")
async def test_processor_time_is_bounded_by_the_template(session: Session, sandbox: str) -> None:
    reply = await session.python(TWO_BUSY_PROCESSES, sandbox=sandbox, timeout=60)
    # One core is the limit. What the two took can't be more than that, however idle the machine is.
    assert reply["cpu_ms"] <= 1.25 * reply["duration_ms"], reply


async def test_the_pod_itself_has_every_limit(cluster: Cluster, sandbox: str) -> None:
    pod = await cluster.pod_of(sandbox)
    (container,) = pod["spec"]["containers"]
    assert {"cpu", "memory", "ephemeral-storage"} <= container["resources"]["limits"].keys()
    assert pod["spec"]["activeDeadlineSeconds"] > 0
    assert pod["spec"]["automountServiceAccountToken"] is False
    assert pod["spec"]["enableServiceLinks"] is False
    sized = [volume["emptyDir"] for volume in pod["spec"]["volumes"] if "emptyDir" in volume]
    assert sized
    assert all("sizeLimit" in volume for volume in sized)
