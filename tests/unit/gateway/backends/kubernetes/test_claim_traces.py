"""What a trace says of a claim of a pod: warm or cold, what it waited for, its stream; and the operator's mark."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sandpod_api import names
from sandpod_gateway.backends.base import ClaimRequest, SandboxRecord
from sandpod_gateway.backends.kubernetes.backend import KubernetesBackend
from sandpod_gateway.backends.kubernetes.cache.sandbox_cache import SandboxStore
from sandpod_gateway.backends.kubernetes.claims import readiness
from sandpod_gateway.backends.kubernetes.claims.claimer import Claimer
from sandpod_gateway.backends.kubernetes.claims.readiness import Background
from sandpod_gateway.backends.kubernetes.settings import KubernetesSettings
from sandpod_gateway.metrics import Metrics
from sandpod_gateway.sandboxes.admission import claim
from sandpod_gateway.usage.meter import Meter
from sandpod_gateway.usage.settings import QuotaSettings
from sandpod_telemetry import tracing
from sandpod_telemetry.traceparent import checked
from support.gateway.kube_objects import READY, MemoryApi, NoStreams, body, not_ready
from support.servers.kube_server import KubeServer, serve
from support.traces import Spans, recording


@pytest.fixture
def kube() -> KubeServer:
    return KubeServer()


@pytest.fixture
async def backend(kube: KubeServer, tmp_path: Path) -> AsyncIterator[KubernetesBackend]:
    async with serve(kube, tmp_path) as path:
        backend = KubernetesBackend(KubernetesSettings(kubeconfig=path, warm_streams=1))
        await backend.start()
        yield backend
        await backend.close()


@pytest.fixture
def spans() -> Iterator[Spans]:
    with recording() as seen:
        yield seen


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not true():  # noqa: ASYNC110 # what is waited for has no event of its own
            await asyncio.sleep(0.001)


async def claimed(backend: KubernetesBackend, session: str = "") -> SandboxRecord:
    request = ClaimRequest(owner="alice", session=session)
    return await claim(backend, Meter(QuotaSettings(), Metrics()), request)


async def test_a_warm_claim_marks_the_sandbox_and_takes_the_stream_that_is_open(
    kube: KubeServer, backend: KubernetesBackend, spans: Spans
) -> None:
    kube.show("ADDED", body("w"))
    await until(lambda: kube.execs != [] and backend._open.streams.names() == {"w"})
    await claimed(backend, "mine")
    with tracing.span("sandbox.stream"):
        await (await backend.open_stream("w")).close()
    await claimed(backend, "mine")
    first, again = spans.named("sandbox.claim")
    of = ("sandpod.claim.origin", "sandpod.sandbox", "sandpod.template", "k8s.namespace.name", "k8s.pod.name")
    assert first.of(*of) == ("warm", "w", "default", "tests", "w")
    assert again.of(*of) == ("held", "w", "default", "tests", "w")
    mark = kube.api.objects["w"]["metadata"]["annotations"][names.ANNOTATION_TRACEPARENT]
    assert checked(mark) == mark
    assert mark.startswith(f"00-{first.trace}-{first.id}-0")
    patch = spans.one("patch Sandbox")
    assert (patch.parent, patch.kind, patch.of("http.request.method")) == (first.id, "CLIENT", ("PATCH",))
    assert spans.one("sandbox.stream").attributes["sandpod.stream.warm"] is True


async def test_a_cold_claim_says_what_it_waited_for(spans: Spans, monkeypatch: pytest.MonkeyPatch) -> None:
    api, store, background = MemoryApi(), SandboxStore(), Background()
    looked: asyncio.Queue[None] = asyncio.Queue()
    monkeypatch.setattr(readiness, "LOOK_AGAIN", 0.001)

    async def touch(_: str) -> None:
        """Note that it was looked at once more."""
        looked.put_nowait(None)

    parts: Any = (api, store, KubernetesSettings(), background, touch, NoStreams())

    async def made() -> None:
        with tracing.span("sandbox.claim"):
            await Claimer(*parts).claim(ClaimRequest(owner="alice"))

    task = asyncio.create_task(made())
    await until(lambda: bool(store.owned("alice")))
    (name,) = api.objects
    store.take(api.set_conditions(name, not_ready("QuotaExceeded", "secret quota")))
    seen = looked.qsize() + 2  # one of these looks began after that
    await until(lambda: looked.qsize() >= seen)
    store.take(api.set_conditions(name, READY))
    await task
    await background.close()
    claiming, start = spans.one("sandbox.claim"), spans.one("sandbox.start")
    assert claiming.attributes["sandpod.claim.origin"] == "cold"
    assert (start.parent, start.attributes["sandpod.sandbox"]) == (claiming.id, name)
    assert start.attributes["sandpod.start.blocked_by"] == "quota_exceeded"
    assert not start.failed
    assert not any("secret quota" in each.text for each in spans.all())
    assert api.objects[name]["metadata"]["annotations"][names.ANNOTATION_TRACEPARENT].split("-")[2] == claiming.id


async def test_nothing_marks_a_sandbox_without_traces(kube: KubeServer, backend: KubernetesBackend) -> None:
    kube.show("ADDED", body("w"))
    await until(lambda: backend.warm() == {("", "default"): 1})
    await claimed(backend)
    assert names.ANNOTATION_TRACEPARENT not in kube.api.objects["w"]["metadata"]["annotations"]
