"""Output arrives while the program runs, and a cancel reaches the process. Order and cause prove it, not a clock:
the program goes on only after the client has seen its last line.
"""

import asyncio
import contextlib
import re

import pytest

from support.cluster.callers import Caller, Session
from support.cluster.cluster import Cluster, until

FIVE = "import time\nfor i in range(5):\n    print(i)\n    time.sleep(1)\n"

# Each line is answered by a file; without live output this program would wait until its timeout.
DIALOGUE = """
import pathlib, time
for i in range(3):
    print("line", i)
    while not pathlib.Path(f"seen-{i}").exists():
        time.sleep(0.01)
print("heard everything")
"""

# Notes its process and that of a child which leaves its session, as a daemon does.
TICKS = """
import os, pathlib, time
child = os.fork()
if child == 0:
    os.setsid()
    time.sleep(600)
pathlib.Path("pids").write_text(f"{os.getpid()} {child}")
for i in range(100_000):
    print("tick", i, flush=True)
    time.sleep(0.2)
"""

# Prints how many of the two are alive.
COUNT = """
import os, pathlib
print(sum(os.path.exists(f"/proc/{pid}") for pid in pathlib.Path("/workspace/pids").read_text().split()))
"""


@pytest.mark.promise("streaming")
async def test_loop_that_prints_once_a_second_arrives_as_five_notifications(session: Session, sandbox: str) -> None:
    reply = await session.python(FIVE, sandbox=sandbox)
    spoken = [text for text in reply.progress if text.strip()]
    assert spoken == ["0\n", "1\n", "2\n", "3\n", "4\n"]
    assert reply["stdout"] == "".join(spoken)


async def test_line_is_seen_before_the_program_goes_on(session: Session, sandbox: str) -> None:
    heard = ""

    async def answer(text: str) -> None:
        nonlocal heard
        before, heard = heard, heard + text
        for number in set(re.findall(r"line (\d)\n", heard)) - set(re.findall(r"line (\d)\n", before)):
            await session.call("write_file", path=f"seen-{number}", text="", sandbox=sandbox)

    reply = await session.python(DIALOGUE, sandbox=sandbox, timeout=30, on_output=answer)
    assert (reply["outcome"], heard) == ("ok", reply["stdout"])
    assert heard.endswith("heard everything\n")


async def test_both_streams_are_streamed_and_kept_apart(session: Session, sandbox: str) -> None:
    reply = await session.call("run_shell_command", command="echo out; echo err >&2; sleep 0.5", sandbox=sandbox)
    assert (reply["stdout"], reply["stderr"]) == ("out\n", "err\n")
    assert sorted("".join(reply.progress).split()) == ["err", "out"]


@pytest.mark.promise("client-gone")
async def test_cancel_after_the_second_line_ends_the_process_in_the_pod(
    session: Session, sandbox: str, cluster: Cluster
) -> None:
    pod = (await cluster.pod_of(sandbox))["metadata"]["name"]
    second = asyncio.Event()

    async def listen(text: str) -> None:
        if "tick 1\n" in text:
            second.set()

    run = asyncio.create_task(session.python(TICKS, sandbox=sandbox, timeout=60, on_output=listen))
    async with asyncio.timeout(60):
        await second.wait()
    assert int(await cluster.in_pod(pod, COUNT)) == 2
    run.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await run

    async def ended() -> bool:
        return int(await cluster.in_pod(pod, COUNT)) == 0

    await until("the cancelled program has ended", ended, within=60)
    assert (await session.python("print('still here')", sandbox=sandbox))["stdout"] == "still here\n"


@pytest.mark.promise("client-gone")
async def test_client_that_goes_away_ends_its_run(alice: Caller, sandbox: str, cluster: Cluster) -> None:
    pod = (await cluster.pod_of(sandbox))["metadata"]["name"]
    started = asyncio.Event()

    async def listen(text: str) -> None:
        if "tick" in text:
            started.set()

    async with alice.connect() as other:
        run = asyncio.create_task(other.python(TICKS, sandbox=sandbox, timeout=60, on_output=listen))
        async with asyncio.timeout(60):
            await started.wait()
        run.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await run

    async def ended() -> bool:
        return int(await cluster.in_pod(pod, COUNT)) == 0

    await until("the run of the client that left has ended", ended, within=60)


@pytest.mark.promise("endless-output")
async def test_endless_output_costs_gateway_and_runner_no_memory(
    session: Session, sandbox: str, cluster: Cluster
) -> None:
    code = "import os\nline = b'x' * 65535 + b'\\n'\nfor _ in range({}): os.write(1, line)\nprint('last')"
    await session.python(code.format(200), sandbox=sandbox)  # buffers are as large as they get
    before = await _peaks(session, sandbox, cluster)
    reply = await session.python(code.format(2**26 // 65536), sandbox=sandbox, timeout=300)
    after = await _peaks(session, sandbox, cluster)
    assert (reply["outcome"], reply["stdout_bytes"], reply["stdout_truncated"]) == ("ok", 2**26 + 5, True)
    assert reply["stdout"].startswith("xxx")
    assert reply["stdout"].endswith("x\nlast\n")
    grown = {name: after[name] - before[name] for name in before}
    assert {name: kilobytes for name, kilobytes in grown.items() if kilobytes > 16 * 1024} == {}


async def _peaks(session: Session, sandbox: str, cluster: Cluster) -> dict[str, int]:
    """Return the most memory that the runner and each gateway has had, KiB."""
    ask = "grep VmHWM /proc/1/status"
    said = {"runner": (await session.call("run_shell_command", command=ask, sandbox=sandbox))["stdout"]}
    for pod in await cluster.component_pods("gateway"):
        said[pod] = await cluster.kubectl("exec", "-n", cluster.namespace, pod, "--", "sh", "-c", ask)
    assert len(said) > 1
    return {name: int(text.split()[1]) for name, text in said.items()}
