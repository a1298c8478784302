"""Becomes another program with fewer rights. The arguments are the rights as JSON, then its command line.

The kernel enforces the limits. Where it has Landlock, the program reads system files and what it was given, writes to
its own folder only, and can't reach other processes: neither their memory and environment nor by signals.
"""

import contextlib
import ctypes
import json
import os
import resource
import stat
import sys

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446  # system calls, the same on all processors
PR_SET_NO_NEW_PRIVS, PR_SET_SECUREBITS, PR_CAP_AMBIENT = 38, 28, 47
AMBIENT_CLEAR_ALL, NO_ROOT_LOCKED = 4, 0b11
# Rights as the kernel's include/uapi/linux/landlock.h numbers them.
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
TRUNCATE, IOCTL_DEV = 1 << 14, 1 << 15
OF_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
BITS = {1: 13, 2: 14, 3: 15, 4: 15}  # file rights that a version knows; 16 from version 5 on
NET_SINCE, SCOPES_SINCE = 4, 6
BIND_TCP = 1
SCOPES = 0b11  # abstract sockets and signals

SYSTEM = (
    *("/usr", "/lib", "/lib64", "/bin", "/proc", "/dev/urandom", "/dev/random", "/dev/zero"),
    *("/etc/hosts", "/etc/resolv.conf", "/etc/nsswitch.conf", "/etc/host.conf", "/etc/gai.conf", "/etc/services"),
    *("/etc/ssl", "/etc/pki", "/etc/ca-certificates", "/etc/ld.so.cache", "/etc/localtime", "/etc/os-release"),
    *("/run/systemd/resolve", "/etc/alternatives", "/etc/passwd", "/etc/protocols"),
)

libc = ctypes.CDLL(None, use_errno=True)


def call(number: int, *arguments: object) -> int:
    """Make a system call; plain numbers among its arguments are passed as 32 bits."""
    result = libc.syscall(ctypes.c_long(number), *arguments)
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return int(result)


def packed(*values: int) -> ctypes.Array[ctypes.c_uint64]:
    """Return an array of 64-bit numbers."""
    return (ctypes.c_uint64 * len(values))(*values)


def shut_in(readable: list[str], writable: list[str]) -> None:
    """Remove all rights to files and processes except those to these paths."""
    try:
        version = call(CREATE_RULESET, None, ctypes.c_size_t(0), 1)
    except OSError:  # an older kernel, or one without it
        return
    known = (1 << BITS.get(version, 16)) - 1
    size = 8 * (1 + (version >= NET_SINCE) + (version >= SCOPES_SINCE))
    ruleset = call(CREATE_RULESET, packed(known, BIND_TCP, SCOPES), ctypes.c_size_t(size), 0)
    for paths, rights in ((readable, EXECUTE | READ_FILE | READ_DIR), (writable, known)):
        for path in paths:
            # A missing path needs no rule.
            with contextlib.suppress(FileNotFoundError, PermissionError):
                allow(ruleset, path, rights & known)
    call(RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)


def allow(ruleset: int, path: str, rights: int) -> None:
    """Add a rule for a file, or for a folder with all below it."""
    opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        if not stat.S_ISDIR(os.fstat(opened).st_mode):
            rights &= OF_FILES
        call(ADD_RULE, ruleset, 1, packed(rights, opened), 0)  # of which the kernel reads 64 and 32 bits
    finally:
        os.close(opened)


def main() -> None:
    """Give up rights, and become the program."""
    rights = json.loads(sys.argv[1])
    for name, value in rights["limits"].items():
        number = getattr(resource, name)
        most = resource.getrlimit(number)[1]
        bound = value if most == resource.RLIM_INFINITY else min(value, most)
        resource.setrlimit(number, (bound, bound))
    # The program starts without capabilities, also as root: some bypass Landlock. Errors don't matter: a process that
    # may not do this has none.
    libc.prctl(PR_CAP_AMBIENT, AMBIENT_CLEAR_ALL, 0, 0, 0)
    libc.prctl(PR_SET_SECUREBITS, NO_ROOT_LOCKED, 0, 0, 0)
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        sys.exit("no way to give up privileges")
    python = [*sys.path, sys.prefix, sys.base_prefix, sys.exec_prefix]
    shut_in([*SYSTEM, *python, *rights["readable"]], [*rights["writable"], "/dev/null"])
    os.execv(sys.argv[2], sys.argv[2:])  # noqa: S606 - that is its task


main()
