"""What takes more than the sandbox has is ended alone, be it a run that fills the disk or a context that is idle."""

from collections.abc import AsyncIterator, Iterator

import pytest

from support.gateway.peer import until
from support.runner.harness import Client, RefusedError, Runner, running

MIB = 1024 * 1024
NAMED = "n = 0\nwhile True:\n    n += 1\n    open(f'part-{n}', 'wb').write(bytes(1 << 20))\n"
NAMELESS = (
    "import os\nkept = []\nwhile True:\n    file = open('part', 'wb')\n    os.unlink('part')\n"
    "    file.write(bytes(1 << 20))\n    file.flush()\n    kept.append(file)\n"
)

IDLE = "import os, threading, time\ndef wait():\n    while not os.path.exists('idle'): time.sleep(0.01)\n"
"""Defines what a context's thread waits with for the end of the cell that has started it."""


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    """A runner whose workspace and packages are on a disk."""
    limits = {
        "SANDPOD_PACKAGES": str(tmp_path_factory.mktemp("packages")),
        "SANDPOD_PACKAGES_BYTES": str(24 * MIB),
        "SANDPOD_MEMORY_LIMIT": str(300 * MIB),
        "SANDPOD_WORKSPACE_BYTES": str(16 * MIB),
    }
    on_a_disk = "from sandpod_runner.files import disk; disk.in_memory = lambda folder: False"
    # Whatever other programs of this machine delete meanwhile.
    on_a_disk += "; disk._LONGEST = 0.1"
    with running(tmp_path_factory.mktemp("guard"), prelude=on_a_disk, **limits) as started:
        yield started


@pytest.fixture
async def client(runner: Runner) -> AsyncIterator[Client]:
    client = await runner.connect()
    yield client
    assert (await client.run("rm -rf ./*", "shell")).outcome == "ok"
    await client.close()


async def is_lost(client: Client, name: str) -> bool:
    [context] = [each for each in (await client.ask("list")).header["contexts"] if each["name"] == name]
    return bool(context["state"] == "lost")


@pytest.mark.parametrize("code", [NAMED, NAMELESS], ids=["named", "nameless"])
async def test_program_that_fills_the_disk_is_ended_alone(client: Client, code: str) -> None:
    bystander = await client.start("import time\nprint('up', flush=True)\nprint(input())", stdin=True, timeout=60)
    await client.until_output(bystander, b"up\n")
    result = await client.run(code, timeout=60)
    assert result.outcome == "error"
    assert result.end["signal"] == "SIGKILL"
    assert result.end["detail"] == (
        "It wrote more than the workspace's 16 MiB: delete files that are not needed any more."
    )
    # The disk may still be full, and is looked at more than once meanwhile.
    assert (await client.run("sleep 0.5", "shell")).outcome == "ok"
    await client.send({"t": "stdin", "run": bystander, "eof": True}, b"still here\n")
    assert (await client.finish(bystander)).out == b"still here\n"


# Each way to take room without writing, whose bytes the kernel counts for no process; then what stays possible.
ALLOCATE = """
import ctypes, errno, fcntl, os, struct
libc = ctypes.CDLL(None, use_errno=True)
IO_URING_SETUP, SIZE = 425, 1 << 23

def allocated(act):
    with open(f"part-{os.urandom(4).hex()}", "wb") as file:
        ctypes.set_errno(0)
        try:
            act(file.fileno())
        except OSError as error:
            return errno.errorcode[error.errno]
        code, blocks = ctypes.get_errno(), os.fstat(file.fileno()).st_blocks
        return errno.errorcode[code] if code else blocks

def fallocate(mode):
    return lambda fd: libc.fallocate(fd, mode, ctypes.c_long(0), ctypes.c_long(SIZE))

def reserve(command):
    return lambda fd: fcntl.ioctl(fd, command, struct.pack("=hhxxxxqqiI16x", 0, 0, 0, SIZE, 0, 0))

KEEP_SIZE, PUNCH_HOLE, ZERO_RANGE = 1, 2, 16
print([allocated(fallocate(mode)) for mode in (0, KEEP_SIZE, ZERO_RANGE, ZERO_RANGE | KEEP_SIZE)])
print([allocated(reserve(command)) for command in (0x40305828, 0x4030582a, 0x40305839)])
print(allocated(lambda _: libc.syscall(IO_URING_SETUP, 1, ctypes.byref(ctypes.create_string_buffer(120)))))
print(allocated(fallocate(PUNCH_HOLE | KEEP_SIZE)))
print(allocated(lambda fd: os.posix_fallocate(fd, 0, 1 << 20)))
"""


async def test_program_can_not_take_room_on_a_disk_without_writing(client: Client) -> None:
    result = await client.run(ALLOCATE)
    assert result.out.decode().splitlines() == [
        "['ENOTSUP', 'ENOTSUP', 'ENOTSUP', 'ENOTSUP']",
        "['ENOTTY', 'ENOTTY', 'ENOTTY']",
        "EPERM",
        "0",
        str((1 << 20) // 512),
    ]


async def test_program_that_fills_the_room_for_packages_is_ended_alone(client: Client) -> None:
    assert client.hello["packages_bytes"] == 24 * MIB
    bystander = await client.start("import time\nprint('up', flush=True)\nprint(input())", stdin=True, timeout=60)
    await client.until_output(bystander, b"up\n")
    # At a pace that fills no disk, should nothing end it.
    code = f"import os, time\nos.chdir(os.path.expanduser('~/.local'))\n{NAMED}    if n > 30: time.sleep(0.05)"
    result = await client.run(code, timeout=60)
    assert (result.outcome, result.end["signal"]) == ("error", "SIGKILL")
    assert result.end["detail"] == (
        "It wrote more than the 24 MiB that ~/.local may hold: delete files that are not needed any more."
    )
    await client.send({"t": "stdin", "run": bystander, "eof": True}, b"still here\n")
    assert (await client.finish(bystander)).out == b"still here\n"
    assert (await client.run("rm ~/.local/part-*; ls", "shell")).out == b""


async def test_idle_context_whose_thread_fills_the_disk_is_ended_and_says_so(client: Client) -> None:
    fill = NAMED.replace("\n", "\n    ")
    code = f"{IDLE}def fill():\n    wait()\n    {fill}\nthreading.Thread(target=fill).start()"
    assert (await client.run(code, context="filling")).outcome == "ok"
    await client.run("touch idle", "shell")
    await until("the end of the context", lambda: is_lost(client, "filling"))
    result = await client.run("1", context="filling")
    assert "filled the workspace's 16 MiB while it was idle" in result.end["detail"]
    await client.ask("restart", context="filling")


async def test_full_disk_can_be_cleared_by_a_program_that_writes_too(client: Client) -> None:
    assert (await client.run(NAMED, timeout=60)).outcome == "error"
    clear = (
        "import os, time\nfor name in sorted(os.listdir()):\n    os.unlink(name)\n"
        "    with open('note', 'wb') as file: file.write(b'x' * 8192); os.fsync(file.fileno())\n    time.sleep(0.01)\n"
    )
    assert (await client.run(clear, timeout=60)).outcome == "ok"
    assert (await client.run("ls -A", "shell")).out == b"note\n"


async def test_upload_over_what_is_left_is_refused_and_leaves_nothing(client: Client) -> None:
    await client.run("open('much', 'wb').write(bytes(10 << 20))")
    with pytest.raises(RefusedError) as refused:
        await client.upload("more", bytes(8 * MIB))
    assert refused.value.code == "quota_exceeded"
    assert (await client.run("ls -A", "shell")).out == b"much\n"
    await client.upload("more", bytes(2 * MIB))


async def test_run_that_idle_contexts_left_too_little_memory_is_told_of_them(client: Client) -> None:
    assert (await client.run("kept = b'x' * (150 << 20)", context="full")).outcome == "ok"
    # It keeps what it took: memory is watched here, and a moment's use may pass unseen.
    result = await client.run("import signal\nmuch = b'x' * (250 << 20)\nsignal.pause()", timeout=60)
    assert result.outcome == "out_of_memory"
    assert ", of which idle contexts hold a part (1; restart_context ends one)." in result.end["detail"]
    assert (await client.run("print(len(kept) >> 20)", context="full")).out == b"150\n"
    await client.ask("restart", context="full")


async def test_idle_context_that_uses_up_the_memory_is_ended_and_its_next_cell_says_so(client: Client) -> None:
    await client.run("kept = 1", context="other")
    grow = (
        f"{IDLE}held = []\ndef grow():\n    wait()\n    while True: held.append(b'x' * (1 << 20))\n"
        "threading.Thread(target=grow, daemon=True).start()"
    )
    assert (await client.run(grow, context="greedy")).outcome == "ok"
    await client.run("touch idle", "shell")
    await until("the end of the context", lambda: is_lost(client, "greedy"))
    result = await client.run("print('held' in dir())", context="greedy")
    assert (result.out, result.end["context_state"]) == (b"False\n", "lost")
    assert result.end["detail"] == (
        "The context was ended, for it used up the sandbox's 300 MiB while it was idle: "
        "this cell began without its variables."
    )
    assert (await client.run("print(kept)", context="other")).out == b"1\n"
