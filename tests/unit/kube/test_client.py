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
from kubernetes.aio.config import ConfigException

from sandpod_kube import configuration as configuration_module
from sandpod_kube.client import KubeClient
from sandpod_kube.configuration import Configuration, load
from sandpod_kube.errors import (
    ConfigError,
    ConflictError,
    DeniedError,
    NotFoundError,
    OverloadedError,
    RefusedError,
    UnreachableError,
)
from sandpod_kube.resources import LEASES, PODS, SANDBOXES
from sandpod_operator.metrics import Metrics
from support.operator.world import sandbox_object

EXEC_API = "client.authentication.k8s.io/v1"
STATUS = {"kind": "Status", "reason": "Because", "message": "a sentence"}


class Peer:
    """An API server that answers each request with the next of `answers`."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, dict[str, str], str, Any]] = []
        self.answers: list[tuple[int, Any]] = []
        self.tokens: list[str] = []

    async def answer(self, request: web.Request) -> web.Response:
        text = await request.text()
        self.tokens.append(request.headers.get("Authorization", ""))
        kind = request.headers.get("Content-Type", "")
        self.asked.append((request.method, request.path, dict(request.query), kind, json.loads(text or "null")))
        status, body = self.answers.pop(0) if self.answers else (200, {})
        return web.Response(status=status, text=body if isinstance(body, str) else json.dumps(body))


def a_client(host: str, metrics: Metrics) -> KubeClient:
    configuration = Configuration(client.Configuration(host=host))
    return KubeClient(configuration, manager="sandpod-operator", timeout=5, on_write=metrics.count_write)


@pytest.fixture
def peer() -> Peer:
    return Peer()


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
async def cluster(peer: Peer, metrics: Metrics) -> AsyncIterator[KubeClient]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", peer.answer)
    async with TestServer(app) as server:
        made = a_client(str(server.make_url("")).rstrip("/"), metrics)
        yield made
        await made.close()


async def test_list_reads_page_by_page_with_the_selector(cluster: KubeClient, peer: Peer) -> None:
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


async def test_request_takes_no_thread(cluster: KubeClient, peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each would wait its turn on a busy machine, the Lease's too."""

    async def refused(*_: object) -> None:
        raise AssertionError("a thread was asked for")

    monkeypatch.setattr(asyncio, "to_thread", refused)
    await cluster.get(PODS, "boxes", "box")
    assert len(peer.asked) == 1


async def test_writes_say_who_wrote_and_how_to_merge(cluster: KubeClient, peer: Peer) -> None:
    box = sandbox_object()
    await cluster.create(SANDBOXES, box)
    await cluster.apply(SANDBOXES, box)
    await cluster.replace(SANDBOXES, box)
    await cluster.patch_status(SANDBOXES, "boxes", "box", {"phase": None})
    await cluster.resize("boxes", "box", "u", "sandbox", {"cpu": "1"})
    await cluster.delete(SANDBOXES, "boxes", "box", {"uid": "u"})
    spec = {"containers": [{"name": "sandbox", "resources": {"requests": {"cpu": "1"}}}]}
    pod = "/api/v1/namespaces/boxes/pods/box/resize"
    larger = {"metadata": {"uid": "u"}, "spec": spec}
    root = "/apis/sandpod.dev/v1alpha1/namespaces/boxes/sandboxes"
    manager = {"fieldManager": "sandpod-operator"}
    options: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
    options["preconditions"] = {"uid": "u"}
    assert peer.asked == [
        ("POST", root, manager, "application/json", box),
        ("PATCH", f"{root}/box", {**manager, "force": "true"}, "application/apply-patch+yaml", box),
        ("PUT", f"{root}/box", manager, "application/json", box),
        ("PATCH", f"{root}/box/status", manager, "application/merge-patch+json", {"status": {"phase": None}}),
        ("PATCH", pod, manager, "application/strategic-merge-patch+json", larger),
        ("DELETE", f"{root}/box", {}, "application/json", options),
    ]


@pytest.mark.parametrize(
    ("code", "error"),
    [(403, DeniedError), (404, NotFoundError), (409, ConflictError), (422, DeniedError), (400, RefusedError)],
)
async def test_answer_that_says_no_is_an_error_with_the_servers_words(
    cluster: KubeClient, peer: Peer, code: int, error: type[RefusedError]
) -> None:
    peer.answers = [(code, STATUS)]
    with pytest.raises(error) as caught:
        await cluster.get(SANDBOXES, "boxes", "box")
    assert (caught.value.status, caught.value.reason, caught.value.message) == (code, "Because", "a sentence")


@pytest.mark.parametrize("code", [429, 500, 503])
async def test_answer_that_says_later_is_an_error_of_its_own(cluster: KubeClient, peer: Peer, code: int) -> None:
    peer.answers = [(code, STATUS)]
    with pytest.raises(OverloadedError, match="a sentence"):
        await cluster.get(SANDBOXES, "boxes", "box")


async def test_admission_webhook_that_is_down_refuses(cluster: KubeClient, peer: Peer) -> None:
    peer.answers = [(500, {**STATUS, "message": 'failed calling webhook "w.example.com": down'})]
    with pytest.raises(DeniedError, match=r"w\.example\.com"):
        await cluster.get(SANDBOXES, "boxes", "box")


async def test_page_of_a_proxy_that_refuses_is_not_passed_on(cluster: KubeClient, peer: Peer) -> None:
    peer.answers = [(403, "<html>secret" + "x" * 9000)]
    with pytest.raises(DeniedError) as caught:
        await cluster.get(SANDBOXES, "boxes", "box")
    assert (str(caught.value), caught.value.message) == ("HTTP status 403", "")


async def test_message_of_a_refusal_is_bounded(cluster: KubeClient, peer: Peer) -> None:
    peer.answers = [(403, {"message": "x" * 9000})]
    with pytest.raises(DeniedError) as caught:
        await cluster.get(SANDBOXES, "boxes", "box")
    assert (len(str(caught.value)), len(caught.value.message)) == (500, 2048)


@pytest.mark.parametrize("page", ["<html>Log in</html>", "[]", '"box"', ""])
async def test_success_that_is_no_object_is_no_answer(cluster: KubeClient, peer: Peer, page: str) -> None:
    peer.answers = [(200, page)]
    with pytest.raises(UnreachableError):
        await cluster.get(SANDBOXES, "boxes", "box")


async def test_token_of_a_kubeconfigs_plugin_is_renewed(
    peer: Peer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(configuration_module, "TOKEN_INTERVAL", 0.01)
    plugin, token = tmp_path / "plugin", tmp_path / "token"
    credential = (
        '{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {"token": "%s"}}'
    )
    plugin.write_text(f"#!/bin/sh\nprintf '{credential}' \"$(cat {token})\"\n")
    plugin.chmod(0o755)
    token.write_text("first")
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", peer.answer)
    async with TestServer(app) as server, asyncio.timeout(60):
        client = KubeClient(
            await load(_kubeconfig(tmp_path, str(server.make_url("")), plugin)), manager="test", timeout=60
        )
        await client.get(PODS, "boxes", "box")
        assert peer.tokens == ["Bearer first"]
        token.write_text("second")
        while peer.tokens[-1] == "Bearer first":
            await client.get(PODS, "boxes", "box")
        await client.close()
    assert peer.tokens[-1] == "Bearer second"


async def test_token_that_can_t_be_read_is_no_answer(cluster: KubeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    async def read(_: object) -> None:
        raise ConfigException("Token file exists but empty.")

    cluster._configuration.settings.api_key["BearerToken"] = "bearer old"
    monkeypatch.setattr(cluster._configuration.settings, "refresh_api_key_hook", read)
    with pytest.raises(UnreachableError):
        await cluster.get(PODS, "boxes", "box")


def _kubeconfig(folder: Path, server: str, plugin: Path) -> Path:
    user = {
        "exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": str(plugin), "interactiveMode": "Never"}
    }
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "it", "cluster": {"server": server.rstrip("/")}}],
        "users": [{"name": "me", "user": user}],
        "contexts": [{"name": "it", "context": {"cluster": "it", "user": "me"}}],
        "current-context": "it",
    }
    file = folder / "kubeconfig"
    file.write_text(json.dumps(config))
    return file


async def test_writes_are_counted_by_verb_kind_and_result(cluster: KubeClient, peer: Peer, metrics: Metrics) -> None:
    peer.answers = [(201, {}), (409, STATUS)]
    await cluster.create(SANDBOXES, sandbox_object())
    with pytest.raises(ConflictError):
        await cluster.create(SANDBOXES, sandbox_object())
    for result in ("ok", "error"):
        labels = {"verb": "create", "kind": "Sandbox", "result": result}
        assert metrics.registry.get_sample_value("sandpod_operator_api_writes_total", labels) == 1


async def test_server_that_is_not_there_is_unreachable(metrics: Metrics) -> None:
    nowhere = a_client("http://127.0.0.1:1", metrics)
    with pytest.raises(UnreachableError, match=r"no answer from http://127\.0\.0\.1:1"):
        await nowhere.get(LEASES, "boxes", "x")
    await nowhere.close()


async def test_kubeconfig_that_is_missing_is_said_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(
        "kubernetes.aio.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "none"), raising=True
    )
    with pytest.raises(ConfigError, match="set KUBECONFIG"):
        await load()


async def test_token_is_given_to_kopf_without_its_scheme() -> None:
    configuration = client.Configuration(host="https://example.invalid")
    configuration.api_key["BearerToken"] = "bearer secret-token"
    cluster = KubeClient(Configuration(configuration), manager="test", timeout=5)
    credentials = await cluster.access()
    await cluster.close()
    assert (credentials.server, credentials.token, credentials.insecure) == (
        "https://example.invalid",
        "secret-token",
        False,
    )
