"""Bombs in local sandboxes: processes, memory and files without end hurt only their own run. Real ones, all of them.

Needs user namespaces, as `test_local_isolation.py` does.
"""

import asyncio

import pytest

from sandpod_gateway.backends.base import ClaimRequest
from support.gateway.probes import SETTINGS, TOOLS, Box

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.needs_userns]

MIB = 2**20


@pytest.mark.promise("local-limits")
async def test_a_fork_bomb_is_bounded_and_hurts_only_its_own_sandbox(box: Box, victim: Box) -> None:
    code = """
import time
count = 0
try:
    while count < 10_000:
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)
        count += 1
except OSError as error:
    print(error.errno == errno.EAGAIN, count, flush=True)
time.sleep(60)
"""
    async with victim.talk() as peer:
        run = await peer.start(TOOLS + code)
        stopped, count = (await peer.line()).split()
        assert stopped == "True"
        assert int(count) < SETTINGS.processes
        await box.answers()
        await peer.send({"t": "cancel", "run": run})
        await peer.receive("end")
    await victim.answers()


async def test_a_fork_bomb_that_forks_itself_ends_with_its_run(box: Box, victim: Box) -> None:
    code = """
def bomb():
    while True:
        try:
            if os.fork() == 0:
                os.setsid()
        except OSError:
            pass

print("up", flush=True)
bomb()
"""
    async with victim.talk() as peer:
        run = await peer.start(TOOLS + code)
        await peer.line()
        await box.answers()
        await peer.send({"t": "cancel", "run": run})
        assert (await peer.receive("end")).header["outcome"] == "cancelled"
    await victim.answers()


@pytest.mark.promise("local-limits")
async def test_a_memory_bomb_ends_its_own_run_only(box: Box, victim: Box) -> None:
    async with victim.talk() as peer:
        _, end = await peer.output("kept = []\nwhile True:\n    kept.append(b'x' * (4 << 20))")
        assert end.header["outcome"] == "out_of_memory"
        await box.answers()
    await victim.answers()


async def test_memory_of_many_processes_is_counted_together(victim: Box) -> None:
    code = """
import time
for _ in range(8):
    if os.fork() == 0:
        kept = b"x" * (60 << 20)
        time.sleep(60)
time.sleep(60)
"""
    async with victim.talk() as peer:
        _, end = await peer.output(TOOLS + code)
        assert end.header["outcome"] == "out_of_memory"


async def test_memory_of_processes_that_hide_is_counted_too(victim: Box) -> None:
    code = """
import time
PR_SET_DUMPABLE = 4
for _ in range(8):
    if os.fork() == 0:
        libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
        kept = b"x" * (60 << 20)
        time.sleep(60)
time.sleep(60)
"""
    async with victim.talk() as peer:
        _, end = await peer.output(TOOLS + code)
        assert end.header["outcome"] == "out_of_memory"


@pytest.mark.parametrize("room", ["/tmp", "/packages"])
async def test_empty_files_without_end_run_out_of_memory_too(victim: Box, room: str) -> None:
    code = f"""
for folder in range(10_000):
    os.mkdir(f"{room}/{{folder}}")
    for file in range(1000):
        os.mknod(f"{room}/{{folder}}/{{file}}")
"""
    async with victim.talk() as peer:
        _, end = await peer.output(TOOLS + code)
        assert end.header["outcome"] == "out_of_memory"
    await victim.answers()


@pytest.mark.promise("local-limits")
async def test_a_folder_holds_no_more_than_its_size(victim: Box) -> None:
    for folder, limit in (("/workspace", 32), ("/tmp", 16), ("/dev/shm", 16), ("/packages", 16)):
        code = f"""
written = 0
try:
    with open("{folder}/fill", "wb", buffering=0) as file:
        while written < 1 << 30:
            written += file.write(bytes(1 << 20))
except OSError as error:
    tell([errno.errorcode[error.errno], written])
"""
        error, written = await victim.look(code)
        assert error == "ENOSPC"
        assert limit * MIB // 2 <= written <= limit * MIB
        await victim.answers()


@pytest.mark.promise("local-limits")
async def test_open_files_and_core_dumps_are_bounded(box: Box) -> None:
    code = """
import resource
tell([resource.getrlimit(kind) for kind in (resource.RLIMIT_NOFILE, resource.RLIMIT_CORE, resource.RLIMIT_NPROC)])
"""
    files, core, processes = await box.look(code)
    assert files == [SETTINGS.open_files] * 2
    assert core == [0, 0]
    assert processes == [SETTINGS.processes] * 2


async def test_sandboxes_are_started_and_ended_while_others_run(box: Box) -> None:
    async with box.talk() as peer:
        run = await peer.start("import time\nprint('up', flush=True)\ntime.sleep(60)")
        await peer.line()
        records = await asyncio.gather(*(box.backend.claim(ClaimRequest(owner="visitor")) for _ in range(3)))
        await asyncio.gather(*(box.backend.delete(record.name) for record in records))
        await peer.send({"t": "cancel", "run": run})
        assert (await peer.receive("end")).header["outcome"] == "cancelled"
