"""What capabilities allow, one thing for each: all of it must be refused."""

import ctypes
import errno
import fcntl
import os
import platform
import resource
import socket

from sandpod_gateway.verify.inside.tools import attempt, in_child, opened, tell, text_of

HANDLE_AT = {"x86_64": 304, "aarch64": 265}
libc = ctypes.CDLL(None, use_errno=True)


def shocker() -> str:
    """Try to open the root folder of the file system below /etc/hostname or so by its number, past all mounts."""
    number = HANDLE_AT.get(platform.machine())
    if number is None:
        return "ENOSYS"
    handle = ctypes.create_string_buffer(
        (8).to_bytes(4, "little") + (1).to_bytes(4, "little") + (2).to_bytes(8, "little")
    )
    for path in ("/etc/hosts", "/etc/resolv.conf", "/dev/termination-log", "/"):
        try:
            fd = os.open(path, os.O_RDONLY)
        except OSError:
            continue
        ctypes.set_errno(0)
        done = libc.syscall(ctypes.c_long(number), ctypes.c_long(fd), handle, ctypes.c_long(0))
        os.close(fd)
        # Whoever may do it learns that there is no such file.
        if done >= 0 or ctypes.get_errno() in (errno.ESTALE, errno.EINVAL):
            return "done"
    return errno.errorcode.get(ctypes.get_errno(), "?")


def capabilities() -> "dict[str, str]":
    """Return, by capability, what comes of something that needs it."""
    own = "/tmp/sandpod-verify-own"
    with open(own, "w"):
        pass
    tries = {
        "CAP_CHOWN": lambda: attempt(os.chown, own, 0, 0),
        "CAP_DAC_OVERRIDE": lambda: opened("/etc/shadow", os.O_RDWR) if os.path.exists("/etc/shadow") else "ENOENT",
        "CAP_DAC_READ_SEARCH": shocker,
        "CAP_FOWNER": lambda: attempt(os.chmod, "/etc", os.stat("/etc").st_mode & 0o7777),  # as it is
        "CAP_KILL": lambda: attempt(os.kill, 1, 0) if "systemd" in text_of("/proc/1/comm") else "EPERM",
        "CAP_MKNOD": lambda: attempt(os.mknod, own + "-node", 0o20600, os.makedev(1, 3)),
        "CAP_NET_ADMIN": net_admin,
        "CAP_NET_RAW": lambda: attempt(lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1).close()),
        "CAP_SETGID": lambda: attempt(os.setgroups, [0]),
        "CAP_SETUID": lambda: attempt(os.setresuid, 0, 0, 0),
        "CAP_SYS_ADMIN": lambda: system(b"mount"),
        "CAP_SYS_BOOT": lambda: system(b"reboot"),
        "CAP_SYS_CHROOT": lambda: attempt(os.chroot, "/tmp"),
        "CAP_SYS_NICE": lambda: attempt(os.setpriority, os.PRIO_PROCESS, 0, -15),
        "CAP_SYS_RESOURCE": raised,
        "CAP_SYS_RAWIO": lambda: opened("/dev/mem", os.O_RDWR),
        "CAP_AUDIT_WRITE": lambda: attempt(lambda: socket.socket(16, socket.SOCK_RAW, 9).bind((0, 1))),
    }
    found = {name: in_child(act) for name, act in tries.items()}
    for path in (own, own + "-node"):
        attempt(os.unlink, path)
    return found


def raised() -> str:
    """Try to raise the first hard limit that there is."""
    for limit in (resource.RLIMIT_CORE, resource.RLIMIT_NPROC, resource.RLIMIT_NOFILE, resource.RLIMIT_MEMLOCK):
        soft, hard = resource.getrlimit(limit)
        if hard != resource.RLIM_INFINITY:
            said = attempt(resource.setrlimit, limit, (soft, hard + 1))
            return "EPERM" if said == "ValueError" else said
    return "unlimited"


def net_admin() -> str:
    """Try to give the loopback interface the MTU that it has: in vain without the capability."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as made:
        return attempt(fcntl.ioctl, made, 0x8922, b"lo".ljust(16, b"\0") + (65536).to_bytes(4, "little") + bytes(20))


def system(name: bytes) -> str:
    """Try a call of the C library that only an administrator may make."""
    ctypes.set_errno(0)
    if name == b"mount":
        place = b"/tmp/sandpod-verify-mount"
        attempt(os.mkdir, place)
        ctypes.set_errno(0)
        done = libc.mount(b"none", place, b"tmpfs", ctypes.c_ulong(0), None)
        why = ctypes.get_errno()
        if done == 0:
            libc.umount2(place, 2)
        attempt(os.rmdir, place)
        ctypes.set_errno(why)
    else:
        done = libc.reboot(-1)  # there is no such command: who may give one is told so
        done = 0 if ctypes.get_errno() == errno.EINVAL else done
    return "done" if done >= 0 else errno.errorcode.get(ctypes.get_errno(), "?")


def main() -> None:
    """Tell it."""
    tell({"capabilities": capabilities()})


main()
