"""Secrets of sandboxes in a cluster: in one Secret that belongs to its Sandbox, found by every gateway."""

import asyncio
import base64
import copy
import json
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from sandpod_api import names
from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.auth.callers import owner_of
from sandpod_gateway.backends.base import ClaimRequest
from sandpod_gateway.backends.kubernetes.backend import KubernetesBackend
from sandpod_gateway.backends.kubernetes.settings import KubernetesSettings
from sandpod_gateway.errors import SandpodError, StartError
from sandpod_gateway.secrets.values import Reference, Secret
from support.gateway.kube_objects import body
from support.gateway.peers import until
from support.servers.kube_server import KubeServer, serve

VALUE: Final = "s3cr3t-value-0123456789"
GIVEN: Final = (Secret(name="TOKEN", value=VALUE, tools=frozenset({"start_run"})),)


@pytest.fixture
def kube() -> KubeServer:
    return KubeServer()


@pytest.fixture
async def backends(kube: KubeServer, tmp_path: Path) -> AsyncIterator[tuple[KubernetesBackend, KubernetesBackend]]:
    """Two gateways' backends."""
    async with serve(kube, tmp_path) as kubeconfig, AsyncExitStack() as stack:
        made = tuple(
            KubernetesBackend(KubernetesSettings(kubeconfig=kubeconfig, warm_streams=0, secrets=True)) for _ in range(2)
        )
        for backend in made:
            await backend.start()
            stack.push_async_callback(backend.close)
        yield made[0], made[1]


def refer(kube: KubeServer, *secrets: dict[str, Any]) -> None:
    kube.api.templates["default"] = {"spec": {"image": "x", "secrets": list(secrets)}}


def store(kube: KubeServer, name: str, users: str | None = None, **data: str) -> None:
    encoded = {key: base64.b64encode(value.encode()).decode() for key, value in data.items()}
    annotations = {} if users is None else {names.ANNOTATION_USERS: users}
    kube.secrets[name] = {"metadata": {"name": name, "annotations": annotations}, "data": encoded}


@pytest.mark.promise("secret-hidden", "secret-shared")
async def test_what_a_claim_brings_is_in_a_secret_of_its_sandbox_and_in_no_other_object(
    kube: KubeServer, backends: tuple[KubernetesBackend, KubernetesBackend], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    one, two = backends
    kube.show("ADDED", body("w"))
    await until(lambda: one.warm() == {("", "default"): 1})
    record = await one.claim(ClaimRequest(owner="alice", session="s", secrets=GIVEN))
    assert record.has_secrets
    [(name, secret)] = kube.secrets.items()
    assert secret["metadata"]["ownerReferences"] == [
        {"apiVersion": names.API_VERSION, "kind": "Sandbox", "name": "w", "uid": "uid-w"}
    ]
    assert (secret["type"], secret["immutable"]) == ("sandpod.dev/session", True)
    everything = json.dumps(kube.api.objects) + caplog.text + repr(record)
    assert VALUE not in everything
    assert base64.b64encode(VALUE.encode()).decode()[:12] not in everything
    await until(lambda: two._store.get("w") is not None)
    found = await two.get("w")
    assert found is not None
    assert found.has_secrets
    assert await two.secret_source().of_session("w") == GIVEN
    suspended = copy.deepcopy(kube.api.objects["w"])
    suspended["spec"]["operatingMode"] = "Suspended"
    kube.show("MODIFIED", suspended)
    await until(lambda: (known := two._store.get("w")) is not None and known.spec.operating_mode == "Suspended")
    assert await two.secret_source().of_session("w") == GIVEN
    del kube.secrets[name]
    with pytest.raises(SandpodError) as refused:
        await two.secret_source().of_session("w")
    assert refused.value.code == ErrorCode.BACKEND_UNAVAILABLE


async def test_claim_whose_secrets_can_not_be_kept_leaves_nothing(
    kube: KubeServer, backends: tuple[KubernetesBackend, KubernetesBackend], caplog: pytest.LogCaptureFixture
) -> None:
    kube.show("ADDED", body("w"))
    await until(lambda: backends[0].warm() == {("", "default"): 1})
    kube.broken["/secrets"] = 500
    with pytest.raises(SandpodError) as refused:
        await backends[0].claim(ClaimRequest(owner="alice", secrets=GIVEN))
    assert refused.value.code == ErrorCode.BACKEND_UNAVAILABLE
    await until(lambda: not kube.api.objects)
    assert VALUE not in caplog.text


async def test_claim_without_secrets_asks_nothing_of_them(
    kube: KubeServer, backends: tuple[KubernetesBackend, KubernetesBackend]
) -> None:
    kube.broken["/secrets"] = 500
    kube.show("ADDED", body("w"))
    await until(lambda: backends[0].warm() == {("", "default"): 1})
    refer(kube, {"name": "A", "secretKeyRef": {"name": "app", "key": "a"}})
    record = await backends[0].claim(ClaimRequest(owner="alice"))
    assert not record.has_secrets
    assert names.ANNOTATION_SECRETS not in kube.api.objects["w"]["metadata"]["annotations"]


async def test_references_of_a_template_lead_to_values_or_to_what_is_wrong(
    kube: KubeServer, backends: tuple[KubernetesBackend, KubernetesBackend], caplog: pytest.LogCaptureFixture
) -> None:
    source = backends[0].secret_source()
    store(kube, "app", a=VALUE + "\n", short="abc")
    refer(
        kube,
        {"name": "A", "secretKeyRef": {"name": "app", "key": "a"}, "languages": ["shell"]},
        {"name": "B", "secretKeyRef": {"name": "app", "key": "b"}},
        {"name": "C", "secretKeyRef": {"name": "none", "key": "c"}},
        {"name": "D", "secretKeyRef": {"name": "app", "key": "short"}},
    )
    found = {secret.name: secret for secret in await source.of_template("default") or ()}
    place = Reference("app", "a")
    assert found["A"] == Secret(name="A", value=VALUE, languages=frozenset({"shell"}), reference=place)
    assert [found[name].problem[:12] for name in "BCD"] == ["is not there", "is not there", "has fewer th"]
    assert "secret C of template default (Secret none, key c) is not there" in caplog.text
    assert VALUE not in caplog.text
    assert await source.of_template("gone") is None
    kube.broken["/secrets"] = 403
    with pytest.raises(SandpodError) as refused:
        await source.of_template("default")
    assert refused.value.code == ErrorCode.BACKEND_UNAVAILABLE


ALICE: Final = owner_of("", "alice")
REFERRING: Final = Secret(name="OTHER", reference=Reference("vault", "token"), tools=frozenset({"start_run"}))


@pytest.mark.promise("secret-referred")
@pytest.mark.parametrize(
    ("users", "owner"),
    [("alice", ALICE), ("bob, alice", owner_of("research", "alice")), ("*", owner_of("", "carol"))],
)
async def test_claim_refers_to_secrets_that_name_its_user(
    kube: KubeServer,
    backends: tuple[KubernetesBackend, KubernetesBackend],
    caplog: pytest.LogCaptureFixture,
    users: str,
    owner: str,
) -> None:
    caplog.set_level(logging.DEBUG)
    one, two = backends
    store(kube, "vault", users, token=VALUE)
    kube.show("ADDED", body("w"))
    await until(lambda: one.warm() == {("", "default"): 1})
    record = await one.claim(ClaimRequest(owner=owner, secrets=(*GIVEN, REFERRING)))
    assert (record.has_secrets, record.refers_to_secrets) == (True, True)
    [written] = kube.api.objects["w"]["spec"]["claim"]["secrets"]
    place = {"name": "vault", "key": "token"}
    assert written == {"name": "OTHER", "secretKeyRef": place, "tools": ["start_run"], "languages": []}
    assert VALUE not in json.dumps(kube.api.objects) + caplog.text + repr(record)
    await until(lambda: two._store.get("w") is not None)
    source = two.secret_source()
    assert await source.of_session("w") == GIVEN
    assert await source.of_claim("w") == (replace(REFERRING, value=VALUE),)
    store(kube, "vault", "bob", token=VALUE)  # taken back
    assert await source.of_claim("w") == (replace(REFERRING, problem="is not there"),)


@pytest.mark.promise("secret-referred")
@pytest.mark.parametrize("users", [None, "", "bob", "alice2", "user:alice", "al*", "alice, bob"])
async def test_claim_learns_nothing_of_a_secret_that_does_not_name_its_user(
    kube: KubeServer, backends: tuple[KubernetesBackend, KubernetesBackend], users: str | None
) -> None:
    store(kube, "vault", users, token=VALUE)
    kube.show("ADDED", body("w"))
    await until(lambda: backends[0].warm() == {("", "default"): 1})
    owner = owner_of("", "alice, bob") if users == "alice, bob" else ALICE  # a name is one, whatever is in it
    answers = set()
    for secret in ("vault", "vault-that-is-not-there"):
        wanted = replace(REFERRING, reference=Reference(secret, "token"))
        with pytest.raises(SandpodError) as refused:
            await backends[0].claim(ClaimRequest(owner=owner, secrets=(wanted,)))
        error = refused.value
        answers.add((error.code, error.message.replace(secret, "NAME"), error.next_step))
    assert [code for code, _, _ in answers] == [ErrorCode.NOT_FOUND]
    assert "claim" not in kube.api.objects["w"]["spec"]


async def test_server_without_secrets_needs_no_right_to_them_and_takes_none(kube: KubeServer, tmp_path: Path) -> None:
    kube.denied = {"get secrets", "create secrets"}
    refer(kube, {"name": "A", "secretKeyRef": {"name": "app", "key": "a"}})
    async with serve(kube, tmp_path) as kubeconfig:
        with pytest.raises(StartError, match="may not get secrets, create secrets"):
            await asyncio.wait_for(
                KubernetesBackend(KubernetesSettings(kubeconfig=kubeconfig, secrets=True)).start(), 60
            )
        backend = KubernetesBackend(KubernetesSettings(kubeconfig=kubeconfig))
        await backend.start()
        try:
            assert await backend.secret_source().of_template("default") == ()
            with pytest.raises(SandpodError, match="keeps no secrets"):
                await backend.claim(ClaimRequest(owner="alice", secrets=GIVEN))
            referring = Secret(name="A", reference=Reference("app", "a"))
            with pytest.raises(SandpodError, match="keeps no secrets"):
                await backend.claim(ClaimRequest(owner="alice", secrets=(referring,)))
            assert await backend.secret_source().of_claim("any") == ()
        finally:
            await backend.close()
    assert not kube.api.objects
