"""Local sandboxes from inside: each promise is tried to be broken by a real program in a real sandbox.

Needs user namespaces. Where there are none the backend refuses to start, and so these tests fail with its sentence;
SANDPOD_TEST_NO_USERNS=1 leaves them out, and says so.
"""

import asyncio
import json
import os
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from contract.peer import talk
from sandpod_gateway.backends.base import ClaimRequest
from sandpod_gateway.backends.local import LocalBackend
from sandpod_gateway.backends.local_settings import LocalSettings

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.needs_userns]

MIB = 2**20
SETTINGS = LocalSettings(warm=0, memory="256Mi", workspace_size="32Mi", tmp_size="16Mi", processes=48)
OWNER = "isolation"
PROJECT = Path(__file__).resolve().parents[2]

SYSTEM = [
    *("/", "/usr", "/usr/bin", "/etc", "/etc/passwd", "/bin/sh", "/dev", "/dev/pts/x", "/proc", "/var", "/home"),
    *("/opt/sandpod/sandpod_runner", "/proc/sys/kernel/hostname", "/proc/sysrq-trigger", "/root", "PYTHON"),
]

# What the probes use. A call's result is the name of its error, or "done".
TOOLS = """
import ctypes, errno, json, os, socket, sys
libc = ctypes.CDLL(None, use_errno=True)

def trial(act, *arguments):
    try:
        act(*arguments)
    except OSError as error:
        return errno.errorcode.get(error.errno, type(error).__name__)
    return "done"

def call(name, *arguments):
    ctypes.set_errno(0)
    return "done" if getattr(libc, name)(*arguments) >= 0 else errno.errorcode[ctypes.get_errno()]

def tell(value):
    print(json.dumps(value), flush=True)

"""


@pytest.fixture(scope="module")
def secret() -> Iterator[str]:
    """Something in the gateway's environment that no sandbox may see."""
    os.environ["SANDPOD_TEST_SECRET"] = "do-not-tell"
    yield "do-not-tell"
    del os.environ["SANDPOD_TEST_SECRET"]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def backend(secret: str) -> AsyncIterator[LocalBackend]:
    assert secret
    backend = LocalBackend(SETTINGS)
    await backend.start()
    yield backend
    await backend.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def box(backend: LocalBackend) -> str:
    """A sandbox that all probes share which leave it as it was."""
    return (await backend.claim(ClaimRequest(owner=OWNER, session="shared"))).name


@pytest_asyncio.fixture(loop_scope="module")
async def victim(backend: LocalBackend) -> AsyncIterator[str]:
    """A sandbox for a probe that may break it."""
    record = await backend.claim(ClaimRequest(owner=OWNER))
    yield record.name
    await backend.delete(record.name)


async def look(backend: LocalBackend, name: str, code: str) -> Any:
    """Run a probe to its good end and return what it told."""
    async with talk(backend, name) as peer:
        text, end = await peer.output(TOOLS + code)
    assert end.header["outcome"] == "ok", text
    return json.loads(text)


async def answers(backend: LocalBackend, name: str) -> None:
    async with talk(backend, name) as peer:
        assert (await peer.output("print('still here')"))[0] == "still here\n"


async def test_code_is_not_root_and_in_no_group_of_roots(backend: LocalBackend, box: str) -> None:
    users, main_groups, groups = await look(backend, box, "tell([os.getresuid(), os.getresgid(), os.getgroups()])")
    assert (users, main_groups) == ([1000] * 3, [1000] * 3)
    assert 0 not in groups


async def test_code_has_no_capability_and_can_gain_none(backend: LocalBackend, box: str) -> None:
    status = await look(
        backend, box, "tell(dict(line.split(':\\t', 1) for line in open('/proc/self/status').read().splitlines()))"
    )
    assert {status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0" * 16}
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")


@pytest.mark.parametrize("path", SYSTEM)
async def test_nothing_of_the_system_can_be_written(backend: LocalBackend, box: str, path: str) -> None:
    code = f"""
path = sys.prefix if {path!r} == "PYTHON" else {path!r}
target = path + "/probe" if os.path.isdir(path) else path
tell([trial(open, target, "w"), trial(os.chmod, path, 0o777)])
"""
    written, changed = await look(backend, box, code)
    assert written in {"EROFS", "EACCES", "EPERM", "ENOENT"}
    assert changed in {"EROFS", "EPERM", "ENOENT"}


async def test_no_file_of_the_host_is_there(backend: LocalBackend, box: str) -> None:
    with tempfile.NamedTemporaryFile(prefix="sandpod-host-") as file:
        paths = [file.name, "/etc/shadow", "/etc/ssh", "/etc/hostname", "/etc/resolv.conf", "/sys", "/run", "/boot"]
        paths += ["/var/run/docker.sock", "/var/log", "/mnt", "/srv", "/media", str(PROJECT / "pyproject.toml")]
        paths += [str(Path.home() / name) for name in (".ssh", ".bashrc", ".kube", ".aws", ".profile", ".cache")]
        assert await look(backend, box, f"tell([path for path in {paths!r} if os.path.lexists(path)])") == []


async def test_a_home_shows_only_the_way_to_python(backend: LocalBackend, box: str) -> None:
    code = f"""
found = [os.path.join(folder, name) for home in ("/home", "/root") for folder, _, names in os.walk(home)
         for name in names]
tell([path for path in found if not path.startswith({sys.base_prefix!r} + "/")][:10])
"""
    assert await look(backend, box, code) == []


async def test_nothing_of_the_gateways_environment_is_there(backend: LocalBackend, box: str, secret: str) -> None:
    assert secret not in json.dumps(await look(backend, box, "tell(dict(os.environ))"))
    code = """
seen = []
for pid in filter(str.isdecimal, os.listdir("/proc")):
    try:
        seen.append(open(f"/proc/{pid}/environ").read())
    except OSError:
        pass
tell(seen)
"""
    assert secret not in json.dumps(await look(backend, box, code))


async def test_code_inherits_no_open_file_but_its_own(backend: LocalBackend, box: str) -> None:
    code = """
links = {fd: os.readlink(f"/proc/self/fd/{fd}") for fd in "012"}
tell(links | {"all": len(os.listdir("/proc/self/fd"))})
"""
    links = await look(backend, box, code)
    assert links["all"] <= 4  # the three, and the folder while it is read
    assert all(links[fd].startswith(("pipe:", "/dev/null", "socket:")) for fd in "012")


async def test_there_is_no_interface_but_loopback(backend: LocalBackend, box: str) -> None:
    assert set(await look(backend, box, "tell([name for _, name in socket.if_nameindex()])")) <= {"lo"}


async def test_no_address_can_be_reached(backend: LocalBackend, box: str) -> None:
    with closing(socket.create_server(("0.0.0.0", 0))) as server:
        port = server.getsockname()[1]
        code = f"""
def connect(host, port):
    with socket.socket() as s:
        s.settimeout(5)
        s.connect((host, port))

def send(host, port):
    with socket.socket(type=socket.SOCK_DGRAM) as s:
        s.sendto(b"x", (host, port))

def resolve():
    socket.getaddrinfo("example.com", 80)

tell([trial(connect, "127.0.0.1", {port}), trial(connect, "{_own_address()}", {port}), trial(connect, "1.1.1.1", 443),
      trial(send, "1.1.1.1", 53), trial(resolve)])
"""
        host, own, internet, datagram, name = await look(backend, box, code)
    assert host in {"ECONNREFUSED", "ENETUNREACH"}
    assert {own, internet, datagram} == {"ENETUNREACH"}
    assert name != "done"


def _own_address() -> str:
    with closing(socket.socket(type=socket.SOCK_DGRAM)) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return "192.0.2.1"
        return str(probe.getsockname()[0])


async def test_abstract_sockets_of_the_host_do_not_exist(backend: LocalBackend, box: str) -> None:
    name = f"\0sandpod-test-{os.getpid()}"
    with closing(socket.socket(socket.AF_UNIX)) as server:
        server.bind(name)
        server.listen()
        code = f"tell(trial(socket.socket(socket.AF_UNIX).connect, {name!r}))"
        assert await look(backend, box, code) == "ECONNREFUSED"


@pytest.mark.parametrize(
    ("attempt", "errors"),
    [
        ('call("unshare", 0x10000000)', {"EPERM"}),
        ('call("unshare", 0x20000)', {"EPERM"}),
        ('call("setns", os.open("/proc/1/ns/mnt", os.O_RDONLY) if os.access("/proc/1/ns/mnt", os.R_OK) else 0, 0)',
         {"EPERM"}),
        ('call("mount", b"none", b"/tmp", b"tmpfs", 0, None)', {"EPERM"}),
        ('call("umount2", b"/proc", 2)', {"EPERM"}),
        ('call("pivot_root", b"/tmp", b"/tmp") if hasattr(libc, "pivot_root") else call("syscall", 155, b"/", b"/")',
         {"EPERM"}),
        ('call("ptrace", 16, 1, 0, 0)', {"EPERM"}),
        ('call("personality", 0x40000)', {"EPERM"}),
        ('call("sethostname", b"x", 1)', {"EPERM"}),
        ('call("swapon", b"/tmp/x", 0)', {"EPERM"}),
        ('call("reboot", 0)', {"EPERM"}),
        ('call("shmget", 0, 4096, 0o1600)', {"EPERM"}),
        ('call("setuid", 0)', {"EPERM", "EINVAL"}),
        ('trial(os.chroot, "/tmp")', {"EPERM"}),
        ('trial(os.mknod, "/tmp/null", 0o20666, os.makedev(1, 3))', {"EPERM"}),
        ('trial(os.mknod, "/tmp/disk", 0o60666, os.makedev(254, 0))', {"EPERM"}),
        ("trial(os.setpriority, 0, 0, -10)", {"EACCES", "EPERM"}),
        ("trial(lambda: socket.socket(40, 1))", {"EAFNOSUPPORT"}),
        ("trial(lambda: socket.socket(17, 3))", {"EAFNOSUPPORT"}),
        ("trial(lambda: socket.socket(38, 5))", {"EAFNOSUPPORT"}),
        ("trial(lambda: socket.socket(2, 3, 1))", {"ESOCKTNOSUPPORT"}),
        ('trial(os.open, "/proc/kcore", os.O_RDONLY)', {"EACCES", "EPERM", "ENOENT"}),
        ('trial(os.open, "/proc/1/mem", os.O_RDWR)', {"EACCES", "EPERM"}),
        ('trial(os.listdir, "/proc/1/fd")', {"EACCES", "EPERM"}),
        ('trial(os.listdir, "/proc/1/root/")', {"EACCES", "EPERM"}),
    ],
)  # fmt: skip
async def test_what_programs_do_not_need_is_refused(
    backend: LocalBackend, box: str, attempt: str, errors: set[str]
) -> None:
    assert await look(backend, box, f"tell({attempt})") in errors


async def test_set_user_id_programs_give_no_rights(backend: LocalBackend, box: str) -> None:
    code = """
import shutil, subprocess
found = [p for p in map(shutil.which, ("su", "mount", "passwd", "newgrp")) if p and os.stat(p).st_mode & 0o4000]
flags = os.statvfs("/usr/bin").f_flag & os.ST_NOSUID
tell([len(found), bool(flags)])
"""
    _, nosuid = await look(backend, box, code)
    assert nosuid


async def test_killing_process_one_does_nothing(backend: LocalBackend, box: str) -> None:
    await look(backend, box, "import signal\ntell([trial(os.kill, 1, n) for n in (9, 15, 19)])")
    await answers(backend, box)


async def test_processes_of_the_host_are_invisible(backend: LocalBackend, box: str) -> None:
    code = """
tell([open(f"/proc/{pid}/cmdline").read() for pid in filter(str.isdecimal, os.listdir("/proc"))])
"""
    commands = await look(backend, box, code)
    assert 0 < len(commands) < 10
    assert not any("pytest" in command for command in commands)
    assert await look(backend, box, f"tell(trial(os.kill, {os.getpid()}, 0))") == "ESRCH"


async def test_a_fork_bomb_is_bounded_and_hurts_only_its_own_sandbox(
    backend: LocalBackend, box: str, victim: str
) -> None:
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
    async with talk(backend, victim) as peer:
        run = await peer.start(TOOLS + code)
        stopped, count = (await peer.receive("out")).payload.split()
        assert stopped == b"True"
        assert int(count) < SETTINGS.processes
        await answers(backend, box)
        await peer.send({"t": "cancel", "run": run})
        await peer.receive("end")
    await answers(backend, victim)


async def test_a_fork_bomb_that_forks_itself_ends_with_its_run(backend: LocalBackend, box: str, victim: str) -> None:
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
    async with talk(backend, victim) as peer:
        run = await peer.start(TOOLS + code)
        await peer.receive("out")
        await answers(backend, box)
        await peer.send({"t": "cancel", "run": run})
        assert (await peer.receive("end")).header["outcome"] == "cancelled"
    await answers(backend, victim)


async def test_a_memory_bomb_ends_its_own_run_only(backend: LocalBackend, box: str, victim: str) -> None:
    async with talk(backend, victim) as peer:
        _, end = await peer.output("kept = []\nwhile True:\n    kept.append(b'x' * (4 << 20))")
        assert end.header["outcome"] == "out_of_memory"
        await answers(backend, box)
    await answers(backend, victim)


async def test_memory_of_many_processes_is_counted_together(backend: LocalBackend, victim: str) -> None:
    code = """
import time
for _ in range(8):
    if os.fork() == 0:
        kept = b"x" * (60 << 20)
        time.sleep(60)
time.sleep(60)
"""
    async with talk(backend, victim) as peer:
        _, end = await peer.output(TOOLS + code)
        assert end.header["outcome"] == "out_of_memory"


async def test_memory_of_processes_that_hide_is_counted_too(backend: LocalBackend, victim: str) -> None:
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
    async with talk(backend, victim) as peer:
        _, end = await peer.output(TOOLS + code)
        assert end.header["outcome"] == "out_of_memory"


async def test_empty_files_without_end_run_out_of_memory_too(backend: LocalBackend, victim: str) -> None:
    code = """
for folder in range(10_000):
    os.mkdir(f"/tmp/{folder}")
    for file in range(1000):
        os.mknod(f"/tmp/{folder}/{file}")
"""
    async with talk(backend, victim) as peer:
        _, end = await peer.output(TOOLS + code)
        assert end.header["outcome"] == "out_of_memory"
    await answers(backend, victim)


@pytest.mark.parametrize(
    ("folder", "limit"), [("/workspace", 32 * MIB), ("/tmp", 16 * MIB), ("/dev/shm", 16 * MIB), ("/var/tmp", 16 * MIB)]
)
async def test_a_folder_holds_no_more_than_its_size(
    backend: LocalBackend, victim: str, folder: str, limit: int
) -> None:
    code = f"""
written = 0
try:
    with open("{folder}/fill", "wb", buffering=0) as file:
        while written < 1 << 30:
            written += file.write(bytes(1 << 20))
except OSError as error:
    tell([errno.errorcode[error.errno], written])
"""
    error, written = await look(backend, victim, code)
    assert error == "ENOSPC"
    assert limit // 2 <= written <= limit
    await answers(backend, victim)


async def test_no_other_folder_can_be_written(backend: LocalBackend, box: str) -> None:
    code = """
found = []
for folder, names, _ in os.walk("/", onerror=lambda _: None):
    names[:] = [name for name in names if folder != "/" or name not in ("proc", "usr", "workspace", "tmp")]
    if trial(open, folder + "/probe", "w") == "done":
        found.append(folder)
tell(found)
"""
    assert await look(backend, box, code) == ["/dev/shm"]


async def test_open_files_and_core_dumps_are_bounded(backend: LocalBackend, box: str) -> None:
    code = """
import resource
tell([resource.getrlimit(kind) for kind in (resource.RLIMIT_NOFILE, resource.RLIMIT_CORE, resource.RLIMIT_NPROC)])
"""
    files, core, processes = await look(backend, box, code)
    assert files == [SETTINGS.open_files] * 2
    assert core == [0, 0]
    assert processes == [SETTINGS.processes] * 2


async def test_another_sandboxs_files_are_invisible(backend: LocalBackend, box: str, victim: str) -> None:
    folders = ("/tmp", "/workspace", "/dev/shm")
    await look(backend, victim, f"tell([trial(open, f + '/mine', 'w') for f in {folders!r}])")
    assert await look(backend, box, f"tell([f for f in {folders!r} if os.path.exists(f + '/mine')])") == []


@pytest.mark.parametrize(
    "target", ["/etc/shadow", "/etc/passwd", "../../../etc/passwd", "/proc/1/environ", "/proc/self/root/etc/passwd"]
)
async def test_a_link_out_of_the_workspace_gives_nothing(backend: LocalBackend, box: str, target: str) -> None:
    await look(
        backend, box, f"os.path.lexists('link') and os.unlink('link')\ntell(trial(os.symlink, {target!r}, 'link'))"
    )
    async with talk(backend, box) as peer:
        reply = await peer.request({"t": "file", "op": "read", "path": "link", "offset": 0, "limit": 4096})
        assert reply.kind == "error"
        reply = await peer.request(
            {"t": "file", "op": "write", "path": "link", "last": True, "overwrite": True}, b"overwritten"
        )
        assert reply.kind in {"error", "reply"}
    assert await look(backend, box, "tell(open('/etc/passwd').read())") != "overwritten"


async def test_sandboxes_are_started_and_ended_while_others_run(backend: LocalBackend, box: str) -> None:
    async with talk(backend, box) as peer:
        run = await peer.start("import time\nprint('up', flush=True)\ntime.sleep(60)")
        await peer.receive("out")
        records = await asyncio.gather(*(backend.claim(ClaimRequest(owner=OWNER)) for _ in range(3)))
        await asyncio.gather(*(backend.delete(record.name) for record in records))
        await peer.send({"t": "cancel", "run": run})
        assert (await peer.receive("end")).header["outcome"] == "cancelled"
