"""What the operator's tests share: objects to start from, and a small API server in memory with the operator on it.

The server keeps versions, preconditions and owner references as the real one does, and counts every write.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import TYPE_CHECKING, Any, cast

from sandpod_api import names
from sandpod_api.base import rfc3339
from sandpod_api.types import Sandbox, SandboxPool, SandboxTemplate
from sandpod_kube.errors import ConflictError, DeniedError, NotFoundError
from sandpod_kube.resources import NAMESPACE, PODS, SANDBOXES, WATCHED, Key, Resource, key_of
from sandpod_operator.controllers.context import Context
from sandpod_operator.controllers.dispatcher import Dispatcher
from sandpod_operator.controllers.orphan_gc import OrphanCollector
from sandpod_operator.controllers.reconciler import Reconciler
from sandpod_operator.metrics import Metrics
from sandpod_operator.model.pod import Pod
from sandpod_operator.settings import OperatorSettings

if TYPE_CHECKING:
    from sandpod_kube.client import KubeClient
    from sandpod_operator.model.actions import Emit

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
SPACE = "boxes"


def settings(**changes: Any) -> OperatorSettings:
    """Settings that do not depend on this machine."""
    base = {"namespaces": (SPACE,), "identity": "one", "api_server": "10.96.0.1:443", "backoff_min": 1}
    base["runner_image"] = "runner:test"
    return OperatorSettings(**{**base, **changes})


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def metadata(name: str, **changes: Any) -> dict[str, Any]:
    base = {
        "name": name,
        "namespace": SPACE,
        "uid": f"uid-{name}",
        "resourceVersion": "1",
        "generation": 1,
        "creationTimestamp": rfc3339(ago(60)),
    }
    return {**base, **changes}


def template_object(name: str = "python", **spec: Any) -> dict[str, Any]:
    return {"metadata": metadata(name), "spec": {"image": "sandpod/sandbox:test", **spec}}


def a_template(name: str = "python", **spec: Any) -> SandboxTemplate:
    return SandboxTemplate.model_validate(template_object(name, **spec))


def sandbox_object(name: str = "box", *, claimed: float | None = None, **spec: Any) -> dict[str, Any]:
    """A Sandbox; `claimed` is how many seconds ago that was."""
    body: dict[str, Any] = {"templateRef": {"name": "python"}, **spec}
    if claimed is not None:
        body["claim"] = {"owner": "alice", "session": "", "time": rfc3339(ago(claimed))}
    return {"metadata": metadata(name), "spec": body}


def a_sandbox(
    name: str = "box", *, claimed: float | None = None, status: Any = None, meta: Any = None, **spec: Any
) -> Sandbox:
    made = sandbox_object(name, claimed=claimed, **spec)
    made["metadata"] |= meta or {}
    made["status"] = status or {}
    return Sandbox.model_validate(made)


def a_pool(name: str = "warm", *, status: Any = None, **spec: Any) -> SandboxPool:
    body = {"templateRef": {"name": "python"}, "replicas": 2, **spec}
    return SandboxPool.model_validate({"metadata": metadata(name), "spec": body, "status": status or {}})


def condition(kind: str, status: str, reason: str, *, since: float = 0, message: str = "") -> dict[str, Any]:
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "observedGeneration": 1,
        "lastTransitionTime": rfc3339(ago(since)),
    }


def pod_object(sandbox: str = "box", *, status: Any = None, **meta: Any) -> dict[str, Any]:
    """A sandbox's pod; pending without `status`."""
    return {
        "metadata": metadata(
            sandbox,
            uid=f"uid-pod-{sandbox}",
            labels={names.LABEL_MANAGED_BY: names.MANAGED_BY, names.LABEL_SANDBOX: sandbox},
            ownerReferences=[{"kind": "Sandbox", "name": sandbox, "uid": f"uid-{sandbox}", "controller": True}],
            **meta,
        ),
        "spec": {"nodeName": "node-1", "containers": [{"name": "sandbox", "image": "sandpod/sandbox:test"}]},
        "status": status or {"phase": "Pending"},
    }


def a_pod(sandbox: str = "box", *, status: Any = None, **meta: Any) -> Pod:
    return Pod.model_validate(pod_object(sandbox, status=status, **meta))


def running(*, ready: bool = True, containers_ready: bool = True) -> dict[str, Any]:
    """The status of a pod whose runner has started.

    A node that is given up has its pods' condition Ready changed and nothing else; as the startup probe passes, the
    kubelet tells `started` before either is true; a container that a webhook added may keep both false.
    """
    return {
        "phase": "Running",
        "conditions": [
            {"type": "PodScheduled", "status": "True"},
            {"type": "Ready", "status": "True" if ready else "False", "lastTransitionTime": rfc3339(NOW)},
            {"type": "ContainersReady", "status": "True" if containers_ready else "False"},
        ],
        "containerStatuses": [
            {
                "name": "sandbox",
                "ready": True,
                "started": True,
                "state": {"running": {"startedAt": rfc3339(NOW)}},
            }
        ],
    }


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    """The status of a pod whose container does not run yet."""
    return {
        "phase": "Pending",
        "conditions": [{"type": "PodScheduled", "status": "True"}],
        "containerStatuses": [
            {"name": "sandbox", "started": False, "state": {"waiting": {"reason": reason, "message": message}}}
        ],
    }


def ended(code: int, *, reason: str = "Error", message: str = "", **status: Any) -> dict[str, Any]:
    """The status of a pod whose container has ended."""
    state = {"terminated": {"exitCode": code, "reason": reason, "message": message}}
    return {
        "phase": "Failed",
        "conditions": [{"type": "PodScheduled", "status": "True"}],
        "containerStatuses": [{"name": "sandbox", "ready": False, "started": False, "state": state}],
        **status,
    }


@dataclass
class ApiServer:
    """Objects in memory. `refuse`, where set, is asked before each creation and apply, and raises to refuse it."""

    clock: Callable[[], datetime]
    objects: dict[Key, dict[str, Any]] = field(default_factory=dict)
    writes: list[tuple[str, str]] = field(default_factory=list)
    refuse: Callable[[Resource], None] | None = None
    refuse_resize: Exception | None = None
    _versions: Any = field(default_factory=lambda: count(100))

    async def get(self, resource: Resource, namespace: str, name: str) -> dict[str, Any]:
        found = self.objects.get(Key(resource.kind, namespace, name))
        if found is None:
            raise NotFoundError(404, "NotFound", f"{resource.plural} {name!r} not found")
        return found

    def list(self, resource: Resource, namespace: str) -> list[dict[str, Any]]:
        return [o for k, o in self.objects.items() if k.kind == resource.kind and k.namespace == namespace]

    async def pages(self, resource: Resource, namespace: str) -> AsyncIterator[dict[str, Any]]:
        for found in self.list(resource, namespace):
            yield found

    async def list_page(self, resource: Resource, namespace: str, _: Mapping[str, str]) -> dict[str, Any]:
        return {"items": self.list(resource, namespace)}

    async def create(self, resource: Resource, manifest: dict[str, Any]) -> dict[str, Any]:
        self.writes.append(("create", resource.kind))
        key = key_of(resource, manifest)
        if self.refuse is not None:
            self.refuse(resource)
        if key in self.objects:
            raise ConflictError(409, "AlreadyExists", f"{key.name} already exists")
        made = {
            **manifest,
            "metadata": {
                **manifest["metadata"],
                "uid": f"uid-{next(self._versions)}",
                "generation": 1,
                "creationTimestamp": rfc3339(self.clock()),
            },
        }
        return self.set(resource, made)

    async def apply(self, resource: Resource, manifest: dict[str, Any]) -> dict[str, Any]:
        self.writes.append(("apply", resource.kind))
        if self.refuse is not None:
            self.refuse(resource)
        old = self.objects.get(key_of(resource, manifest), {}).get("metadata", {"uid": f"uid-{next(self._versions)}"})
        return self.set(resource, {**manifest, "metadata": {**old, **manifest["metadata"]}})

    async def replace(self, resource: Resource, manifest: dict[str, Any]) -> dict[str, Any]:
        self.writes.append(("update", resource.kind))
        known = await self.get(resource, manifest["metadata"]["namespace"], manifest["metadata"]["name"])
        if known["metadata"]["resourceVersion"] != manifest["metadata"]["resourceVersion"]:
            raise ConflictError(409, "Conflict", "the object has been modified")
        return self.set(resource, manifest)

    async def patch_status(
        self, resource: Resource, namespace: str, name: str, status: dict[str, Any]
    ) -> dict[str, Any]:
        self.writes.append(("patch_status", resource.kind))
        known = await self.get(resource, namespace, name)
        merged = {**known.get("status", {}), **status}
        return self.set(resource, {**known, "status": {k: v for k, v in merged.items() if v is not None}})

    async def patch(self, resource: Resource, namespace: str, name: str, change: dict[str, Any]) -> dict[str, Any]:
        self.writes.append(("patch", resource.kind))
        known = await self.get(resource, namespace, name)
        if known["metadata"]["resourceVersion"] != change["metadata"]["resourceVersion"]:
            raise ConflictError(409, "Conflict", "the object has been modified")
        meta = {**known["metadata"], "generation": known["metadata"]["generation"] + ("spec" in change)}
        meta["labels"] = {**known["metadata"].get("labels", {}), **change["metadata"].get("labels", {})}
        return self.set(resource, {**known, "metadata": meta, "spec": {**known["spec"], **change.get("spec", {})}})

    async def resize(
        self, namespace: str, name: str, uid: str, container: str, requests: dict[str, str]
    ) -> dict[str, Any]:
        self.writes.append(("resize", "Pod"))
        known = await self.get(PODS, namespace, name)
        if known["metadata"]["uid"] != uid:
            raise DeniedError(422, "Invalid", "metadata.uid: field is immutable")
        if self.refuse_resize is not None:
            raise self.refuse_resize
        containers = []
        for each in known["spec"]["containers"]:
            now = each.get("resources", {})
            more = {"requests": {**now.get("requests", {}), **requests}} if each["name"] == container else {}
            containers.append({**each, "resources": {**now, **more}})
        return self.set(PODS, {**known, "spec": {**known["spec"], "containers": containers}})

    async def delete(
        self, resource: Resource, namespace: str, name: str, preconditions: dict[str, str]
    ) -> dict[str, Any]:
        self.writes.append(("delete", resource.kind))
        known = await self.get(resource, namespace, name)
        if any(known["metadata"][key] != value for key, value in preconditions.items()):
            raise ConflictError(409, "Conflict", "the precondition failed")
        self.remove(Key(resource.kind, namespace, name))
        return {"kind": "Status", "status": "Success"}

    def set(self, resource: Resource, manifest: dict[str, Any]) -> dict[str, Any]:
        """Put an object in as it is, with a new version."""
        version = str(next(self._versions))
        made = {**manifest, "kind": resource.kind, "metadata": {**manifest["metadata"], "resourceVersion": version}}
        self.objects[key_of(resource, made)] = made
        return made

    def remove(self, key: Key) -> None:
        """Take an object away, and all that it owns, as Kubernetes' garbage collector does."""
        gone = self.objects.pop(key)["metadata"]["uid"]
        for other, manifest in list(self.objects.items()):
            if any(r["uid"] == gone for r in manifest["metadata"].get("ownerReferences", ())):
                self.remove(other)


class World:
    """An operator on an API server in memory, with a clock that the test moves."""

    def __init__(self, **changes: Any) -> None:
        self.now = NOW
        self.settings = settings(**changes)
        self.api = ApiServer(clock=self.clock)
        self.start()

    def start(self) -> None:
        """Start the operator anew: it knows nothing."""
        self.metrics = Metrics()
        self.events: list[Emit] = []
        context = Context.create(
            cluster=cast("KubeClient", self.api),
            settings=self.settings,
            metrics=self.metrics,
            clock=self.clock,
            emit=self.events.append,
        )
        self.store, self.queue, self.state = context.store, context.queue, context.state
        self.dispatcher = Dispatcher(context)
        self.orphans = OrphanCollector(context, self.dispatcher)
        self.reconciler = Reconciler(context, self.dispatcher)

    def clock(self) -> datetime:
        return self.now

    async def settle(self) -> None:
        """Work until nothing is left to do at this time."""
        while True:
            self.queue.release_due()
            if self.queue._ready.empty():
                return
            await self.queue._turn(self.queue._ready.get_nowait(), self.reconciler.reconcile)

    async def after(self, seconds: float) -> None:
        """Move the clock on, and work."""
        self.now += timedelta(seconds=seconds)
        await self.settle()

    async def given(self, resource: Resource, manifest: dict[str, Any]) -> None:
        """Somebody writes an object; the operator gets the event."""
        made = self.api.set(resource, manifest)
        self.dispatcher.saw(resource, made)
        await self.settle()

    async def gone(self, key: Key) -> None:
        """Somebody deletes an object; the operator gets the events, of what it owned too."""
        before = dict(self.api.objects)
        self.api.remove(key)
        for other in set(before) - set(self.api.objects):
            self.dispatcher.lost(other, before[other]["metadata"]["uid"])
        await self.settle()

    async def pod_becomes(self, sandbox: str, status: dict[str, Any]) -> None:
        """Kubelet and scheduler report on a pod."""
        await self.change(Key("Pod", SPACE, sandbox), status=status)

    async def change(self, key: Key, **parts: Any) -> None:
        """Somebody changes parts of an object."""
        resource = next(r for r in WATCHED if r.kind == key.kind)
        await self.given(resource, {**self.api.objects[key], **parts})

    async def start_all(self) -> None:
        """Every pod that is not running yet becomes ready."""
        for key, pod in list(self.api.objects.items()):
            waits = key in self.api.objects and pod.get("status", {}).get("phase", "Pending") == "Pending"
            if key.kind == "Pod" and waits:
                spec = {**pod["spec"], "nodeName": "node-1"}
                await self.change(key, spec=spec, status=running())

    async def claim(self, name: str, **lifetime: int) -> None:
        """Claim a warm sandbox as a gateway does: one patch that takes it out of its pool."""
        old = self.api.objects[Key("Sandbox", SPACE, name)]
        self.api.writes.append(("patch", "Sandbox"))
        meta = {
            **old["metadata"],
            "generation": 2,
            "ownerReferences": [],
            "labels": {**old["metadata"]["labels"], names.LABEL_STATE: names.STATE_CLAIMED},
        }
        claim = {"owner": "alice", "session": "", "time": rfc3339(self.now)}
        spec = {**old["spec"], "claim": claim}
        if lifetime:
            spec["lifetime"] = lifetime
        await self.given(SANDBOXES, {**old, "metadata": meta, "spec": spec})

    def named(self, kind: str) -> list[str]:
        """Return the names of all objects of a kind."""
        return sorted(k.name for k in self.api.objects if k.kind == kind)

    def sandbox(self, name: str = "box") -> Sandbox:
        return Sandbox.model_validate(self.api.objects[Key("Sandbox", SPACE, name)])

    def pool(self, name: str = "warm") -> SandboxPool:
        return SandboxPool.model_validate(self.api.objects[Key("SandboxPool", SPACE, name)])

    def policy(self, name: str) -> dict[str, Any]:
        return self.api.objects[Key("NetworkPolicy", SPACE, name)]

    def close_namespace(self) -> None:
        """Have the namespace looked at, as at every start."""
        self.queue.add(Key(NAMESPACE, SPACE, ""))
