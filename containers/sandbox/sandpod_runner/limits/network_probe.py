"""Finds out from inside whether the sandbox's network is closed, before anything may run in it and again later.

The addresses are those that network policies must keep out of reach: a plug-in that ignores policies is found out so.
"""

import asyncio
import errno
import random
import select
import socket
import time
from functools import partial
from typing import Final

from sandpod_runner.limits.threads import in_thread

SECONDS: Final = 1.2
"""For all addresses together: they are tried side by side. Linux says a lost SYN again after a second."""

PATIENCE: Final = 10.0  # seconds in which the network must be found closed
PAUSE: Final = 0.5  # seconds between two looks
SOON: Final = 10.0
"""Seconds until the first later look; then twice as many each time, up to the interval. A policy that opens something
may reach the network plug-in after the pod has started."""
LASTING: Final = 30.0
"""Seconds that it has to be open while code may run, if looks are not more frequent: a network plug-in that starts anew
ends no sandbox."""

Endpoint = tuple[str, int]  # host, port
_PENDING: Final = (errno.EINPROGRESS, errno.EWOULDBLOCK)


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
    tries = _begin(addresses)
    deadline = time.monotonic() + seconds
    try:
        poll = select.poll()
        for fd in tries:
            poll.register(fd, select.POLLOUT)
        while tries:
            left = deadline - time.monotonic()
            # Also when time is up: a process that had to wait for the processor has not looked yet.
            answers = poll.poll(max(0.0, left) * 1000)
            if not answers and left <= 0:
                break
            for fd, _ in answers:
                poll.unregister(fd)
                sock, name = tries.pop(fd)
                code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                sock.close()
                if code in (0, errno.ECONNREFUSED):
                    return name
    finally:
        for sock, _ in tries.values():
            sock.close()
    return None


def _begin(addresses: tuple[Endpoint, ...]) -> dict[int, tuple[socket.socket, str]]:
    tries = {}
    for host, port in addresses:
        try:
            family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            sock = socket.socket(family, kind)
        except OSError:
            continue  # a name that can't be resolved, or no such kind of network: not reachable
        sock.setblocking(False)
        code = sock.connect_ex(address)
        if code in (0, errno.ECONNREFUSED, *_PENDING):
            tries[sock.fileno()] = (sock, f"{host}:{port}")
        else:
            sock.close()
    return tries
