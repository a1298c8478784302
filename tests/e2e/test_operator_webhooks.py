"""Admission webhooks of others, which may be down, slow, or put a container of theirs into a sandbox's pod."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any, Final

import pytest

from support.chart.render import render
from support.cluster import writing
from support.cluster.callers import Caller, Session
from support.cluster.cluster import until
from support.cluster.reading import RefusedError, call, path_of
from support.cluster.server import serving
from support.operator.process import IMAGE, Managed, Objects, OperatorProcess
from support.servers.admission_webhook import Pod, configured, injecting, webhook, webhook_name

LOCKED_DOWN: Final = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "runAsUser": 1337,
    "seccompProfile": {"type": "RuntimeDefault"},
}
MEMORY_BOMB: Final = "held = [bytearray(2**26) for _ in range(1000)]"


PARKED: Final = {"name": "parked"}  # admission is over once there is a pod


@pytest.fixture(scope="module")
def objects(managed_namespaces: Managed) -> Objects:
    own = managed_namespaces.namespaces["webhooks"]
    asyncio.run(own.parked())
    return own


@pytest.fixture(scope="module")
def guarded(managed_namespaces: Managed) -> Iterator[Objects]:
    """A namespace under the chart's admission policy."""
    own = managed_namespaces.namespaces["guarded"]
    asyncio.run(own.parked())
    with policy(own.namespace):
        yield own


@pytest.fixture(scope="module")
def operator(managed_namespaces: Managed) -> OperatorProcess:
    return managed_namespaces.operator


@contextmanager
def policy(name: str) -> Iterator[None]:
    """Bind the chart's admission policy to a namespace, under that name."""
    rendered = render(f"sandboxes.namespace={name}")
    found = [made for made in rendered if made["metadata"]["name"] == "sandboxes.sandpod.sandpod"]
    for made in found:
        # Without the labels by which others find the release's own.
        made["metadata"] = {"name": name}
        if "policyName" in made["spec"]:
            made["spec"]["policyName"] = name
    for made in found:
        writing.apply(made)
    try:
        yield
    finally:
        for made in found:
            writing.remove(made)


@dataclass(frozen=True)
class Tried:
    """What came of a pod that was sent as a dry run: as the API server would make it, or its sentence."""

    pod: Pod
    refused: str

    @property
    def containers(self) -> list[str]:
        return containers(self.pod) if self.pod else []


def containers(pod: Pod) -> list[str]:
    """Return the names of a pod's containers, in order."""
    return [container["name"] for container in pod["spec"]["containers"]]


async def in_force(objects: Objects, look: Callable[[Tried], bool]) -> None:
    """Wait until a pod that asks for nothing meets what the test has put in its way: each API server learns in time."""
    plain = {"name": "plain", "image": "x", "securityContext": LOCKED_DOWN}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "plain"}, "spec": {"containers": [plain]}}

    def attempt() -> Tried:
        try:
            return Tried(call("POST", f"{path_of('pods', objects.namespace)}?dryRun=All", pod), "")
        except RefusedError as error:
            return Tried({}, str(error))

    async def tried() -> bool:
        return look(await asyncio.to_thread(attempt))

    await until("the webhook or the policy is in force", tried, within=60)


async def proxy(objects: Objects, **fields: Any) -> dict[str, Any]:
    """Return a container as a mesh injects it."""
    return {"name": "proxy", "image": await objects.pause_image(), "securityContext": LOCKED_DOWN, **fields}


async def test_webhook_that_is_down_is_told_by_its_name_and_pods_and_pools_are_made_once_it_is_gone(
    objects: Objects,
) -> None:
    name = webhook_name(objects.namespace)
    flags = ["--backend", "kubernetes", "--kubernetes.namespace", objects.namespace]
    async with serving(*flags) as (url, _), Caller(url, None).connect() as session:
        with configured(objects.namespace, {"service": {"name": "nosuch", "namespace": "default"}}):
            await in_force(objects, lambda tried: name in tried.refused)
            await objects.sandbox("hooked", templateRef=PARKED)
            assert name in await objects.reason("hooked", "AdmissionRefused")
            await objects.apply("SandboxPool", "filled", templateRef={"name": "python"}, replicas=1)
            reply = await session.call("create_sandbox", template="python")
            assert (reply.error, name in reply["cause"]) == ("backend_error", True), reply
            assert await objects.cluster.made() == {"hooked"}

            async def told() -> bool:
                return name in (await objects.condition("filled", "Progressing"))["message"]

            await until("the pool says so too", told, within=60)
    await objects.has_pod("hooked")
    await objects.pool_has("filled", 1)
    await objects.delete("sandboxpools", "filled")


async def test_webhook_that_takes_too_long_is_reported_by_its_name(objects: Objects, tmp_path: Path) -> None:
    name, answered = webhook_name(objects.namespace), Event()

    def changes(_: Pod) -> list[dict[str, Any]]:
        answered.wait(60)
        return []

    try:
        with webhook(objects.namespace, changes, tmp_path, timeoutSeconds=1):
            await in_force(objects, lambda tried: name in tried.refused)
            await objects.sandbox("overdue", templateRef=PARKED)
            message = await objects.reason("overdue", "AdmissionRefused")
            assert name in message
            assert "deadline exceeded" in message
    finally:
        answered.set()
    await objects.has_pod("overdue")


async def test_slow_webhook_delays_its_pods_and_nothing_else(
    objects: Objects, operator: OperatorProcess, tmp_path: Path
) -> None:
    asked: list[str] = []
    answered = Event()

    def changes(pod: Pod) -> list[dict[str, Any]]:
        asked.append(pod["metadata"]["name"])
        if asked[-1] != "plain":
            answered.wait(30)
        return []

    try:
        with webhook(objects.namespace, changes, tmp_path, timeoutSeconds=30):
            await in_force(objects, lambda _: "plain" in asked)
            await objects.sandbox("slow", templateRef=PARKED)
            await objects.sandbox("given-up", templateRef=PARKED)

            async def both() -> bool:
                return {"slow", "given-up"} <= set(asked)

            await until("the webhook is asked about both", both, within=60)
            await objects.sandbox("meanwhile", templateRef={"name": "missing"})
            await objects.reason("meanwhile", "TemplateNotFound")
            await objects.delete("sandboxes", "given-up")
            assert operator.get("/readyz") == "active\n"
            answered.set()
            await objects.has_pod("slow")
            await objects.gone("pods", "given-up")
    finally:
        answered.set()
    assert sorted(set(asked)) == ["given-up", "plain", "slow"]
    assert (asked.count("slow"), asked.count("given-up")) == (1, 1)


# A container that somebody injects, by what becomes of it.
INJECTED: Final[dict[str, dict[str, Any]]] = {
    "runs": {},
    "ends": {"image": IMAGE, "command": ["sh", "-c", "trap exit TERM; sleep 3600 & wait"]},
    "never-starts": {"command": ["/nosuch"]},
}


async def test_injected_container_changes_nothing_where_no_policy_refuses_it(objects: Objects, tmp_path: Path) -> None:
    # The template that a gateway takes by default.
    await objects.template("default")
    flags = ["--backend", "kubernetes", "--kubernetes.namespace", objects.namespace]
    proxies = {name: await proxy(objects, **fields) for name, fields in INJECTED.items()}
    chosen = ""

    def changes(pod: Pod) -> list[dict[str, Any]]:
        return injecting(proxies[chosen])(pod) if chosen else []

    pods: dict[str, tuple[str, str]] = {}
    async with serving(*flags) as (url, _), Caller(url, None).connect() as session:
        with webhook(objects.namespace, changes, tmp_path):
            for chosen in proxies:
                before = await objects.cluster.made()
                await in_force(objects, lambda tried: "proxy" in tried.containers)
                handle = await session.create()
                [pod] = await objects.cluster.made() - before
                assert containers(await objects.cluster.pod_of(pod)) == ["proxy", "sandbox"]
                pods[chosen] = (handle, pod)
        await asyncio.gather(*(works(objects, session, name, *made) for name, made in pods.items()))


async def works(objects: Objects, session: Session, name: str, handle: str, pod: str) -> None:
    """Runs work whatever becomes of the injected container, and whatever they do to the sandbox's memory."""
    assert (await session.python("print(6 * 7)", sandbox=handle))["stdout"] == "42\n"
    if name == "ends":
        end = ("exec", pod, "-c", "proxy", "-n", objects.namespace, "--", "sh", "-c", "kill 1")
        await objects.cluster.kubectl(*end, check=False)  # it may end with the container that it ends
    if name != "runs":
        await observed_without_proxy(objects, pod)
    bomb = await session.python(MEMORY_BOMB, sandbox=handle, timeout=60)
    assert (bomb.data.get("outcome"), bomb.error) == ("out_of_memory", None), bomb
    assert (await objects.status(pod))["phase"] == "Ready"
    await session.close(handle)


async def observed_without_proxy(objects: Objects, pod: str) -> None:
    """Wait until the operator has seen that the proxy does not run, by a change that comes after it."""

    async def unready() -> bool:
        status = (await objects.cluster.get("pods", pod))["status"]
        return any(c["type"] == "Ready" and "[proxy]" in c.get("message", "") for c in status["conditions"])

    await until("the pod is not ready", unready, within=60)
    await objects.patch("sandboxes", pod, {"spec": {"lifetime": {"ttl": 3600}}})
    generation = (await objects.cluster.sandbox(pod))["metadata"]["generation"]

    async def observed() -> bool:
        return bool((await objects.status(pod)).get("observedGeneration") == generation)

    await until("the operator has seen the change", observed, within=60)


async def test_injected_container_is_refused_by_the_policy_as_not_the_operators(
    guarded: Objects, tmp_path: Path
) -> None:
    asked: list[Pod] = []
    # Istio's names a port, which another rule refuses.
    inject = injecting(await proxy(guarded, ports=[{"containerPort": 15090}]))

    def changes(pod: Pod) -> list[dict[str, Any]]:
        asked.append(pod)
        return inject(pod)

    await in_force(guarded, lambda tried: "ValidatingAdmissionPolicy" in tried.refused)
    with webhook(guarded.namespace, changes, tmp_path):
        await in_force(guarded, lambda _: bool(asked))
        await guarded.sandbox("injected", templateRef=PARKED)
        message = await guarded.reason("injected", "AdmissionRefused")
        assert "The pod has a container that is none of a sandbox's: keep what adds it" in message
    await guarded.has_pod("injected")


async def test_sandbox_in_a_namespace_labelled_for_istio_gets_no_proxy(objects: Objects, tmp_path: Path) -> None:
    added = await proxy(objects)
    # As Istio selects: by a label of the namespace, unless one of the pod declines.
    declines = {"key": "sidecar.istio.io/inject", "operator": "NotIn", "values": ["false"]}
    chosen = {"namespaceSelector": {"istio-injection": "enabled"}, "objectSelector": {"matchExpressions": [declines]}}
    with webhook(objects.namespace, injecting(added), tmp_path, **chosen):
        label_namespace(objects, "enabled")
        try:
            await in_force(objects, lambda tried: "proxy" in tried.containers)
            await objects.sandbox("meshed", templateRef=PARKED)
            await objects.has_pod("meshed")
        finally:
            label_namespace(objects, None)
    assert containers(await objects.cluster.get("pods", "meshed")) == ["sandbox"]


def label_namespace(objects: Objects, injection: str | None) -> None:
    """Set Istio's label of the namespace, or remove it."""
    change = {"metadata": {"labels": {"istio-injection": injection}}}
    call("PATCH", f"/api/v1/namespaces/{objects.namespace}", change, content_type="application/merge-patch+json")
