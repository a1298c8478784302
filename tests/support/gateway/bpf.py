"""A classic BPF machine in Python, to try a system-call filter without making the calls. Called by test_seccomp.py."""

from dataclasses import dataclass
from struct import Struct, pack

_INSTRUCTION = Struct("=HBBI")


@dataclass(frozen=True)
class Call:
    """A system call as a filter sees it."""

    number: int
    arch: int
    arguments: tuple[int, ...] = ()

    def data(self) -> bytes:
        arguments = (*self.arguments, 0, 0, 0, 0, 0, 0)[:6]
        return pack("=IIQ6Q", self.number, self.arch, 0, *arguments)


def run(program: bytes, call: Call) -> int:
    """Return the filter's answer to a call."""
    code = list(_INSTRUCTION.iter_unpack(program))
    data = call.data()
    accumulator = at = 0
    while True:
        operation, when_true, when_false, value = code[at]
        at += 1
        match operation:
            case 0x20:
                accumulator = int.from_bytes(data[value : value + 4], "little")
            case 0x54:
                accumulator &= value
            case 0x15:
                at += when_true if accumulator == value else when_false
            case 0x35:
                at += when_true if accumulator >= value else when_false
            case 0x45:
                at += when_true if accumulator & value else when_false
            case 0x06:
                return int(value)
            case _:
                raise AssertionError(f"operation {operation:#x}")
