"""How each fault is made, and undone. They are named in `plan`."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final

from chaos.machine import Node, command, host_pid
from chaos.plan import Fault
from chaos.world import World
from support.cluster.cluster import ClusterError
from support.cluster.policy_agent import find_agent
from support.cluster.reading import RefusedError
from support.servers.cut_connections import Way

UNDO_TRIES: Final = 60  # with a second between two: what undoes a fault may need what another fault has stopped
_SYNC_DELAY: Final = "200ms"
_BLOCK: Final = ("raw -I PREROUTING -i eth0", "raw -I OUTPUT -o eth0", "mangle -I POSTROUTING -o eth0")
_FILL: Final = "dd if=/dev/zero of=/var/log/sandpod/fill bs=64k 2>/dev/null || true"

Made = AbstractAsyncContextManager[Any]


async def surely(work: Callable[[], Awaitable[Any]]) -> None:
    """Do what undoes a fault, again and again until it is done. Raises ClusterError: it can't be done."""
    for attempt in range(UNDO_TRIES):
        try:
            await work()
        except (ClusterError, RefusedError, OSError):
            if attempt == UNDO_TRIES - 1:
                raise
            await asyncio.sleep(1)
        else:
            return


@asynccontextmanager
async def made(world: World, way: Way, fault: Fault) -> AsyncIterator[None]:
    """Have a fault for as long as this is open."""
    async with _MAKERS[fault.name](Place(world, way, fault)):
        yield


class Place:
    """Where a fault is made."""

    def __init__(self, world: World, way: Way, fault: Fault) -> None:
        self.world, self.way, self.fault = world, way, fault
        self.namespace = world.cluster.namespace

    @property
    def first(self) -> Node:
        """The node with the API server."""
        return self.world.nodes[0]

    @property
    def some(self) -> Node:
        """One of the nodes."""
        return self.world.nodes[self.fault.pick % len(self.world.nodes)]

    async def kill(self, container: str, namespace: str, signal: str = "KILL") -> None:
        """Send a signal to one of the containers of a name, or by chance to all of them."""
        found = [(node, pid) for node in self.world.nodes for pid in await node.pids(container, namespace)]
        if not found:
            return  # it has not come back from an earlier one yet
        every = self.fault.pick % 3 == 0
        for node, pid in found if every else [found[self.fault.pick % len(found)]]:
            await node.sh(f"kill -{signal} {pid} || true")

    async def kubectl(self, *arguments: str) -> None:
        """Ask the API server as an administrator; where it does not answer, this fault is none."""
        with contextlib.suppress(ClusterError):
            await self.world.cluster.kubectl(*arguments, "--request-timeout=20s")


Maker = Callable[[Place], Made]


def _at_once(act: Callable[[Place], Awaitable[None]]) -> Maker:
    @asynccontextmanager
    async def make(place: Place) -> AsyncIterator[None]:
        await act(place)
        yield

    return make


def _killed(container: str, namespace: str) -> Maker:
    return _at_once(lambda place: place.kill(container, namespace or place.namespace))


def _deleted(component: str) -> Maker:
    async def act(place: Place) -> None:
        with contextlib.suppress(ClusterError, RefusedError, OSError):
            there = await place.world.cluster.component_pods(component)
            which = there if place.fault.pick % 3 == 0 else there[:1]
            await place.kubectl("delete", "pod", *which, "-n", place.namespace, "--force", "--grace-period=0")

    return _at_once(act)


@asynccontextmanager
async def _paused(place: Place) -> AsyncIterator[None]:
    pids = await place.first.pids("kube-apiserver", "kube-system")
    numbers = " ".join(map(str, pids)) or "1"
    await place.first.sh(f"kill -STOP {numbers} || true")
    try:
        yield
    finally:
        await place.first.sh(f"kill -CONT {numbers} || true")


@asynccontextmanager
async def _slow_disk(place: Place) -> AsyncIterator[None]:
    """Let each write of etcd that waits for the disk take longer."""
    found = await place.first.pids("etcd", "kube-system")
    if not found:
        yield
        return
    pid = await host_pid(place.first, found[0])
    delay = f"inject=fsync,fdatasync:delay_enter={_SYNC_DELAY}"
    strace = await asyncio.create_subprocess_exec(
        *("strace", "-f", "-qq", "-o", "/dev/null", "-p", str(pid), "-e", "trace=fsync,fdatasync", "-e", delay),
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            strace.terminate()
        await strace.wait()


def _service(stop: str, start: str) -> Maker:
    @asynccontextmanager
    async def make(place: Place) -> AsyncIterator[None]:
        await place.some.sh(stop)
        try:
            yield
        finally:
            await surely(lambda: place.some.sh(start))

    return make


@asynccontextmanager
async def _drained(place: Place) -> AsyncIterator[None]:
    node = place.world.nodes[1]
    flags = ("--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=60s")
    await place.kubectl("drain", node.name, *flags)
    try:
        yield
    finally:
        await surely(lambda: place.world.cluster.kubectl("uncordon", node.name))


@asynccontextmanager
async def _cut_off(place: Place) -> AsyncIterator[None]:
    node = place.world.nodes[1]
    await node.sh("\n".join(f"iptables -t {rule} -j DROP" for rule in _BLOCK))
    try:
        yield
    finally:
        undo = "\n".join(
            f"while iptables -t {rule.replace('-I', '-D')} -j DROP 2>/dev/null; do :; done" for rule in _BLOCK
        )
        await surely(lambda: node.sh(undo))


@asynccontextmanager
async def _no_policies(place: Place) -> AsyncIterator[None]:
    agent = await _quietly(find_agent(place.world.cluster))
    if agent is None:
        yield
        return
    await _quietly(agent.send_off())
    try:
        yield
    finally:
        await surely(agent.bring_back)


async def _quietly(work: Awaitable[Any]) -> Any:
    """Return what comes of it, or nothing where another fault is in its way."""
    try:
        return await work
    except (ClusterError, RefusedError, OSError):
        return None


async def _cut(place: Place) -> None:
    place.way.cut()


@asynccontextmanager
async def _stalled(place: Place) -> AsyncIterator[None]:
    place.way.stall(stalls=True)
    try:
        yield
    finally:
        place.way.stall(stalls=False)


@asynccontextmanager
async def _delayed(place: Place) -> AsyncIterator[None]:
    place.way.delay = 0.05 + place.fault.pick % 400 / 1000
    try:
        yield
    finally:
        place.way.delay = 0.0


def _no_api(target: str) -> Maker:
    """Let nothing pass between a gateway and the API server; what is in the way answers, or says nothing."""

    @asynccontextmanager
    async def make(place: Place) -> AsyncIterator[None]:
        rule = f"OUTPUT -p tcp -m multiport --dports 443,6443 -j {target}"
        found = [(node, pid) for node in place.world.nodes for pid in await node.pids("gateway", place.namespace)]
        chosen = found if place.fault.pick % 3 == 0 else found[:1]
        for node, pid in chosen:
            await _quietly(node.sh(f"nsenter -t {pid} -n iptables -I {rule}"))
        try:
            yield
        finally:
            # The network is the pod's, and may have gone with it.
            for node, pid in chosen:
                undo = f"nsenter -t {pid} -n iptables -D {rule} 2>/dev/null || true"
                await surely(lambda node=node, undo=undo: node.sh(undo))  # type: ignore[misc]

    return make


def _clock(program: str) -> Maker:
    """Let the clock of a program jump; its processes read it from a file of the nodes."""

    @asynccontextmanager
    async def make(place: Place) -> AsyncIterator[None]:
        jump = (30, -30, 120, -90)[place.fault.pick % 4]
        await _set_clock(program, f"{jump:+d}s")
        try:
            yield
        finally:
            await _set_clock(program, "+0s")

    return make


async def _set_clock(program: str, text: str) -> None:
    folder = (await command("tools/cluster.sh", "clock-folder")).strip()
    await asyncio.to_thread(_write, f"{folder}/{program}", text)


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8") as file:  # noqa: PTH123 - in place, since it is mounted
        file.write(text + "\n")


@asynccontextmanager
async def _node_full(place: Place) -> AsyncIterator[None]:
    """Let a kubelet find too little room on its disk, which is this machine's: it evicts, and takes no pods."""
    file = "/var/lib/kubelet/config.yaml"
    node = place.world.nodes[-1]
    change = f"sed -i 's/nodefs.available: 0%/nodefs.available: 99%/' {file}; systemctl restart kubelet"
    await node.sh(change)
    try:
        yield
    finally:
        undo = f"sed -i 's/nodefs.available: 99%/nodefs.available: 0%/' {file}; systemctl restart kubelet"
        await surely(lambda: node.sh(undo))


@asynccontextmanager
async def _audit_full(place: Place) -> AsyncIterator[None]:
    """Fill the volume of each gateway's audit log."""
    in_each = (
        "for id in $(crictl ps -q --state Running --name '^gateway$'); do crictl exec $id sh -c '{}' || true; done"
    )
    for node in place.world.nodes:
        await _quietly(node.sh(in_each.format(_FILL)))
    try:
        yield
    finally:
        for node in place.world.nodes:
            await surely(lambda node=node: node.sh(in_each.format("rm -f /var/log/sandpod/fill")))  # type: ignore[misc]


def _without_pod(*, evicts: bool) -> Maker:
    async def act(place: Place) -> None:
        cluster = place.world.cluster
        held = await _quietly(cluster.held()) or set()
        if not held:
            return
        name = sorted(held)[place.fault.pick % len(held)]
        if not evicts:
            await place.kubectl("delete", "pod", name, "-n", cluster.sandboxes, "--force", "--grace-period=0")
            return
        eviction = f'{{"apiVersion":"policy/v1","kind":"Eviction","metadata":{{"name":"{name}"}}}}'
        path = f"/api/v1/namespaces/{cluster.sandboxes}/pods/{name}/eviction"
        await _quietly(cluster.kubectl("create", "--raw", path, "-f", "-", stdin=eviction))

    return _at_once(act)


_MAKERS: Final[dict[str, Maker]] = {
    "operator killed": _killed("operator", ""),
    "gateway killed": _killed("gateway", ""),
    "operator pods deleted": _deleted("operator"),
    "gateway pods deleted": _deleted("gateway"),
    "API server killed": _killed("kube-apiserver", "kube-system"),
    "API server paused": _paused,
    "etcd's disk slow": _slow_disk,
    "kubelet stopped": _service("systemctl stop kubelet", "systemctl start kubelet"),
    "kubelet killed": _service("systemctl kill --signal=KILL kubelet || true", "systemctl start kubelet"),
    "containerd restarted": _service("systemctl restart containerd", "systemctl start containerd"),
    "node drained": _drained,
    "node cut off": _cut_off,
    "policy agent stopped": _no_policies,
    "clients' streams cut": _at_once(_cut),
    "clients' streams stalled": _stalled,
    "clients' streams delayed": _delayed,
    "gateway's API streams cut": _no_api("REJECT --reject-with tcp-reset"),
    "gateway's API streams stalled": _no_api("DROP"),
    "gateway's clock jumps": _clock("gateway"),
    "operator's clock jumps": _clock("operator"),
    "node's disk full": _node_full,
    "audit's disk full": _audit_full,
    "sandbox's pod deleted": _without_pod(evicts=False),
    "sandbox's pod evicted": _without_pod(evicts=True),
}
