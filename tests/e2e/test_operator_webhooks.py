"""Admission webhooks of others, which may be down, slow, or put a container of theirs into a sandbox's pod."""

import asyncio
import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any, Final

import pytest

from support.chart.render import render
from support.cluster.callers import Caller
from support.cluster.cluster import Cluster, until
from support.cluster.server import serving
from support.operator.process import IMAGE, Objects, OperatorProcess, namespace, run, running
from support.servers.admission_webhook import Pod, configured, injecting, webhook, webhook_name

LOCKED_DOWN: Final = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "runAsUser": 1337,
    "seccompProfile": {"type": "RuntimeDefault"},
}
MEMORY_BOMB: Final = "held = [bytearray(2**26) for _ in range(1000)]"


@pytest.fixture(scope="module")
def guarded(cluster: Cluster) -> Iterator[Objects]:
    """A namespace under the chart's admission policy."""
    assert cluster.namespace
    with namespace("guarded") as own, policy(own.sandboxes):
        yield Objects(cluster=own)


@pytest.fixture(scope="module", autouse=True)
def operator(objects: Objects, guarded: Objects, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperatorProcess]:
    log = tmp_path_factory.mktemp("operator") / "log"
    with running(log, objects.namespace, guarded.namespace) as made:
        for each in (objects, guarded):
            asyncio.run(each.template())
        yield made


@contextmanager
def policy(name: str) -> Iterator[None]:
    """Bind the chart's admission policy to a namespace, under that name."""
    found = [made for made in render(f"sandboxes.namespace={name}") if "AdmissionPolicy" in made["kind"]]
    for made in found:
        # Without the labels by which others find the release's own.
        made["metadata"] = {"name": name}
        if "policyName" in made["spec"]:
            made["spec"]["policyName"] = name
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": found})
    run("apply", "-f", "-", stdin=text)
    try:
        yield
    finally:
        run("delete", "-f", "-", stdin=text)


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
        command = ["kubectl", "create", "-n", objects.namespace, "-f", "-", "--dry-run=server", "-o", "json"]
        done = subprocess.run(command, input=json.dumps(pod), capture_output=True, text=True, check=False, timeout=60)
        return Tried(json.loads(done.stdout or "{}"), done.stderr)

    async def tried() -> bool:
        return look(await asyncio.to_thread(attempt))

    await until("the webhook or the policy is in force", tried, within=60)


async def proxy(objects: Objects, **fields: Any) -> dict[str, Any]:
    """Return a container as a mesh injects it."""
    return {"name": "proxy", "image": await objects.pause_image(), "securityContext": LOCKED_DOWN, **fields}


async def test_webhook_that_is_down_is_reported_by_its_name_and_the_pod_created_once_it_is_gone(
    objects: Objects,
) -> None:
    name = webhook_name(objects.namespace)
    with configured(objects.namespace, {"service": {"name": "nosuch", "namespace": "default"}}):
        await in_force(objects, lambda tried: name in tried.refused)
        await objects.sandbox("hooked")
        assert name in await objects.reason("hooked", "AdmissionRefused")
    await objects.phase("hooked", "Ready")


async def test_webhook_that_takes_too_long_is_reported_by_its_name(objects: Objects, tmp_path: Path) -> None:
    name, answered = webhook_name(objects.namespace), Event()

    def changes(_: Pod) -> list[dict[str, Any]]:
        answered.wait(60)
        return []

    try:
        with webhook(objects.namespace, changes, tmp_path, timeoutSeconds=1):
            await in_force(objects, lambda tried: name in tried.refused)
            await objects.sandbox("overdue")
            message = await objects.reason("overdue", "AdmissionRefused")
            assert name in message
            assert "deadline exceeded" in message
    finally:
        answered.set()
    await objects.phase("overdue", "Ready")


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
            await objects.sandbox("slow")
            await objects.sandbox("given-up")

            async def both() -> bool:
                return {"slow", "given-up"} <= set(asked)

            await until("the webhook is asked about both", both, within=60)
            await objects.sandbox("meanwhile", templateRef={"name": "missing"})
            await objects.reason("meanwhile", "TemplateNotFound")
            await objects.cluster.kubectl("delete", "sbx", "given-up", "-n", objects.namespace)
            assert operator.get("/readyz") == "active\n"
            answered.set()
            await objects.phase("slow", "Ready")
            await objects.gone("pods", "given-up")
    finally:
        answered.set()
    assert sorted(set(asked)) == ["given-up", "plain", "slow"]
    assert (asked.count("slow"), asked.count("given-up")) == (1, 1)


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("runs", {}),
        ("ends", {"image": IMAGE, "command": ["sh", "-c", "trap exit TERM; sleep 3600 & wait"]}),
        ("never-starts", {"command": ["/nosuch"]}),
    ],
)
async def test_injected_container_changes_nothing_where_no_policy_refuses_it(
    objects: Objects, tmp_path: Path, name: str, fields: dict[str, Any]
) -> None:
    # The template that a gateway takes by default.
    await objects.template("default")
    flags = ["--backend", "kubernetes", "--kubernetes.namespace", objects.namespace]
    inject, before = injecting(await proxy(objects, **fields)), await objects.cluster.made()
    with webhook(objects.namespace, inject, tmp_path):
        await in_force(objects, lambda tried: "proxy" in tried.containers)
        async with serving(*flags) as (url, _), Caller(url, None).connect() as session:
            handle = await session.create()
            [pod] = await objects.cluster.made() - before
            assert containers(await objects.cluster.pod_of(pod)) == ["proxy", "sandbox"]
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
    patch = json.dumps({"spec": {"lifetime": {"ttl": 3600}}})
    await objects.cluster.kubectl("patch", "sbx", pod, "-n", objects.namespace, "--type=merge", "-p", patch)
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
        await guarded.sandbox("injected")
        message = await guarded.reason("injected", "AdmissionRefused")
        assert "The pod has a container that is none of a sandbox's: keep what adds it" in message
    await guarded.phase("injected", "Ready")


async def test_sandbox_in_a_namespace_labelled_for_istio_gets_no_proxy(objects: Objects, tmp_path: Path) -> None:
    added = await proxy(objects)
    # As Istio selects: by a label of the namespace, unless one of the pod declines.
    declines = {"key": "sidecar.istio.io/inject", "operator": "NotIn", "values": ["false"]}
    chosen = {"namespaceSelector": {"istio-injection": "enabled"}, "objectSelector": {"matchExpressions": [declines]}}
    with webhook(objects.namespace, injecting(added), tmp_path, **chosen):
        run("label", "namespace", objects.namespace, "istio-injection=enabled")
        try:
            await in_force(objects, lambda tried: "proxy" in tried.containers)
            await objects.sandbox("meshed")
            await objects.phase("meshed", "Ready")
        finally:
            run("label", "namespace", objects.namespace, "istio-injection-")
    assert containers(await objects.cluster.pod_of("meshed")) == ["sandbox"]
