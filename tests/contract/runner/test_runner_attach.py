"""`attach` and `ready`: the way in that the gateway and the startup probe use, over the runner's named socket."""

import asyncio
import contextlib
import ctypes
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from support.gateway.peers import until
from support.runner.harness import MAIN, PACKAGE, PATIENCE, Client, search_path
from support.servers.silence import silent

NAME = f"sandpod-runner-test-{os.getpid()}"


def named(name: str) -> str:
    return f"from sandpod_runner.protocol import messages as protocol; protocol.SOCKET = '\\0{name}'"


SHARED = named(NAME)
"""What makes a program meet the runner that most tests here share."""
OWN = named(f"{NAME}-own")
"""What makes it meet one that a test starts itself."""


def command(*arguments: str, prelude: str = SHARED) -> list[str]:
    return [sys.executable, "-I", "-c", MAIN.format(prelude), str(PACKAGE), *arguments]


@contextlib.contextmanager
def serving(folder: Path, prelude: str = OWN, **env: str) -> "Iterator[subprocess.Popen[bytes]]":
    variables = {"PATH": search_path(), "SANDPOD_WORKSPACE": str(folder), "TMPDIR": str(folder), **env}
    words = command("serve", prelude=prelude)
    process = subprocess.Popen(
        words, env=variables, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
    )
    try:
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE)


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[subprocess.Popen[bytes]]":
    """A runner that serves."""
    with serving(tmp_path_factory.mktemp("shared"), SHARED) as process:
        assert process.stderr is not None
        assert b"ready" in process.stderr.readline()
        yield process


async def heard(process: "subprocess.Popen[bytes]", word: bytes) -> bytes:
    """Return the line that a process says with this word in it."""
    assert process.stderr is not None
    while line := await asyncio.to_thread(process.stderr.readline):
        if word in line:
            return line
    raise AssertionError(f"it ended without {word!r}")


def started(prelude: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(command("attach", prelude=prelude), stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def command_line(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


@contextlib.asynccontextmanager
async def attached(prelude: str = SHARED) -> AsyncIterator[tuple[Client, "subprocess.Popen[bytes]"]]:
    """A client of an `attach` that has pipes, as a container runtime gives them to an exec."""
    ours, theirs = socket.socketpair()
    process = started(prelude)
    assert process.stdin is not None
    assert process.stdout is not None
    pumps = [
        threading.Thread(target=pump, args=(theirs.fileno(), process.stdin.fileno(), process.stdin.close)),
        threading.Thread(target=pump, args=(process.stdout.fileno(), theirs.fileno(), shut(theirs))),
    ]
    for each in pumps:
        each.start()
    client = Client(ours)
    await client.greet()
    try:
        yield client, process
    finally:
        await client.close()
        await asyncio.to_thread(process.wait, PATIENCE)
        for each in pumps:
            await asyncio.to_thread(each.join, PATIENCE)
        theirs.close()
        process.stdout.close()


def shut(sock: socket.socket) -> Callable[[], None]:
    def end() -> None:
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)

    return end


def pump(source: int, target: int, end: Callable[[], None]) -> None:
    """Pass bytes on until there are no more, or nobody takes them."""
    with contextlib.suppress(OSError):
        while data := os.read(source, 65536):
            view = memoryview(data)
            while view:
                view = view[os.write(target, view) :]
    end()


@pytest.mark.usefixtures("process")
async def test_attach_joins_its_streams_to_the_runner_and_ends_with_them() -> None:
    async with attached() as (client, attach):
        # As soon as it has handed its streams over it is no interpreter; while it executes the shell it has no name.
        await until(lambda: command_line(attach.pid).startswith(b"sh\0-c\0read"))
        assert (await client.run("print('hello')")).out == b"hello\n"
        large = await client.run("import sys; sys.stdout.write('x' * 3_000_000)")
        assert len(large.out) == 3_000_000
        echo = await client.run("cat", "shell", input=bytes(2_000_000))
        assert echo.out == bytes(2_000_000)
    assert attach.returncode == 0


@pytest.mark.usefixtures("process")
async def test_stream_in_an_image_without_a_shell_ends_as_well() -> None:
    none = f"{SHARED}; from sandpod_runner.server import attach; attach._SHELL = '/nonexistent'"
    async with attached(none) as (client, attach):
        assert b"\0attach\0" in command_line(attach.pid)
        assert (await client.run("print(1)")).out == b"1\n"
    assert attach.returncode == 0


@pytest.mark.usefixtures("process")
async def test_killed_attach_ends_its_stream_and_no_other() -> None:
    async with attached() as (other, _), attached() as (client, attach):
        name = await client.start("print('up', flush=True); input()", stdin=True)
        await client.until_output(name, b"up\n")
        attach.kill()
        # A node does not report the end of every exec that is killed: the runner's word comes before it, if at all.
        last = await client.next()
        assert last is not None
        assert last.kind == "bye"
        assert await client.next() is None
        assert name in (await other.ask("ping")).header["runs"]
        await other.send({"t": "cancel", "run": name})


async def test_attach_one_of_whose_streams_is_no_pipe_ends(process: "subprocess.Popen[bytes]", tmp_path: Path) -> None:
    with (tmp_path / "file").open("w+b") as file:
        for which in ("stdin", "stdout"):
            stdin, stdout = (file if name == which else subprocess.PIPE for name in ("stdin", "stdout"))
            with await asyncio.to_thread(subprocess.Popen, command("attach"), stdin=stdin, stdout=stdout) as attach:
                assert b"refused" in await heard(process, b"stream")
                assert await asyncio.to_thread(attach.wait, PATIENCE) == 0
    async with attached() as (client, _):
        assert (await client.run("print(1)")).out == b"1\n"


@pytest.mark.usefixtures("process")
async def test_who_connects_and_hands_nothing_over_is_left() -> None:
    for said in (b"", b"h", b"x"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stranger:
            stranger.connect(f"\0{NAME}")
            stranger.sendall(said)
            if not said:
                stranger.shutdown(socket.SHUT_WR)
            assert await asyncio.to_thread(stranger.recv, 1) == b""
    async with attached() as (client, _):
        assert (await client.run("print(1)")).out == b"1\n"


async def test_attach_ends_when_the_runner_does(tmp_path: Path) -> None:
    with serving(tmp_path) as process:
        await heard(process, b"ready")
        async with attached(OWN) as (client, attach):
            process.terminate()
            assert await client.next() is None
            assert await asyncio.to_thread(attach.wait, PATIENCE) == 0


def ready(wait: float) -> "subprocess.Popen[bytes]":
    prelude = f"{OWN}\nfrom sandpod_runner.server import attach\nattach.READY_WAIT = {wait}"
    return subprocess.Popen(command("ready", prelude=prelude))


async def test_ready_tells_whether_the_runner_answers_and_waits_for_one_that_starts(tmp_path: Path) -> None:
    assert await asyncio.to_thread(ready(0.1).wait, PATIENCE) == 1
    early = ready(PATIENCE)
    with serving(tmp_path) as process:
        await heard(process, b"ready")
        assert await asyncio.to_thread(early.wait, PATIENCE) == 0
        assert await asyncio.to_thread(ready(PATIENCE).wait, PATIENCE) == 0


@pytest.mark.usefixtures("process")
@pytest.mark.parametrize(
    ("language", "code", "ended"),
    [
        ("python", "import sys; print(sys.argv[1:]); sys.exit(3)", (3, b"['a', '-b']\n", b"")),
        ("shell", 'echo "$1"; echo two >&2; kill -TERM $$', (143, b"a\n", b"two\n")),
        ("javascript", "console.log(process.argv.slice(2))", (0, b"[ 'a', '-b' ]\n", b"")),
        ("python", "print('x' * 3_000_000)", (0, b"x" * 3_000_000 + b"\n", b"")),
        ("cobol", "", (2, b"", b"This sandbox runs ")),
    ],
    ids=["exit code", "signal", "javascript", "large", "refused"],
)
async def test_run_by_hand_is_as_any_other(language: str, code: str, ended: tuple[int, bytes, bytes]) -> None:
    words = command("run", language, "a", "-b")
    ran = await asyncio.to_thread(subprocess.run, words, input=code.encode(), capture_output=True, check=False)
    assert (ran.returncode, ran.stdout, ran.stderr[: len(ended[2]) or None]) == ended


@pytest.mark.parametrize(("words", "exit_code"), [(("run", "shell"), 2), (("attach",), 1)])
async def test_without_a_runner_they_say_so(words: tuple[str, ...], exit_code: int) -> None:
    alone = command(*words, prelude=named(f"{NAME}-nobody"))
    ran = await asyncio.to_thread(subprocess.run, alone, input=b"", capture_output=True, check=False)
    assert (ran.returncode, ran.stdout) == (exit_code, b"")
    assert b"can't be reached" in ran.stderr


async def test_runner_that_reaches_what_it_must_not_ends_and_names_it(tmp_path: Path) -> None:
    sooner = f"{OWN}; from sandpod_runner.limits import network; network.PATIENCE = 0.1"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        with serving(tmp_path, sooner, SANDPOD_PROBES=address) as process:
            assert (await heard(process, b"NetworkOpen")).decode() == f"NetworkOpen: reached {address}\n"
            assert await asyncio.to_thread(process.wait, PATIENCE) == 78


async def test_runner_whose_network_opens_later_ends_with_what_runs_in_it_and_names_it(tmp_path: Path) -> None:
    sooner = f"{OWN}; from sandpod_runner.limits import network; network.SOON = network.LASTING = 0.1"
    with silent() as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        with serving(tmp_path, sooner, SANDPOD_PROBES=address, SANDPOD_PROBE_INTERVAL="1") as process:
            await heard(process, b"ready")
            async with attached(OWN) as (client, _):
                assert (await client.run("print(1)")).out == b"1\n"
                listener.listen(64)
                listener.accept()[0].close()
                assert (await heard(process, b"NetworkOpen")).decode() == f"NetworkOpen: reached {address}\n"
                assert await asyncio.to_thread(process.wait, PATIENCE) == 78


async def test_runner_that_may_have_a_network_serves_and_says_so(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        probes = f"127.0.0.1:{listener.getsockname()[1]}"
        with serving(tmp_path, SANDPOD_PROBES=probes, SANDPOD_ALLOW_OPEN_NETWORK="1") as process:
            await heard(process, b"NetworkOpen")
            await heard(process, b"ready")
            async with attached(OWN) as (client, _):
                assert (await client.run("print(1)")).out == b"1\n"


@pytest.mark.parametrize("arguments", ["nosuch", "serve --listen-fd x", "serve more", "attach x", "run"])
async def test_wrong_use_is_told(arguments: str) -> None:
    words = command(*arguments.split())
    result = await asyncio.to_thread(subprocess.run, words, check=False, capture_output=True)
    assert result.returncode == 2
    assert result.stderr.startswith(b"usage:")


def without_rights() -> None:
    """Take from what a process of root starts what no program's user has: to read and to trace what it may not."""
    drop, rights = 24, (1, 2, 19)  # PR_CAPBSET_DROP; CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_SYS_PTRACE
    for right in rights:
        ctypes.CDLL(None).prctl(drop, right, 0, 0, 0)


@pytest.mark.parametrize(("mode", "shielded"), [(0o111, True), (0o555, False)])
async def test_streams_of_an_attach_that_starts_are_closed_to_programs_of_its_user(
    tmp_path: Path,
    mode: int,
    shielded: bool,  # noqa: FBT001
) -> None:
    """As in the pod: an interpreter that can be executed and not read. One that can be read shows that it matters."""
    interpreter, gate = tmp_path / "shielded-python3", tmp_path / "gate"
    await asyncio.to_thread(shutil.copyfile, sys.executable, interpreter)
    interpreter.chmod(mode)
    os.mkfifo(gate)
    prelude = f"print(flush=True); open({str(gate)!r}).read()"
    # The shell has these rights no more when it executes the interpreter.
    words = [
        "sh",
        "-c",
        'exec "$@"',
        "sh",
        str(interpreter),
        *command("attach", prelude=prelude)[1:],
    ]
    attack = "import os, sys\nfor name in '012': os.open(f'/proc/{sys.argv[1]}/fd/{name}', os.O_RDWR)"

    def start() -> "subprocess.Popen[bytes]":
        pipe = subprocess.PIPE
        return subprocess.Popen(words, preexec_fn=without_rights, stdin=pipe, stdout=pipe, stderr=pipe)  # noqa: PLW1509  # it calls the kernel alone

    with await asyncio.to_thread(start) as starting:
        assert starting.stdout is not None
        assert await asyncio.to_thread(starting.stdout.readline) == b"\n"
        tried = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-c", attack, str(starting.pid)],
            preexec_fn=without_rights,
            capture_output=True,
            check=False,
        )
        await asyncio.to_thread(gate.write_bytes, b"")
        starting.communicate(timeout=PATIENCE)
    assert (b"PermissionError" in tried.stderr) is shielded, tried
    assert (tried.returncode == 0) is not shielded
