"""Local sandboxes from inside: each promise is tried to be broken by a real program in a real sandbox.

Needs user namespaces. Where there are none the backend refuses to start, and so these tests fail with its sentence;
SANDPOD_TEST_NO_USERNS=1 leaves them out, and says so.
"""

import json
import os
import socket
import sys
import tempfile
from contextlib import closing
from pathlib import Path

import pytest

from support.gateway.probes import Box

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.needs_userns]

PROJECT = Path(__file__).resolve().parents[2]

SYSTEM = [
    *("/", "/usr", "/usr/bin", "/etc", "/etc/passwd", "/bin/sh", "/dev", "/dev/pts/x", "/proc", "/var", "/home"),
    *("/opt/sandpod/sandpod_runner", "/proc/sys/kernel/hostname", "/proc/sysrq-trigger", "/root", "PYTHON"),
]


@pytest.mark.promise("local-not-root")
async def test_code_is_not_root_and_in_no_group_of_roots(box: Box) -> None:
    users, main_groups, groups = await box.look("tell([os.getresuid(), os.getresgid(), os.getgroups()])")
    assert (users, main_groups) == ([1000] * 3, [1000] * 3)
    assert 0 not in groups


@pytest.mark.promise("local-not-root")
async def test_code_has_no_capability_and_can_gain_none(box: Box) -> None:
    status = await box.look(
        "tell(dict(line.split(':\\t', 1) for line in open('/proc/self/status').read().splitlines()))"
    )
    assert {status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0" * 16}
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")


@pytest.mark.promise("local-files")
@pytest.mark.parametrize("path", SYSTEM)
async def test_nothing_of_the_system_can_be_written(box: Box, path: str) -> None:
    code = f"""
path = sys.prefix if {path!r} == "PYTHON" else {path!r}
target = path + "/probe" if os.path.isdir(path) else path
tell([trial(open, target, "w"), trial(os.chmod, path, 0o777)])
"""
    written, changed = await box.look(code)
    assert written in {"EROFS", "EACCES", "EPERM", "ENOENT"}
    assert changed in {"EROFS", "EPERM", "ENOENT"}


@pytest.mark.promise("local-files")
async def test_no_file_of_the_host_is_there(box: Box) -> None:
    with tempfile.NamedTemporaryFile(prefix="sandpod-host-") as file:
        paths = [file.name, "/etc/shadow", "/etc/ssh", "/etc/hostname", "/etc/resolv.conf", "/sys", "/run", "/boot"]
        paths += ["/var/run/docker.sock", "/var/log", "/srv", "/media", str(PROJECT / "pyproject.toml")]
        paths += [str(Path.home() / name) for name in (".ssh", ".bashrc", ".kube", ".aws", ".profile", ".cache")]
        assert await box.look(f"tell([path for path in {paths!r} if os.path.lexists(path)])") == []
        assert await box.look("tell([os.listdir('/mnt'), os.readlink('/mnt/data')])") == [["data"], "/workspace"]


@pytest.mark.promise("local-files")
async def test_a_home_shows_only_the_way_to_python(box: Box) -> None:
    code = f"""
found = [os.path.join(folder, name) for home in ("/home", "/root") for folder, _, names in os.walk(home)
         for name in names]
tell([path for path in found if not path.startswith({sys.base_prefix!r} + "/")][:10])
"""
    assert await box.look(code) == []


@pytest.mark.promise("local-processes")
async def test_nothing_of_the_gateways_environment_is_there(box: Box, secret: str) -> None:
    assert secret not in json.dumps(await box.look("tell(dict(os.environ))"))
    code = """
seen = []
for pid in filter(str.isdecimal, os.listdir("/proc")):
    try:
        seen.append(open(f"/proc/{pid}/environ").read())
    except OSError:
        pass
tell(seen)
"""
    assert secret not in json.dumps(await box.look(code))


@pytest.mark.promise("local-processes")
async def test_code_inherits_no_open_file_but_its_own(box: Box) -> None:
    code = """
links = {fd: os.readlink(f"/proc/self/fd/{fd}") for fd in "012"}
tell(links | {"all": sorted(int(fd) for fd in os.listdir("/proc/self/fd"))})
"""
    links = await box.look(code)
    assert len([fd for fd in links["all"] if fd < 100]) <= 4  # the three, and the folder while it is read
    assert len(links["all"]) <= 5  # and the pipe by which it shows pictures
    assert all(links[fd].startswith(("pipe:", "/dev/null", "socket:")) for fd in "012")


@pytest.mark.promise("local-network")
async def test_there_is_no_interface_but_loopback(box: Box) -> None:
    assert set(await box.look("tell([name for _, name in socket.if_nameindex()])")) <= {"lo"}


@pytest.mark.promise("local-network")
@pytest.mark.claim(
    "instructions",
    "run_python_code",
    "run_js_code",
    "run_shell_command",
    "create_sandbox(network)",
    "work_with_sandpod.text",
)
async def test_no_address_can_be_reached(box: Box) -> None:
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
        host, own, internet, datagram, name = await box.look(code)
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


@pytest.mark.promise("local-network")
async def test_abstract_sockets_of_the_host_do_not_exist(box: Box) -> None:
    name = f"\0sandpod-test-{os.getpid()}"
    with closing(socket.socket(socket.AF_UNIX)) as server:
        server.bind(name)
        server.listen()
        code = f"tell(trial(socket.socket(socket.AF_UNIX).connect, {name!r}))"
        assert await box.look(code) == "ECONNREFUSED"


@pytest.mark.promise("local-syscalls")
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
        ("trial(lambda: socket.socketpair(30, 1))", {"EAFNOSUPPORT"}),
        ("trial(lambda: socket.socketpair(2, 1))", {"EAFNOSUPPORT"}),
        ("trial(lambda: socket.socketpair())", {"done"}),
        ('trial(os.open, "/proc/kcore", os.O_RDONLY)', {"EACCES", "EPERM", "ENOENT"}),
        ('trial(os.open, "/proc/1/mem", os.O_RDWR)', {"EACCES", "EPERM"}),
        ('trial(os.listdir, "/proc/1/fd")', {"EACCES", "EPERM"}),
        ('trial(os.listdir, "/proc/1/root/")', {"EACCES", "EPERM"}),
    ],
)  # fmt: skip
async def test_what_programs_do_not_need_is_refused(box: Box, attempt: str, errors: set[str]) -> None:
    assert await box.look(f"tell({attempt})") in errors


@pytest.mark.promise("local-not-root")
async def test_set_user_id_programs_give_no_rights(box: Box) -> None:
    code = """
import shutil, subprocess
found = [p for p in map(shutil.which, ("su", "mount", "passwd", "newgrp")) if p and os.stat(p).st_mode & 0o4000]
flags = os.statvfs("/usr/bin").f_flag & os.ST_NOSUID
tell([len(found), bool(flags)])
"""
    _, nosuid = await box.look(code)
    assert nosuid


async def test_killing_process_one_does_nothing(box: Box) -> None:
    await box.look("import signal\ntell([trial(os.kill, 1, n) for n in (9, 15, 19)])")
    await box.answers()


@pytest.mark.promise("local-processes")
async def test_processes_of_the_host_are_invisible(box: Box) -> None:
    code = """
tell([open(f"/proc/{pid}/cmdline").read() for pid in filter(str.isdecimal, os.listdir("/proc"))])
"""
    commands = await box.look(code)
    assert 0 < len(commands) < 10
    assert not any("pytest" in command for command in commands)
    assert await box.look(f"tell(trial(os.kill, {os.getpid()}, 0))") == "ESRCH"


@pytest.mark.promise("local-files")
async def test_no_other_folder_can_be_written(box: Box) -> None:
    code = """
found = []
for folder, names, _ in os.walk("/", onerror=lambda _: None):
    names[:] = [name for name in names if folder != "/" or name not in ("proc", "usr", "workspace", "tmp", "packages")]
    if trial(open, folder + "/probe", "w") == "done":
        found.append(folder)
tell(found)
"""
    assert await box.look(code) == ["/dev/shm"]


@pytest.mark.promise("local-apart")
async def test_another_sandboxs_files_are_invisible(box: Box, victim: Box) -> None:
    folders = ("/tmp", "/workspace", "/dev/shm", "/packages")
    await victim.look(f"tell([trial(open, f + '/mine', 'w') for f in {folders!r}])")
    assert await box.look(f"tell([f for f in {folders!r} if os.path.exists(f + '/mine')])") == []


@pytest.mark.promise("no-escape")
@pytest.mark.parametrize(
    "target", ["/etc/shadow", "/etc/passwd", "../../../etc/passwd", "/proc/1/environ", "/proc/self/root/etc/passwd"]
)
async def test_a_link_out_of_the_workspace_gives_nothing(box: Box, target: str) -> None:
    await box.look(f"os.path.lexists('link') and os.unlink('link')\ntell(trial(os.symlink, {target!r}, 'link'))")
    async with box.talk() as peer:
        reply = await peer.request({"t": "file", "op": "read", "path": "link", "offset": 0, "limit": 4096})
        assert reply.kind == "error"
        reply = await peer.request(
            {"t": "file", "op": "write", "path": "link", "last": True, "overwrite": True}, b"overwritten"
        )
        assert reply.kind in {"error", "reply"}
    assert await box.look("tell(open('/etc/passwd').read())") != "overwritten"
