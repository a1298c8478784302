"""The nodes of a kind cluster, which are containers of this machine: commands on them, and their programs.

What can't be done here is said by `abilities`, such as in a cluster that is not kind's.
"""

import asyncio
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from support.cluster.cluster import ClusterError

CLOCK: Final = "/shared/clock"
"""The folder of a node with what makes the clocks of gateways and operators jump; see tools/cluster.sh."""

_PIDS: Final = """
for id in $(crictl ps -q --state Running --name '^{container}$' {label}); do
  crictl inspect -o go-template --template '{{{{.info.pid}}}}' "$id"; echo
done
"""
_SAMPLE: Final = """
for pid in $pids; do
  [ -d /proc/$pid/fd ] || continue
  echo "$pid $(ls /proc/$pid/fd | wc -l) $(awk '/^VmRSS|^Threads/ {print $2}' ORS=' ' /proc/$pid/status)"
done
"""
PROGRAMS: Final = {
    "gateway": ("gateway", "sandpod"),
    "operator": ("operator", "sandpod"),
    "runner": ("sandbox", ""),
    "API server": ("kube-apiserver", "kube-system"),
}
"""Programs that are measured: the container's name and its namespace, or every namespace."""


async def command(*arguments: str, stdin: bytes | None = None, within: float = 90) -> str:
    """Return what a command prints. Raises ClusterError: it failed, or took longer."""
    process = await asyncio.create_subprocess_exec(
        *arguments,
        stdin=asyncio.subprocess.PIPE if stdin is not None else asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(within):
            out, err = await process.communicate(stdin)
    except TimeoutError as error:
        process.kill()
        await process.wait()
        raise ClusterError(f"{arguments[:4]} took longer than {within:g} s") from error
    if process.returncode:
        raise ClusterError(f"{arguments[:4]} failed: {err.decode()[-1000:]}")
    return out.decode()


@dataclass(frozen=True)
class Node:
    """One node: a container of this machine."""

    name: str

    async def sh(self, script: str, *, within: float = 90) -> str:
        """Return what a shell script prints there."""
        return await command("docker", "exec", "-i", self.name, "sh", "-eu", stdin=script.encode(), within=within)

    async def pids(self, container: str, namespace: str) -> list[int]:
        """Return the processes of the running containers of a name, as the node numbers them."""
        label = f"--label io.kubernetes.pod.namespace={namespace}" if namespace else ""
        said = await self.sh(_PIDS.format(container=container, label=label))
        return [int(each) for each in said.split()]

    async def samples(self) -> list[dict[str, Any]]:
        """Return memory (bytes), descriptors and threads of each program that is measured."""
        found = []
        for name, (container, namespace) in PROGRAMS.items():
            pids = await self.pids(container, namespace)
            said = await self.sh(f"pids='{' '.join(map(str, pids))}'{_SAMPLE}") if pids else ""
            for line in said.splitlines():
                pid, descriptors, memory, threads = (int(each) for each in line.split())
                found.append(
                    {
                        "name": name,
                        "where": f"{self.name}/{pid}",
                        "memory": memory * 1024,
                        "descriptors": descriptors,
                        "threads": threads,
                    }
                )
        return found


async def nodes() -> list[Node]:
    """Return the nodes of the cluster KIND_CLUSTER, the one with the API server first; none where it is not kind's."""
    if shutil.which("docker") is None or shutil.which("kind") is None:
        return []
    said = await command("kind", "get", "nodes", "--name", os.environ.get("KIND_CLUSTER", "sandpod-test"))
    return [Node(name) for name in sorted(said.split(), key=lambda name: "control-plane" not in name)]


async def host_pid(node: Node, pid: int) -> int:
    """Return the number that this machine gives to a process of a node. Raises ClusterError: It has none."""
    begun = (await node.sh(f"readlink /proc/{pid}/ns/pid; awk '{{print $22}}' /proc/{pid}/stat")).split()
    found = await asyncio.to_thread(_begun_as, begun)
    if found is None:
        raise ClusterError(f"Process {pid} of {node.name} is not one of this machine's.")
    return found


def _begun_as(begun: list[str]) -> int | None:
    """Return the process of a namespace that began at a time."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                space = str((folder / "ns/pid").readlink())
                stat = (folder / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            except OSError:
                continue
            if [space, stat[19]] == begun:
                return int(folder.name)
    return None


async def abilities(there: list[Node], gateway_pod: dict[str, Any]) -> set[str]:
    """Return what can be done in this cluster, in the words of `plan.Kind.needs`."""
    found = set()
    if there:
        found.add("nodes")
    if len(there) > 1:
        found.add("second node")
    if there and shutil.which("strace") is not None and os.geteuid() == 0:
        found.add("strace")
    mounts = json.dumps(gateway_pod["spec"]["containers"][0].get("volumeMounts", []))
    if '"/var/log/sandpod"' in mounts:
        found.add("audit")
    if there and f'"{CLOCK}"' in mounts and "libfaketime" in await there[0].sh(f"ls {CLOCK} 2>/dev/null || true"):
        found.add("clock")
    return found
