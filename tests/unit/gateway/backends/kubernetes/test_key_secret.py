"""API keys in a Secret are changed whole, and never over somebody else's change."""

import base64
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.auth.api_keys import KeyFile, make_key, parse_keys
from sandpod_gateway.backends.kubernetes.backend import KubernetesBackend
from sandpod_gateway.backends.kubernetes.secrets import MAX_TRIES, KeySecret
from sandpod_gateway.backends.kubernetes.settings import KubernetesSettings
from sandpod_gateway.errors import SandpodError, StartError
from support.servers.kube_server import KubeServer, serve


@pytest.fixture
def kube() -> KubeServer:
    return KubeServer()


@pytest.fixture
async def secret(kube: KubeServer, tmp_path: Path) -> AsyncIterator[KeySecret]:
    async with serve(kube, tmp_path) as kubeconfig:
        backend = KubernetesBackend(KubernetesSettings(kubeconfig=kubeconfig, warm_streams=0, keys_secret="tests/keys"))
        await backend.start()
        source = backend.key_source()
        assert source is not None
        yield source
        await backend.close()


def users(kube: KubeServer) -> list[str]:
    raw = base64.b64decode(kube.secrets["keys"]["data"]["keys.yaml"])
    return [entry.user for entry in parse_keys(raw, "it").keys]


def with_key(keys: KeyFile, user: str) -> KeyFile:
    _, entry = make_key(user=user, name="k", days=None, now=datetime.now(UTC))
    return KeyFile(keys=[*keys.keys, entry])


def put(kube: KubeServer, keys: KeyFile, version: int) -> None:
    data = {"keys.yaml": base64.b64encode(keys.dump()).decode()}
    kube.secrets["keys"] = {"metadata": {"name": "keys", "resourceVersion": str(version)}, "data": data}


async def test_a_change_is_made_anew_when_somebody_else_was_quicker(kube: KubeServer, secret: KeySecret) -> None:
    put(kube, with_key(KeyFile(), "ann"), 1)
    others = iter(["bob"])

    def change(keys: KeyFile) -> KeyFile:
        for user in others:
            put(kube, with_key(keys, user), 2)
        return with_key(keys, "carol")

    changed = await secret.change(change)
    assert users(kube) == [entry.user for entry in changed.keys] == ["ann", "bob", "carol"]


async def test_what_cannot_be_changed_stays_and_is_refused_with_a_code(kube: KubeServer, secret: KeySecret) -> None:
    with pytest.raises(SandpodError) as refused:
        await secret.change(lambda keys: with_key(keys, "ann"))
    assert isinstance(refused.value, StartError)  # which names the Secret: callers are not shown it
    assert refused.value.code == ErrorCode.NOT_FOUND
    put(kube, KeyFile(), 1)
    tries = []

    def late(keys: KeyFile) -> KeyFile:
        tries.append(keys)
        put(kube, KeyFile(), len(tries) + 1)
        return with_key(keys, "ann")

    with pytest.raises(SandpodError) as refused:
        await secret.change(late)
    assert (refused.value.code, len(tries)) == (ErrorCode.BACKEND_UNAVAILABLE, MAX_TRIES)
    kube.broken["secrets/keys"] = 403
    with pytest.raises(SandpodError) as refused:
        await secret.change(lambda keys: with_key(keys, "ann"))
    assert refused.value.code == ErrorCode.BACKEND_UNAVAILABLE
    assert users(kube) == []
