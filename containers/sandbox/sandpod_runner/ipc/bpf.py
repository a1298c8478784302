"""The instructions of filters on system calls (linux/bpf_common.h, linux/seccomp.h). Pure."""

import errno
from struct import Struct
from typing import Final

INSTRUCTION: Final = Struct("=HBBI")
"""struct sock_filter: opcode, how many instructions are skipped where a comparison holds and where not, value."""
LOAD: Final = 0x20  # BPF_LD | BPF_W | BPF_ABS
EQUAL: Final = 0x15  # BPF_JMP | BPF_JEQ | BPF_K
AT_LEAST: Final = 0x35  # BPF_JMP | BPF_JGE | BPF_K
ANY_BIT: Final = 0x45  # BPF_JMP | BPF_JSET | BPF_K
AND: Final = 0x54  # BPF_ALU | BPF_AND | BPF_K
RETURN: Final = 0x06  # BPF_RET | BPF_K

# Offsets in struct seccomp_data; of an argument the low half, since all that matter are ints.
NUMBER: Final = 0
ARCH: Final = 4
ARGUMENTS: Final = (16, 24, 32)

ALLOW: Final = 0x7FFF0000
NOTIFY: Final = 0x7FC00000
ERRNO: Final = 0x00050000
KILL_PROCESS: Final = 0x80000000

AUDIT_ARCH: Final = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}  # by the processor, as `platform.machine` names it
X32_BIT: Final = 0x40000000


def one(code: int, value: int, *, yes: int = 0, no: int = 0) -> bytes:
    """Return one instruction; a comparison skips `yes` or `no` of those that follow."""
    return INSTRUCTION.pack(code, yes, no, value)


def refuse(error: int) -> bytes:
    """Return the instruction that fails the call with an error number."""
    return one(RETURN, ERRNO | error)


def head(machine: str) -> list[bytes]:
    """Return the first instructions: calls of this processor go on, with their number loaded."""
    # Programs for other processors number their calls differently, and could go around the list.
    parts = [one(LOAD, ARCH), one(EQUAL, AUDIT_ARCH[machine], yes=1), refuse(errno.ENOSYS), one(LOAD, NUMBER)]
    if machine == "x86_64":
        parts += [one(AT_LEAST, X32_BIT, no=1), refuse(errno.ENOSYS)]
    return parts
