"""The one module that talks to the API server, against a server that records what it is asked and answers as told."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from kubernetes.aio import client

from operator_world import sandbox_object
from sandpod_kube.client import Cluster
from sandpod_kube.errors import ApiError, ConflictError, NotFoundError, RefusedError, UnreachableError
from sandpod_kube.resources import LEASES, PODS, SANDBOXES
from sandpod_operator.metrics import Metrics

STATUS = {"kind": "Status", "reason": "Because", "message": "a sentence"}


class Peer:
    """An API server that answers each request with the next of `answers`."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, dict[str, str], str, Any]] = []
        self.answers: list[tuple[int, Any]] = []

    async def answer(self, request: web.Request) -> web.Response:
        text = await request.text()
        kind = request.headers.get("Content-Type", "")
        self.asked.append((request.method, request.path, dict(request.query), kind, json.loads(text or "null")))
        status, body = self.answers.pop(0) if self.answers else (200, {})
        return web.Response(status=status, text=body if isinstance(body, str) else json.dumps(body))


@pytest.fixture
def peer() -> Peer:
    return Peer()


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
async def cluster(peer: Peer, metrics: Metrics) -> AsyncIterator[Cluster]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", peer.answer)
    async with TestServer(app) as server:
        made = Cluster(client.Configuration(host=str(server.make_url("")).rstrip("/")), metrics.count_write, patience=5)
        yield made
        await made.close()


async def test_list_reads_page_by_page_with_the_selector(cluster: Cluster, peer: Peer) -> None:
    peer.answers = [
        (200, {"items": [{"metadata": {"name": "a"}}], "metadata": {"continue": "more"}}),
        (200, {"items": [{"metadata": {"name": "b"}}], "metadata": {}}),
    ]
    found = [item async for item in cluster.pages(PODS, "boxes")]
    assert [(item["kind"], item["metadata"]["name"]) for item in found] == [("Pod", "a"), ("Pod", "b")]
    selector = "app.kubernetes.io/managed-by=sandpod,sandpod.dev/sandbox"
    assert [asked[:3] for asked in peer.asked] == [
        ("GET", "/api/v1/namespaces/boxes/pods", {"limit": "500", "labelSelector": selector}),
        ("GET", "/api/v1/namespaces/boxes/pods", {"limit": "500", "labelSelector": selector, "continue": "more"}),
    ]


async def test_request_takes_no_thread(cluster: Cluster, peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each would wait its turn on a busy machine, the Lease's too."""

    async def refused(*_: object) -> None:
        raise AssertionError("a thread was asked for")

    monkeypatch.setattr(asyncio, "to_thread", refused)
    await cluster.get(PODS, "boxes", "box")
    assert len(peer.asked) == 1


async def test_writes_say_who_wrote_and_how_to_merge(cluster: Cluster, peer: Peer) -> None:
    box = sandbox_object()
    await cluster.create(SANDBOXES, box)
    await cluster.apply(SANDBOXES, box)
    await cluster.replace(SANDBOXES, box)
    await cluster.patch_status(SANDBOXES, "boxes", "box", {"phase": None})
    await cluster.delete(SANDBOXES, "boxes", "box", {"uid": "u"})
    root = "/apis/sandpod.dev/v1alpha1/namespaces/boxes/sandboxes"
    manager = {"fieldManager": "sandpod-operator"}
    options = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": "u"}}
    assert peer.asked == [
        ("POST", root, manager, "application/json", box),
        ("PATCH", f"{root}/box", {**manager, "force": "true"}, "application/apply-patch+yaml", box),
        ("PUT", f"{root}/box", manager, "application/json", box),
        ("PATCH", f"{root}/box/status", manager, "application/merge-patch+json", {"status": {"phase": None}}),
        ("DELETE", f"{root}/box", {}, "application/json", options),
    ]


@pytest.mark.parametrize(
    ("code", "error"),
    [(403, RefusedError), (404, NotFoundError), (409, ConflictError), (422, RefusedError), (400, ApiError)],
)
async def test_answer_that_says_no_is_an_error_with_the_servers_words(
    cluster: Cluster, peer: Peer, code: int, error: type[ApiError]
) -> None:
    peer.answers = [(code, STATUS)]
    with pytest.raises(error) as caught:
        await cluster.get(SANDBOXES, "boxes", "box")
    assert (caught.value.status, caught.value.reason, caught.value.message) == (code, "Because", "a sentence")


@pytest.mark.parametrize("code", [429, 500, 503])
async def test_answer_that_says_later_is_no_refusal(cluster: Cluster, peer: Peer, code: int) -> None:
    peer.answers = [(code, STATUS)]
    with pytest.raises(UnreachableError, match="a sentence"):
        await cluster.get(SANDBOXES, "boxes", "box")


async def test_answer_that_is_no_json_is_cut_and_told(cluster: Cluster, peer: Peer) -> None:
    peer.answers = [(403, "<html>" + "x" * 9000)]
    with pytest.raises(RefusedError) as caught:
        await cluster.get(SANDBOXES, "boxes", "box")
    assert len(caught.value.message) == 2048


async def test_writes_are_counted_by_verb_kind_and_result(cluster: Cluster, peer: Peer, metrics: Metrics) -> None:
    peer.answers = [(201, {}), (409, STATUS)]
    await cluster.create(SANDBOXES, sandbox_object())
    with pytest.raises(ConflictError):
        await cluster.create(SANDBOXES, sandbox_object())
    for result in ("ok", "error"):
        labels = {"verb": "create", "kind": "Sandbox", "result": result}
        assert metrics.registry.get_sample_value("sandpod_operator_api_writes_total", labels) == 1


async def test_server_that_is_not_there_is_unreachable(metrics: Metrics) -> None:
    nowhere = Cluster(client.Configuration(host="http://127.0.0.1:1"), metrics.count_write, patience=5)
    with pytest.raises(UnreachableError, match=r"no answer from http://127\.0\.0\.1:1"):
        await nowhere.get(LEASES, "boxes", "x")
    await nowhere.close()


async def test_kubeconfig_that_is_missing_is_said_with_what_to_do(
    metrics: Metrics, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setattr(
        "kubernetes.aio.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "none"), raising=True
    )
    with pytest.raises(UnreachableError, match="set KUBECONFIG"):
        await Cluster.connect(metrics.count_write, patience=5)


async def test_token_is_given_to_kopf_without_its_scheme(metrics: Metrics) -> None:
    configuration = client.Configuration(host="https://example.invalid")
    configuration.api_key["BearerToken"] = "bearer secret-token"
    cluster = Cluster(configuration, metrics.count_write, patience=5)
    credentials = await cluster.credentials()
    await cluster.close()
    assert (credentials.server, credentials.token, credentials.insecure) == (
        "https://example.invalid",
        "secret-token",
        False,
    )
