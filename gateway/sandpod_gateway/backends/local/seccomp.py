"""The system-call filter of local sandboxes, assembled as a classic BPF program.

It is a deny-list: everything that a program can only need to change the machine, to look into other processes or to
reach rarely used kernel code is refused, the rest is allowed. It does no I/O. Namespaces and dropped capabilities
refuse most of it too; this is the second wall.
"""

import errno
from typing import Final

from sandpod_runner.ipc import bpf
from sandpod_runner.ipc.bpf import one, refuse

_NEWEST: Final = 469
"""Highest number known here (Linux 6.17). Later calls answer ENOSYS, as on the kernels that programs know."""

# Namespaces that clone can make. CLONE_NEWTIME overlaps the exit signal's bits there and is no flag of clone.
_NEW_NAMESPACES: Final = 0x7E020000
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C
_AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK = 1, 2, 10, 16
_STREAM, _DATAGRAM = 1, 2
_TYPE_MASK: Final = 0xF

# Each call with its numbers on x86_64 and aarch64; a dash where the architecture has no such call.
_TABLE: Final = """
# Mounts and roots.
mount 165 40; umount2 166 39; pivot_root 155 41; chroot 161 51; mount_setattr 442 442; move_mount 429 429
open_tree 428 428; open_tree_attr 467 467; fsopen 430 430; fsconfig 431 431; fsmount 432 432; fspick 433 433
statmount 457 457; listmount 458 458
# Namespaces; clone's flags are looked at below.
unshare 272 97; setns 308 268
# Kernel code that programs seldom need and that often had holes.
bpf 321 280; perf_event_open 298 241; add_key 248 217; request_key 249 218; keyctl 250 219; userfaultfd 323 282
io_uring_setup 425 425; io_uring_enter 426 426; io_uring_register 427 427; fanotify_init 300 262
memfd_secret 447 447; personality 135 92; modify_ldt 154 -; lookup_dcookie 212 18; nfsservctl 180 42; uselib 134 -
ustat 136 -; sysfs 139 -; _sysctl 156 -
# Other processes: all of a sandbox's share one uid with its runner.
ptrace 101 117; process_vm_readv 310 270; process_vm_writev 311 271; pidfd_getfd 438 438; kcmp 312 272
# Files past the mounts.
open_by_handle_at 304 265; name_to_handle_at 303 264
# The machine.
kexec_load 246 104; kexec_file_load 320 294; reboot 169 142; create_module 174 -; init_module 175 105
finit_module 313 273; delete_module 176 106; get_kernel_syms 177 -; query_module 178 -; swapon 167 224
swapoff 168 225; acct 163 89; quotactl 179 60; quotactl_fd 443 443; settimeofday 164 170; clock_settime 227 112
clock_adjtime 305 266; adjtimex 159 171; syslog 103 116; vhangup 153 58; iopl 172 -; ioperm 173 -
sethostname 170 161; setdomainname 171 162
# Memory that stays when no process holds it: nothing would count it.
shmget 29 194; msgget 68 186; semget 64 190
# Memory of chosen nodes.
move_pages 279 239; migrate_pages 256 238; mbind 237 235; set_mempolicy 238 237; get_mempolicy 239 236
set_mempolicy_home_node 450 450
"""

MACHINES: Final = list(bpf.AUDIT_ARCH)
"""The machines that have a filter, named as `platform.machine()` does."""
REFUSED: Final = {
    name: tuple(None if number == "-" else int(number) for number in numbers)
    for line in _TABLE.splitlines()
    if line and not line.startswith("#")
    for name, *numbers in map(str.split, line.split(";"))
}
"""The calls that are refused: their number on each of the machines."""

_CLONE3: Final = 435  # its flags are in memory, where no filter sees them; libc falls back to clone
_ALLOW: Final = one(bpf.RETURN, bpf.ALLOW)
_ARGUMENTS: Final = [one(bpf.LOAD, offset) for offset in bpf.ARGUMENTS]


def _when(test: int, value: int, error: int) -> list[bytes]:
    """Answer with an error when the test of the loaded value holds; go on otherwise."""
    return [one(test, value, no=1), refuse(error)]


def _unless(values: tuple[int, ...], error: int) -> list[bytes]:
    """Answer with an error when the loaded value is none of the given ones; go on otherwise."""
    tests = [one(bpf.EQUAL, value, yes=len(values) - index) for index, value in enumerate(values)]
    return [*tests, refuse(error)]


_CLONE: Final = [_ARGUMENTS[0], *_when(bpf.ANY_BIT, _NEW_NAMESPACES, errno.EPERM), _ALLOW]
# No typing into a terminal.
_IOCTL: Final = [
    _ARGUMENTS[1],
    *_when(bpf.EQUAL, _TIOCSTI, errno.EPERM),
    *_when(bpf.EQUAL, _TIOCLINUX, errno.EPERM),
    _ALLOW,
]
_NETLINK: Final = [_ARGUMENTS[2], *_unless((0,), errno.EPROTONOSUPPORT), _ALLOW]
# Unix sockets, plain TCP and UDP, and the netlink that lists interfaces. Other families and protocols are kernel code
# (some of it loaded by this very call) that no program here needs.
_SOCKET: Final = [
    *(_ARGUMENTS[0], one(bpf.EQUAL, _AF_UNIX, no=1), _ALLOW),
    *(one(bpf.EQUAL, _AF_NETLINK, no=len(_NETLINK)), *_NETLINK),
    *_unless((_AF_INET, _AF_INET6), errno.EAFNOSUPPORT),
    *(_ARGUMENTS[1], one(bpf.AND, _TYPE_MASK), *_unless((_STREAM, _DATAGRAM), errno.ESOCKTNOSUPPORT)),
    *(_ARGUMENTS[2], *_unless((0, 6, 17), errno.EPROTONOSUPPORT), _ALLOW),
]
# Unix sockets alone. For other families, the kernel has code to make pairs, or loads it to refuse them.
_SOCKETPAIR: Final = [_ARGUMENTS[0], *_unless((_AF_UNIX,), errno.EAFNOSUPPORT), _ALLOW]
# Calls whose arguments are looked at: their number on each of the machines, and instructions that end by returning.
_LOOKED_AT: Final = (((56, 220), _CLONE), ((16, 29), _IOCTL), ((41, 198), _SOCKET), ((53, 199), _SOCKETPAIR))


def program(machine: str) -> bytes:
    """Return the filter for one of `MACHINES`, as an array of struct sock_filter."""
    at = MACHINES.index(machine)
    code = [
        one(bpf.LOAD, bpf.ARCH),
        one(bpf.EQUAL, bpf.AUDIT_ARCH[machine], yes=1),
        one(bpf.RETURN, bpf.KILL_PROCESS),
        one(bpf.LOAD, bpf.NUMBER),
        *(_when(bpf.AT_LEAST, bpf.X32_BIT, errno.ENOSYS) if machine == "x86_64" else ()),
        *_when(bpf.AT_LEAST, _NEWEST + 1, errno.ENOSYS),
        *_when(bpf.EQUAL, _CLONE3, errno.ENOSYS),
    ]
    for numbers in REFUSED.values():
        if (number := numbers[at]) is not None:
            code += _when(bpf.EQUAL, number, errno.EPERM)
    for looked_at, body in _LOOKED_AT:
        # The body ends by returning, so the number is still loaded after it.
        code += [one(bpf.EQUAL, looked_at[at], no=len(body)), *body]
    return b"".join([*code, _ALLOW])
