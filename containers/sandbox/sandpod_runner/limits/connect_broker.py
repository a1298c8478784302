"""Answers for the kernel when a program in a sandbox without a network wants to connect to somewhere else.

Network plugins drop such packets, so that a program would wait for its own timeout, or two minutes; instead it learns
at once that the network is unreachable. What keeps the sandbox closed is the policies: nothing here is relied on for
that.
"""

import asyncio
import contextlib
import errno
import fcntl
import os
import select
import socket
import sys
from struct import Struct
from typing import Final

from sandpod_runner.limits import network_probe

# struct seccomp_notif: id, pid, flags; of its struct seccomp_data number, architecture, place and six arguments.
_NOTICE: Final = Struct("=QIIiIQ6Q")
# struct seccomp_notif_resp: id, value, error, flags.
_ANSWER: Final = Struct("=QqiI")
# linux/seccomp.h: _IOWR('!', 0, struct seccomp_notif) and so on.
_RECEIVE: Final = 0xC0502100
_SEND: Final = 0xC0182101
_GO_ON: Final = 1

_HOST: Final = {int(socket.AF_INET): slice(4, 8), int(socket.AF_INET6): slice(8, 24)}
"""Where a socket address of a family has its host (struct sockaddr_in, struct sockaddr_in6)."""
_ADDRESS_BYTES: Final = 24
AT_ONCE: Final = 4  # looks at a time whether the network is open after all


class Connects:
    """Decides what becomes of connections that programs want to make.

    All to this sandbox itself are made. Others are refused until one of them turns out to be possible: its network
    profile may have been changed since it began, which nobody reports to it.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._open = False
        self._looks: dict[network_probe.Endpoint, asyncio.Task[None]] = {}

    def watch(self, fd: int) -> None:
        """Answer what the kernel asks on a descriptor, until all processes that it is about are gone."""
        ready = select.poll()
        ready.register(fd, select.POLLIN)
        self._loop.add_reader(fd, self._take, fd, ready)

    def _take(self, fd: int, ready: select.poll) -> None:
        events = dict(ready.poll(0)).get(fd, 0)
        if events & select.POLLIN:
            self._answer(fd)
        elif events:
            self._loop.remove_reader(fd)
            os.close(fd)

    def _answer(self, fd: int) -> None:
        notice = bytearray(_NOTICE.size)
        with contextlib.suppress(OSError):  # it was killed meanwhile: nobody waits for the answer
            fcntl.ioctl(fd, _RECEIVE, notice)
            number, pid, _, _, _, _, _, pointer, length, *_ = _NOTICE.unpack(notice)
            place = None if self._open else read_place(_read_memory(pid, pointer, min(length, _ADDRESS_BYTES)))
            if place is None or is_own(place[0]):
                fcntl.ioctl(fd, _SEND, _ANSWER.pack(number, 0, 0, _GO_ON))
            else:
                fcntl.ioctl(fd, _SEND, _ANSWER.pack(number, 0, -errno.ENETUNREACH, 0))
                self._look_soon(place)

    def _look_soon(self, place: network_probe.Endpoint) -> None:
        if place not in self._looks and len(self._looks) < AT_ONCE:
            self._looks[place] = task = self._loop.create_task(self._look(place))
            task.add_done_callback(lambda _: self._looks.pop(place))

    async def _look(self, place: network_probe.Endpoint) -> None:
        with contextlib.suppress(OSError), socket.socket(_family(place[0]), socket.SOCK_STREAM) as sock:
            sock.setblocking(False)
            with contextlib.suppress(ConnectionRefusedError):  # the packet went out and an answer came back
                await asyncio.wait_for(self._loop.sock_connect(sock, place), network_probe.SECONDS)
            self._open = True


def read_place(address: bytes) -> network_probe.Endpoint | None:
    """Return the host and port of a socket address, or None where it is of another kind or none at all."""
    family = int.from_bytes(address[:2], sys.byteorder)
    part = _HOST.get(family, slice(0))
    if len(address) < part.stop or not part.stop:
        return None
    return socket.inet_ntop(family, address[part]), int.from_bytes(address[2:4], "big")


def is_own(host: str) -> bool:
    """Return whether an address is this sandbox's own, which no policy is asked about; true where it can't be told."""
    try:
        with socket.socket(_family(host), socket.SOCK_STREAM) as sock:
            sock.bind((host, 0))
    except OSError as error:
        return error.errno != errno.EADDRNOTAVAIL
    return True


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _read_memory(pid: int, place: int, size: int) -> bytes:
    # What can't be read, by whatever a program has put in the place of an address, the kernel will judge by itself.
    with contextlib.suppress(OSError, OverflowError), open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        return os.pread(memory.fileno(), size, place)
    return b""
