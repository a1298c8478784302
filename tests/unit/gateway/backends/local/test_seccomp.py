"""The system-call filter's answers, call by call, on both architectures."""

import errno
import re
from pathlib import Path

import pytest

from sandpod_gateway.backends.local import seccomp
from support.gateway.bpf import Call, run

ALLOW = 0x7FFF0000
KILL = 0x80000000
ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
MACHINES = list(ARCH)
CLONE = {"x86_64": 56, "aarch64": 220}
SOCKET = {"x86_64": 41, "aarch64": 198}
SOCKETPAIR = {"x86_64": 53, "aarch64": 199}
IOCTL = {"x86_64": 16, "aarch64": 29}
SOCKETS = [
    *("unix", "unix-seqpacket", "tcp", "tcp-flags", "udp6", "route", "netfilter", "raw", "seqpacket", "sctp"),
    *("packet", "crypto", "vsock"),
]
READ = {"x86_64": 0, "aarch64": 63}


def answer(machine: str, number: int, *arguments: int) -> int:
    return run(seccomp.program(machine), Call(number, ARCH[machine], arguments))


def error(number: int) -> int:
    return 0x50000 | number


@pytest.mark.parametrize("machine", MACHINES)
def test_an_ordinary_call_is_allowed(machine: str) -> None:
    assert answer(machine, READ[machine]) == ALLOW


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("name", sorted(seccomp.REFUSED))
def test_each_call_on_the_list_is_refused(machine: str, name: str) -> None:
    number = seccomp.REFUSED[name][MACHINES.index(machine)]
    if number is not None:
        assert answer(machine, number) == error(errno.EPERM)


def test_the_numbers_are_those_of_the_kernels_headers() -> None:
    header = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")
    known = {"mount": 165, "unshare": 272, "ptrace": 101, "bpf": 321, "setns": 308, "io_uring_setup": 425}
    if header.exists():
        found = re.findall(r"#define __NR_(\w+) (\d+)", header.read_text(encoding="ascii"))
        known = {name: int(number) for name, number in found if name in seccomp.REFUSED}
    assert {name: seccomp.REFUSED[name][0] for name in known} == known


@pytest.mark.parametrize("machine", MACHINES)
def test_another_architectures_call_kills_the_process(machine: str) -> None:
    other = next(arch for name, arch in ARCH.items() if name != machine)
    assert run(seccomp.program(machine), Call(READ[machine], other)) == KILL
    assert run(seccomp.program(machine), Call(3, 0x40000003)) == KILL


@pytest.mark.parametrize("number", [0x40000000, 0x40000000 + 165, 0xFFFFFFFF])
def test_calls_of_the_x32_interface_do_not_exist(number: int) -> None:
    assert answer("x86_64", number) == error(errno.ENOSYS)


@pytest.mark.parametrize("machine", MACHINES)
def test_a_call_that_is_newer_than_the_filter_does_not_exist(machine: str) -> None:
    assert answer(machine, 470) == error(errno.ENOSYS)
    assert answer(machine, 469) == ALLOW


@pytest.mark.parametrize("machine", MACHINES)
def test_clone_makes_threads_and_processes_but_no_namespaces(machine: str) -> None:
    threads = 0x3D0F00
    assert answer(machine, CLONE[machine], threads) == ALLOW
    assert answer(machine, CLONE[machine], 17) == ALLOW
    for flag in (0x20000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000):
        assert answer(machine, CLONE[machine], threads | flag) == error(errno.EPERM)


@pytest.mark.parametrize("machine", MACHINES)
def test_clone3_does_not_exist_so_that_libc_falls_back(machine: str) -> None:
    assert answer(machine, 435) == error(errno.ENOSYS)


@pytest.mark.parametrize("machine", MACHINES)
def test_nothing_can_be_typed_into_a_terminal(machine: str) -> None:
    for request in (0x5412, 0x541C, 0x5412 | 1 << 32):
        assert answer(machine, IOCTL[machine], 0, request) == error(errno.EPERM)
    assert answer(machine, IOCTL[machine], 0, 0x5413) == ALLOW


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((1, 1, 0), ALLOW),
        ((1, 5 | 0x80000, 0), ALLOW),
        ((2, 1, 0), ALLOW),
        ((2, 1 | 0x80800, 6), ALLOW),
        ((10, 2, 17), ALLOW),
        ((16, 3, 0), ALLOW),
        ((16, 3, 12), error(errno.EPROTONOSUPPORT)),
        ((2, 3, 1), error(errno.ESOCKTNOSUPPORT)),
        ((2, 5, 0), error(errno.ESOCKTNOSUPPORT)),
        ((2, 1, 132), error(errno.EPROTONOSUPPORT)),
        ((17, 3, 0), error(errno.EAFNOSUPPORT)),
        ((38, 5, 0), error(errno.EAFNOSUPPORT)),
        ((40, 1, 0), error(errno.EAFNOSUPPORT)),
    ],
    ids=SOCKETS,
)
def test_sockets_are_unix_tcp_udp_and_route_only(machine: str, arguments: tuple[int, ...], expected: int) -> None:
    assert answer(machine, SOCKET[machine], *arguments) == expected


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("kind", [1, 2, 5, 1 | 0x80800])
def test_pairs_of_sockets_are_unix_only(machine: str, kind: int) -> None:
    assert answer(machine, SOCKETPAIR[machine], 1, kind, 0) == ALLOW
    for family in (0, 2, 10, 16, 17, 30, 38, 40, 1 | 1 << 31):
        assert answer(machine, SOCKETPAIR[machine], family, kind, 0) == error(errno.EAFNOSUPPORT)


def test_an_unknown_machine_has_no_filter() -> None:
    assert seccomp.MACHINES == MACHINES
    with pytest.raises(ValueError, match="riscv64"):
        seccomp.program("riscv64")
