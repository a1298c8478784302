"""Programs that attack the runner of their own sandbox, in local sandboxes and in pods.

The next program must run as if nothing had happened, or the sandbox is said to be lost, and no other sandbox may
notice. Each is given ten seconds at most and prints `done` when it got to its end.
"""

from typing import Final

_TOOLS = """
import ctypes, os, signal, socket, struct, sys, time
libc = ctypes.CDLL(None, use_errno=True)
end = time.monotonic() + 8
others = [int(name) for name in os.listdir('/proc') if name.isdecimal() and int(name) != os.getpid()]
"""

_KILL = """
for number in (signal.SIGSTOP, signal.SIGTERM, signal.SIGSEGV, signal.SIGKILL):
    for pid in sorted(others):
        try: os.kill(pid, number)
        except OSError: pass
"""

_GARBAGE = """
for pid in [*others, 'self']:
    try: names = os.listdir(f'/proc/{pid}/fd')
    except OSError: continue
    for name in names:
        if pid == 'self' and int(name) < 3: continue
        for data in (b'\\xff' * 5000, struct.pack('>I', 2**31), b'\\0\\0\\0\\2\\0\\0\\0\\0{}'):
            try:
                fd = int(name) if pid == 'self' else os.open(f'/proc/{pid}/fd/{name}', os.O_WRONLY | os.O_NONBLOCK)
                os.set_blocking(fd, False)
                os.write(fd, data)
            except OSError: pass
"""

_PTRACE = """
ATTACH, SEIZE, POKE = 16, 0x4206, 4
class Part(ctypes.Structure):
    _fields_ = [('base', ctypes.c_void_p), ('size', ctypes.c_size_t)]
own = ctypes.create_string_buffer(4096)
for pid in others:
    for request in (ATTACH, SEIZE):
        libc.ptrace(request, pid, None, None)
    local, remote = Part(ctypes.addressof(own), 4096), Part(0x400000, 4096)
    libc.process_vm_writev(pid, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0)
    for name in ('mem', 'oom_score_adj', 'clear_refs', 'coredump_filter', 'comm'):
        try: open(f'/proc/{pid}/{name}', 'wb', buffering=0).write(b'1000')
        except (OSError, ValueError): pass
    try: os.sched_setaffinity(pid, {0})
    except OSError: pass
    try: os.setpriority(os.PRIO_PROCESS, pid, 19)
    except OSError: pass
    try:
        import resource
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (4, 4))
    except OSError: pass
"""

_FILL = """
block = b'x' * (1 << 20)
for folder in ('/tmp', '/dev/shm', '/workspace', os.environ.get('HOME', '/tmp'), '/run', '/var/tmp', '/dev'):
    for number in range(4000):
        try:
            with open(f'{folder}/fill-{number}', 'wb') as file: file.write(block)
        except OSError: break
    for number in range(2000):
        try: os.close(os.open(f'{folder}/tiny-{number}', os.O_CREAT | os.O_WRONLY))
        except OSError: break
"""

_UNFILL = """
for folder in ('/tmp', '/dev/shm', '/workspace', os.environ.get('HOME', '/tmp')):
    for name in os.listdir(folder):
        if name.startswith(('fill-', 'tiny-')): os.unlink(f'{folder}/{name}')
"""

_FLOOD = """
for fd in range(3, 300):
    try: os.set_blocking(fd, False)
    except OSError: continue
    try:
        while time.monotonic() < end - 4: os.write(fd, b'\\0\\2' + struct.pack('>I', 100) + b'x' * 100)
    except OSError: pass
for _ in range(1000):
    os.write(1, b'o' * 65536)
    os.write(2, b'e' * 1024)
print()
"""

_CONNECT = """
import re
names = {line.split()[-1] for line in open('/proc/net/unix').read().splitlines()[1:] if len(line.split()) > 7}
kept = []
for name in names | {'/run/sandpod.sock', '/tmp/sandpod.sock', '@sandpod'}:
    address = '\\0' + name[1:] if name.startswith('@') else name
    for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET, socket.SOCK_DGRAM):
        for _ in range(100):
            sock = socket.socket(socket.AF_UNIX, kind)
            sock.setblocking(False)
            try: sock.connect(address)
            except OSError: sock.close(); break
            kept.append(sock)
            try: sock.send(b'\\0\\0\\0\\x1a\\0\\0\\0\\0{"t":"hello","version":1}')
            except OSError: pass
"""

_REPLACE = """
import shutil
for folder in ('/tmp', '/workspace', os.environ.get('HOME', '/tmp')):
    for name in os.listdir(folder):
        path = f'{folder}/{name}'
        try:
            if os.path.isdir(path) and not os.path.islink(path): shutil.rmtree(path, ignore_errors=True)
            else: os.unlink(path)
        except OSError: pass
        try: os.symlink('/etc/passwd', path)
        except OSError: pass
    try: os.chmod(folder, 0)
    except OSError: pass
for folder in ('/tmp', '/workspace', os.environ.get('HOME', '/tmp')):
    try: os.chmod(folder, 0o777)
    except OSError: pass
    for name in os.listdir(folder):
        try: os.unlink(f'{folder}/{name}')
        except OSError: pass
"""

_GROUPS = """
for pid in others:
    try: os.setpgid(0, pid)
    except OSError: pass
    try: os.killpg(pid, signal.SIGKILL)
    except OSError: pass
os.fork() or os.setsid()
os.fork() or (signal.signal(signal.SIGTERM, signal.SIG_IGN), time.sleep(300))
"""


def _program(body: str, after: str = "") -> str:
    return f"{_TOOLS}{body}{after}\nsys.stdout.write('done\\n')\n"


ATTACKS: Final[dict[str, str]] = {
    "kills every process": _program(_KILL),
    "kills every process at once": _program("os.kill(-1, signal.SIGSTOP)\nos.kill(-1, signal.SIGKILL)\n"),
    "writes garbage to every descriptor": _program(_GARBAGE),
    "traces and changes every process": _program(_PTRACE),
    "fills every folder": _program(_FILL, _UNFILL),
    "floods its streams and channels": _program(_FLOOD),
    "talks to the runner": _program(_CONNECT),
    "replaces every file": _program(_REPLACE),
    "joins and kills groups and leaves its own": _program(_GROUPS),
}
