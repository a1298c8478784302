"""An operator of the test's own, as a process on this machine, for namespaces of the test's own.

Called by `test_operator_*.py` and `test_crds.py`. The installed operator keeps other namespaces and sees none of this.
"""

import asyncio
import contextlib
import functools
import os
import secrets
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sandpod_api.base import rfc3339
from sandpod_api.names import API_VERSION
from support.cluster import reading, writing
from support.cluster.cluster import Cluster, ClusterError, T, until
from support.ports import free_port

IMAGE = f"{os.environ.get('IMAGE_PREFIX', 'sandpod')}/sandbox:{os.environ.get('IMAGE_TAG', 'dev')}"
FAST = {
    "RETENTION": "10",
    "REFUSED_RETRY": "1",
    "FAILED_POD_GRACE": "2",
    "RESYNC_INTERVAL": "20",
    "HEARTBEAT_INTERVAL": "8",
    "SWEEP_INTERVAL": "1",
    "ORPHAN_GRACE": "2",
}


@contextlib.contextmanager
def namespace(part: str, *, level: str = "restricted") -> Iterator[Cluster]:
    """Give a namespace that takes pods of a Pod Security level only, and delete it afterwards without waiting."""
    name = f"{part}-{secrets.token_hex(3)}"
    labels = {"pod-security.kubernetes.io/enforce": level}
    made = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
    writing.apply(made)
    try:
        yield Cluster(namespace=name, sandboxes=name)
    finally:
        writing.remove(made)


def run(*arguments: str, stdin: str | None = None) -> str:
    """Return what kubectl prints."""
    done = subprocess.run(
        ["kubectl", *arguments], input=stdin, capture_output=True, text=True, check=False, timeout=120
    )
    if done.returncode != 0:
        raise ClusterError(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


class OperatorProcess:
    """One replica."""

    def __init__(self, log: Path, *namespaces: str, **changes: str) -> None:
        self.port = free_port()
        self._log = log
        kubeconfig = changes.pop("kubeconfig", "")
        settings = {
            "NAMESPACES": ",".join(namespaces),
            "NAMESPACE": namespaces[0],
            "HTTP_HOST": "127.0.0.1",
            "HTTP_PORT": str(self.port),
            "API_SERVER": _api_server(),
            **FAST,
            **changes,
        }
        clean = {k: v for k, v in os.environ.items() if not k.startswith("SANDPOD_")}
        environment = {**clean, **({"KUBECONFIG": kubeconfig} if kubeconfig else {})}
        environment |= {f"SANDPOD_OPERATOR_{k}": v for k, v in settings.items()}
        with log.open("ab") as out:
            self._process = subprocess.Popen([sys.executable, "-m", "sandpod_operator"], env=environment, stderr=out)

    @property
    def has_ended(self) -> bool:
        """Whether it is not there any more."""
        return self.exit_code() is not None

    def get(self, path: str) -> str:
        """Return what the operator's HTTP server answers, or nothing while it does not."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as answer:
                text: str = answer.read().decode()
                return text
        except OSError:
            return ""

    async def is_active(self, *, within: float = 60) -> None:
        """Wait until this replica is the active one."""

        async def look() -> bool:
            if self.has_ended:
                raise ClusterError(f"the operator ended: {self._log.read_text()[-2000:]}")
            return await asyncio.to_thread(self.get, "/readyz") == "active\n"

        await until("an active operator", look, within=within)

    def writes(self) -> dict[tuple[str, str], int]:
        """Return how many writes the API server took, by verb and kind, but for Leases and Events."""
        found: dict[tuple[str, str], int] = {}
        for line in self.get("/metrics").splitlines():
            name, _, rest = line.partition("{")
            if name == "sandpod_operator_api_writes_total":
                labels, _, value = rest.partition("} ")
                fields = dict(part.split("=") for part in labels.replace('"', "").split(","))
                if fields["result"] == "ok" and fields["kind"] not in {"Lease", "Event"}:
                    found[fields["verb"], fields["kind"]] = int(float(value))
        return found

    def memory(self) -> int:
        """Return what it holds in memory, bytes."""
        lines = Path(f"/proc/{self._process.pid}/status").read_text(encoding="utf-8").splitlines()
        return next(int(text.split()[1]) * 1024 for text in lines if text.startswith("VmRSS:"))

    def work(self) -> tuple[float, float]:
        """Return the processor seconds that it has used in its whole life, and the reconciles that it has done."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()
        used = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        done = 0.0
        for text in self.get("/metrics").splitlines():
            if text.startswith("sandpod_operator_reconcile_seconds_count"):
                done += float(text.rpartition(" ")[2])
        return used, done

    def exit_code(self) -> int | None:
        """Return what it ended with, or None while it runs."""
        return self._process.poll()

    def kill(self) -> None:
        """End it as a lost node does: at once, with no word to anybody."""
        self._process.kill()
        self._process.wait(30)

    def stop(self) -> int:
        """End it as Kubernetes does, and return its exit code."""
        self._process.terminate()
        return self._process.wait(30)

    def wait(self) -> int:
        """Wait until it ends by itself, and return its exit code."""
        return self._process.wait(60)


@contextlib.contextmanager
def running(log: Path, *namespaces: str, **changes: str) -> Iterator[OperatorProcess]:
    """Give an active operator and end it afterwards."""
    operator = OperatorProcess(log, *namespaces, **changes)
    try:
        asyncio.run(operator.is_active())
        yield operator
        # It ends by itself when it loses its Lease: what was not done after that is no fault of the tests that waited.
        code = operator.exit_code()
        # Some tests end it themselves: by SIGKILL, or as Kubernetes does.
        assert code in {None, 0, -signal.SIGKILL}, f"The operator ended with {code}: {log.read_text()[-2000:]}"
    finally:
        operator.kill()


@dataclass(frozen=True, kw_only=True)
class Managed:
    """Namespaces by name, and the one operator that manages them all."""

    operator: OperatorProcess
    namespaces: dict[str, "Objects"]


@contextlib.contextmanager
def managed(log: Path, *parts: str, **changes: str) -> Iterator[Managed]:
    """Give a namespace for each part, with a template in it, and one active operator for them all."""
    with contextlib.ExitStack() as stack:
        spaces = {part: Objects(cluster=stack.enter_context(namespace(part))) for part in parts}
        for each in spaces.values():
            asyncio.run(each.template())
        operator = stack.enter_context(running(log, *(each.namespace for each in spaces.values()), **changes))
        yield Managed(operator=operator, namespaces=spaces)


@functools.cache
def _api_server() -> str:
    return f"{reading.read('services', 'default', 'kubernetes')['spec']['clusterIP']}:443"


@dataclass(frozen=True, kw_only=True)
class Objects:
    """Makes and reads objects in one namespace."""

    cluster: Cluster

    @property
    def namespace(self) -> str:
        return self.cluster.sandboxes

    async def apply(self, kind: str, name: str, **spec: Any) -> None:
        """Make or change an object of Sandpod's."""
        metadata = {"name": name, "namespace": self.namespace}
        await self.put({"apiVersion": API_VERSION, "kind": kind, "metadata": metadata, "spec": spec})

    async def put(self, manifest: dict[str, Any]) -> None:
        """Make or change any object."""
        await asyncio.to_thread(writing.apply, manifest, self.namespace)

    async def quota(self, **hard: str) -> None:
        """Limit the namespace, once the API server does so: until then it creates what it should refuse."""
        quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "quota"}, "spec": {"hard": hard}}
        await self.put(quota)

        async def counts() -> bool:
            status: dict[str, Any] = (await self.cluster.get("resourcequotas", "quota")).get("status", {})
            return status.get("hard") == hard and "used" in status

        await until("the quota is enforced", counts, within=60)

    async def patch(self, kind: str, name: str, change: Any, **options: Any) -> None:
        """Change an object as `writing.patch` does."""
        await asyncio.to_thread(writing.patch, kind, self.namespace, name, change, **options)

    async def delete(self, kind: str, name: str, **options: Any) -> None:
        """Ask for the deletion of an object as `writing.delete` does."""
        await asyncio.to_thread(writing.delete, kind, self.namespace, name, **options)

    async def scale(self, pool: str, replicas: int) -> None:
        """Set the size of a pool."""
        await self.patch("sandboxpools", pool, {"spec": {"replicas": replicas}})

    async def template(self, name: str = "python", **spec: Any) -> None:
        """Make a template of the image under test."""
        await self.apply("SandboxTemplate", name, **{"image": IMAGE, "hostUsers": False, **spec})

    async def parked(self, name: str = "parked", **spec: Any) -> None:
        """Make a template whose pods are created and get no node: for what is over by then, they cost no container."""
        await self.template(name, **{"nodeSelector": {"sandpod.dev/nowhere": ""}, **spec})

    async def sandbox(self, name: str, **spec: Any) -> None:
        """Make a Sandbox that alice holds from now on."""
        claim = {"owner": "alice", "time": now()}
        await self.apply("Sandbox", name, **{"templateRef": {"name": "python"}, "claim": claim, **spec})

    async def claim(self, name: str) -> None:
        """Take a warm sandbox as a gateway does."""
        made = await self.cluster.sandbox(name)
        patch = [
            {"op": "test", "path": "/metadata/resourceVersion", "value": made["metadata"]["resourceVersion"]},
            {"op": "remove", "path": "/metadata/ownerReferences"},
            {"op": "replace", "path": "/metadata/labels/sandpod.dev~1state", "value": "claimed"},
            {"op": "add", "path": "/spec/claim", "value": {"owner": "alice", "time": now()}},
        ]
        await self.patch("sandboxes", name, patch, how="json")

    async def status(self, name: str, kind: str = "sandboxes") -> dict[str, Any]:
        """Return an object's status; empty while it or its status is not there."""
        found: dict[str, Any] = (await self.cluster.get(kind, name)).get("status", {})
        return found

    async def event_reasons(self, sandbox: str) -> list[str]:
        """Return the reasons of all events of a Sandbox, sorted."""
        found = [(e["involvedObject"], e["reason"]) for e in await self.cluster.items("events")]
        return sorted(r for what, r in found if (what["kind"], what["name"]) == ("Sandbox", sandbox))

    async def event(self, sandbox: str, reason: str, *, within: float = 60) -> str:
        """Wait for an event of a Sandbox, and return its sentence: events are told after the status is written."""

        async def told() -> str:
            found = [(e["involvedObject"], e) for e in await self.cluster.items("events") if e["reason"] == reason]
            of = [e for what, e in found if (what["kind"], what["name"]) == ("Sandbox", sandbox)]
            return str(of[0]["message"]) if of else ""

        return await until(f"the event {reason} of {sandbox}", told, within=within)

    async def condition(self, pool: str, kind: str) -> dict[str, Any]:
        """Return a pool's condition; without reason and words while it is not there."""
        conditions = (await self.status(pool, "sandboxpools")).get("conditions", [])
        return next((c for c in conditions if c["type"] == kind), {"reason": "", "message": ""})

    async def pause_image(self) -> str:
        """Return an image that every node has, of what holds a pod's namespaces: no Python and no runner in it."""
        nodes = await self.cluster.items("nodes")
        return next(str(name) for i in nodes[0]["status"]["images"] for name in i["names"] or () if "/pause:" in name)

    async def phase(self, name: str, phase: str, *, within: float = 60) -> dict[str, Any]:
        """Wait until a Sandbox has a phase, and return its status."""

        def has(status: dict[str, Any]) -> dict[str, Any] | None:
            return status if status.get("phase") == phase else None

        return await self._said(f"{name} is {phase}", name, has, within)

    async def reason(self, name: str, reason: str, *, within: float = 60) -> str:
        """Wait until a Sandbox is not ready for that reason, and return the sentence."""

        def message(status: dict[str, Any]) -> str | None:
            found = [c for c in status.get("conditions", []) if c["type"] == "Ready" and c["reason"] == reason]
            return str(found[0]["message"]) if found else None

        return await self._said(f"{name} says {reason}", name, message, within)

    async def has_pod(self, name: str) -> None:
        """Wait until a Sandbox of a template that is parked has its pod, and says so."""
        await self.reason(name, "Unschedulable", within=90)

    async def _said(self, what: str, name: str, of: Callable[[dict[str, Any]], T | None], within: float) -> T:
        """Wait for a status, however soon another one follows; tell what became of it where it does not come."""

        def look(sandbox: dict[str, Any]) -> T | None:
            return of(sandbox.get("status", {}))

        see: Callable[[], T | None] = functools.partial(
            reading.watch, "sandboxes", self.namespace, name, look, within=within
        )
        found = await asyncio.to_thread(see)
        if found is None:
            seen = f"its status {await self.status(name)}; its events {await self.event_reasons(name)}"
            raise ClusterError(f"not within {within:g} s: {what}; {seen}")
        return found

    async def gone(self, kind: str, name: str, *, within: float = 60) -> None:
        """Wait until an object is not there any more."""

        async def look() -> bool:
            return not await self.cluster.get(kind, name)

        await until(f"{kind} {name} is gone", look, within=within)

    async def pool_has(self, pool: str, ready: int, *, within: float = 90) -> None:
        """Wait until a pool has that many warm sandboxes, all ready."""

        async def look() -> bool:
            status = await self.status(pool, "sandboxpools")
            return (status.get("readyReplicas"), status.get("replicas")) == (ready, ready)

        await until(f"pool {pool} has {ready} ready", look, within=within)


def now() -> str:
    """Return the time as Kubernetes writes it."""
    return rfc3339(datetime.now(UTC))
