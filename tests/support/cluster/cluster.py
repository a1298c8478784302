"""What the cluster says, by kubectl as an administrator would: the tests' second pair of eyes beside the gateway.

Called by the tests of this folder only. It waits on named conditions, each bounded; it never pauses and hopes.
"""

import asyncio
import json
import socket
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from support.cluster.reading import read
from support.ports import await_open

T = TypeVar("T")

POLL = (0.1, 1.0)  # shortest and longest time between two looks at what has no watch, seconds
PATIENCE = 0.1  # of the time that was waited already, in between


class ClusterError(AssertionError):
    """A command failed, or what was waited for did not come."""


async def until(what: str, look: Callable[[], Awaitable[T]], *, within: float) -> T:
    """Return the first true answer of `look`.

    Raises:
        ClusterError: There was none within that many seconds.
    """
    began = time.monotonic()
    while True:
        answer = await look()
        if answer:
            return answer
        waited = time.monotonic() - began
        if waited > within:
            raise ClusterError(f"not within {within:g} s: {what}; last answer {answer!r}")
        await asyncio.sleep(min(max(POLL[0], PATIENCE * waited), POLL[1]))


def node_url(namespace: str) -> str:
    """Return the address of the gateway's Service on the first node, which needs no tunnel."""

    port = read("services", namespace, "sandpod-gateway")["spec"]["ports"][0]["nodePort"]
    return f"http://{node_address(read('nodes', '')['items'][0])}:{port}"


@contextmanager
def spread_service(namespace: str) -> Iterator[str]:
    """Give an address, host:port, of all gateways that keeps no client at one of them."""
    made = read("services", namespace, "sandpod-gateway")["spec"]
    spec = {"type": "NodePort", "selector": made["selector"], "ports": [{"port": 8000, "targetPort": "http"}]}
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "test-spread"}, "spec": spec}
    run = partial(subprocess.run, check=True, capture_output=True, text=True, timeout=60)
    run(["kubectl", "apply", "-n", namespace, "-f", "-"], input=json.dumps(service))
    try:
        port = read("services", namespace, "test-spread")["spec"]["ports"][0]["nodePort"]
        host = node_address(read("nodes", "")["items"][0])
        await_open(host, port)  # a node takes a moment to know a Service
        yield f"{host}:{port}"
    finally:
        run(["kubectl", "delete", "service", "-n", namespace, "test-spread"])


def node_address(node: dict[str, Any]) -> str:
    """Return the address of a node inside the cluster."""
    return next(str(each["address"]) for each in node["status"]["addresses"] if each["type"] == "InternalIP")


@contextmanager
def forwarded(namespace: str, target: str, port: int) -> Iterator[int]:
    """Give a local port that leads to one pod or Service; kubectl says when it is open."""
    command = ["kubectl", "port-forward", "-n", namespace, target, f":{port}", "--address", "127.0.0.1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as tunnel:
        try:
            assert tunnel.stdout is not None
            line = tunnel.stdout.readline()
            local = int(line.split(":")[1].split(" ")[0])
            socket.create_connection(("127.0.0.1", local), timeout=5).close()
            yield local
        finally:
            tunnel.terminate()


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """The cluster that KUBECONFIG names, with the chart installed.

    Attributes:
        namespace: Where gateway and operator run.
        sandboxes: Where the sandboxes run.
    """

    namespace: str
    sandboxes: str

    async def kubectl(self, *arguments: str, stdin: str | None = None, check: bool = True) -> str:
        """Return what kubectl prints.

        Raises:
            ClusterError: It failed, and `check` is true; the text is its own.
        """
        done = await asyncio.to_thread(
            subprocess.run,
            ["kubectl", *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        if check and done.returncode != 0:
            raise ClusterError(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    async def items(self, kind: str, *, namespace: str | None = None, selector: str = "") -> list[dict[str, Any]]:
        """Return all objects of a kind in the sandboxes' namespace, or in another."""
        found = await asyncio.to_thread(read, kind, namespace or self.sandboxes, selector=selector)
        items: list[dict[str, Any]] = found["items"]
        return items

    async def get(self, kind: str, name: str, *, namespace: str | None = None) -> dict[str, Any]:
        """Return an object in the sandboxes' namespace, or in another; empty where it is not there."""
        return await asyncio.to_thread(read, kind, namespace or self.sandboxes, name)

    async def sandbox(self, name: str) -> dict[str, Any]:
        """Return a Sandbox as the API server has it."""
        found = await self.get("sandboxes", name)
        if not found:
            raise ClusterError(f"There is no Sandbox {name}.")
        return found

    async def pod_of(self, name: str) -> dict[str, Any]:
        """Return the pod of a Sandbox."""
        return await self.get("pods", (await self.sandbox(name))["status"]["podName"])

    async def in_pod(self, pod: str, code: str) -> str:
        """Return what a Python program prints in a sandbox's pod, beside the runner and not through it."""
        return await self.kubectl("exec", pod, "-n", self.sandboxes, "--", "python3", "-I", "-c", code)

    async def claimed(self, user: str) -> set[str]:
        """Return the names of all Sandboxes that a user holds."""
        found = await self.items("sandboxes")
        return {s["metadata"]["name"] for s in found if s["spec"].get("claim", {}).get("owner") == f"user:{user}"}

    async def made(self) -> set[str]:
        """Return the names of all Sandboxes that a gateway has made or taken."""
        found = await self.items("sandboxes")
        return {s["metadata"]["name"] for s in found if "claim" in s["spec"]}

    async def held(self) -> set[str]:
        """Return the names of all Sandboxes that somebody holds and that have not ended."""
        return {
            s["metadata"]["name"]
            for s in await self.items("sandboxes")
            if "claim" in s["spec"]
            and "deletionTimestamp" not in s["metadata"]
            and s.get("status", {}).get("phase") not in {"Expired", "Failed"}
        }

    async def warm(self) -> set[str]:
        """Return the names of all Sandboxes that wait, ready."""
        found = await self.items("sandboxes")
        return {
            s["metadata"]["name"]
            for s in found
            if "claim" not in s["spec"] and s.get("status", {}).get("phase") == "Warm"
        }

    async def pool_is_full(self, *, within: float = 120) -> set[str]:
        """Wait until the default pool has all its warm sandboxes, and return them."""
        wanted = (await self.get("sandboxpools", "default"))["spec"]["replicas"]

        async def look() -> set[str]:
            warm = await self.warm()
            return warm if len(warm) >= wanted else set()

        return await until(f"{wanted} warm sandboxes", look, within=within)

    async def rollout(self, component: str) -> None:
        """Wait until all pods of the gateway or the operator are ready."""
        await self.kubectl(
            "rollout", "status", f"deployment/sandpod-{component}", "-n", self.namespace, "--timeout=110s"
        )

    async def restarts(self) -> dict[str, int]:
        """How often a container of each pod of gateway and operator has been restarted."""
        pods = await self.items("pods", namespace=self.namespace)
        return {
            pod["metadata"]["name"]: status["restartCount"]
            for pod in pods
            for status in pod["status"].get("containerStatuses", [])
        }

    async def component_pods(self, component: str) -> list[str]:
        """Return the names of the running pods of the gateway or the operator."""
        pods = await self.items("pods", namespace=self.namespace, selector=f"app.kubernetes.io/component={component}")
        return [
            p["metadata"]["name"]
            for p in pods
            if "deletionTimestamp" not in p["metadata"] and p["status"].get("phase") == "Running"
        ]
