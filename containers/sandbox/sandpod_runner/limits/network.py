"""Finds out from inside whether the sandbox's network is closed, and answers for it where it is.

It is probed before anything may run and again later. The addresses are those that network policies must keep out of
reach: a plug-in that ignores policies is found out so.

Network plugins drop what programs send to elsewhere, so that these would wait for their own timeout, or two minutes.
Instead the kernel asks here about each connection, and a program learns at once that the network is unreachable. What
keeps the sandbox closed is the policies: nothing here is relied on for that.
"""

import asyncio
import contextlib
import errno
import fcntl
import os
import random
import select
import socket
import sys
import time
from functools import partial
from struct import Struct
from typing import Final

from sandpod_runner.limits.threads import in_thread

SECONDS: Final = 1.2
"""For all addresses together: they are tried at the same time. Linux resends a lost SYN after a second."""

PATIENCE: Final = 10.0  # seconds in which the network must be found closed
PAUSE: Final = 0.5  # seconds between two looks
SOON: Final = 10.0
"""Seconds until the first later look; then twice as many each time, up to the interval. A policy that opens something
may reach the network plug-in after the pod has started."""
LASTING: Final = 30.0
"""Seconds that it has to be open while code may run, if looks are not more frequent: a network plug-in that starts anew
ends no sandbox."""

Endpoint = tuple[str, int]  # host, port
_REACHED: Final = (0, errno.ECONNREFUSED)  # in which a connection to an address that can be reached results

# struct seccomp_notif: id, pid, flags; its struct seccomp_data: number, architecture, instruction pointer, arguments.
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


async def find_lasting_open(addresses: tuple[Endpoint, ...], patience: float = PATIENCE) -> str | None:
    """Return an address that can be reached and stays so, or None once a look finds all of them out of reach.

    Network plug-ins may need a moment after a pod's start until its policies are in force. What counts is a look that
    began when `patience` seconds were over: one may have waited long for the processor.
    """
    deadline = time.monotonic() + patience
    while True:
        last = time.monotonic() >= deadline
        reached = await in_thread(partial(find_open, addresses))
        if reached is None or last:
            return reached
        await asyncio.sleep(PAUSE)


def has_loopback_alone() -> bool:
    """Return whether the sandbox has no network interface but its own loopback, as under the local backend."""
    return all(name == "lo" for _, name in socket.if_nameindex())


async def wait_for_open(addresses: tuple[Endpoint, ...], interval: float) -> str:
    """Return an address once it can be reached and stays so; looks every so often, and not all sandboxes at once."""
    wait = min(interval, SOON)
    while True:
        await asyncio.sleep(wait * random.uniform(0.5, 1))  # noqa: S311 - no secret: spreads load
        wait = min(interval, 2 * wait)
        reached = await find_lasting_open(addresses, min(interval, LASTING))
        if reached is not None:
            return reached


def find_open(addresses: tuple[Endpoint, ...], seconds: float = SECONDS) -> str | None:
    """Return `host:port` of one of the addresses that can be reached, or None.

    An address is reached when a connection is made, and also when its host answers that nothing listens there
    (ECONNREFUSED): the packet went out and an answer came back. Where a policy rejects connections by an answer of its
    own, that looks the same and counts as open: better a closed sandbox that is not used than an open one that is.
    """
    tries: dict[int, tuple[socket.socket, str]] = {}
    poll = select.poll()
    with contextlib.ExitStack() as stack:
        for host, port in addresses:
            try:
                family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
                sock = stack.enter_context(socket.socket(family, kind))
            except OSError:
                continue  # a name that can't be resolved, or no such kind of network: not reachable
            sock.setblocking(False)
            if sock.connect_ex(address) in (*_REACHED, errno.EINPROGRESS, errno.EWOULDBLOCK):
                tries[sock.fileno()] = (sock, f"{host}:{port}")
                poll.register(sock, select.POLLOUT)
        deadline = time.monotonic() + seconds
        while tries:
            left = deadline - time.monotonic()
            # Also when time is up: a process that had to wait for the processor has not looked yet.
            answers = poll.poll(max(0.0, left) * 1000)
            if not answers and left <= 0:
                break
            for fd, _ in answers:
                poll.unregister(fd)
                sock, name = tries.pop(fd)
                if sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) in _REACHED:
                    return name
    return None


class Connects:
    """Decides what becomes of connections that programs want to make.

    All to this sandbox itself are made. Others are refused until one of them turns out to be possible: its network
    profile may have been changed since it began, which nobody reports to it.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._open = False
        self._looks: dict[Endpoint, asyncio.Task[None]] = {}

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
            endpoint = None if self._open else read_endpoint(_read_memory(pid, pointer, min(length, _ADDRESS_BYTES)))
            if endpoint is None or is_own(endpoint[0]):
                fcntl.ioctl(fd, _SEND, _ANSWER.pack(number, 0, 0, _GO_ON))
            else:
                fcntl.ioctl(fd, _SEND, _ANSWER.pack(number, 0, -errno.ENETUNREACH, 0))
                if endpoint not in self._looks and len(self._looks) < AT_ONCE:
                    self._looks[endpoint] = task = self._loop.create_task(self._look(endpoint))
                    task.add_done_callback(lambda _: self._looks.pop(endpoint))

    async def _look(self, endpoint: Endpoint) -> None:
        with contextlib.suppress(OSError), socket.socket(_family(endpoint[0]), socket.SOCK_STREAM) as sock:
            sock.setblocking(False)
            with contextlib.suppress(ConnectionRefusedError):  # the packet went out and an answer came back
                await asyncio.wait_for(self._loop.sock_connect(sock, endpoint), SECONDS)
            self._open = True


def read_endpoint(address: bytes) -> Endpoint | None:
    """Return the host and port of a socket address, or None where it is of another kind or none at all."""
    family = int.from_bytes(address[:2], sys.byteorder)
    part = _HOST.get(family, slice(0))
    if len(address) < part.stop or not part.stop:
        return None
    return socket.inet_ntop(family, address[part]), int.from_bytes(address[2:4], "big")


def is_own(host: str) -> bool:
    """Return whether an address is this sandbox's own, to which no policy applies; true where that is not known."""
    try:
        with socket.socket(_family(host), socket.SOCK_STREAM) as sock:
            sock.bind((host, 0))
    except OSError as error:
        return error.errno != errno.EADDRNOTAVAIL
    return True


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _read_memory(pid: int, address: int, size: int) -> bytes:
    # What can't be read, by whatever a program has put where an address belongs, the kernel will judge by itself.
    with contextlib.suppress(OSError, OverflowError), open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        return os.pread(memory.fileno(), size, address)
    return b""
