"""The secrets of links: made once for all gateways, replaced with age, in force for as long as the longest link."""

import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandpod_api.fields import DAY
from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.auth.callers import LOCAL, LOCAL_KEY_ID
from sandpod_gateway.auth.links import LEAD, ROTATE, Links, MemoryStore, SecretStore, Stored, renewed
from sandpod_gateway.backends.kubernetes.backend import KubernetesBackend
from sandpod_gateway.backends.kubernetes.secrets import LINKS_ENTRY
from sandpod_gateway.backends.kubernetes.settings import KubernetesSettings
from sandpod_gateway.errors import SandpodError
from support.clock import Clock
from support.servers.kube_server import KubeServer, serve

OWNERS = {LOCAL_KEY_ID: LOCAL.owner}


@pytest.fixture
def clock() -> Clock:
    return Clock(1_000_000.0)


async def gateway(store: SecretStore, clock: Clock) -> Links:
    links = Links(store, OWNERS.get, clock)
    await links.refresh()
    return links


def token_of(links: Links, seconds: int = DAY) -> str:
    return links.make(LOCAL, "get", "a", "b", seconds=seconds)[0].partition("?token=")[2]


def takes(links: Links, token: str) -> bool:
    return links.owner(token, "get", "a", "b") == LOCAL.owner


async def test_secret_is_random_and_nothing_but_random(clock: Clock) -> None:
    made = [renewed((), int(clock()))[0] for _ in range(100)]
    assert len({key.secret for key in made}) == len({key.id for key in made}) == 100
    assert {len(bytes.fromhex(key.secret)) for key in made} == {32}
    assert all(key.secret not in repr(key) for key in made)


async def test_no_representation_has_a_secret(clock: Clock) -> None:
    links = await gateway(MemoryStore(), clock)
    assert links.signing().secret not in repr(links)


async def test_gateways_of_one_store_take_each_others_links_from_the_start(clock: Clock) -> None:
    store = MemoryStore()
    first, second = await gateway(store, clock), await gateway(store, clock)
    assert takes(second, token_of(first))
    assert takes(first, token_of(second))


async def test_gateway_that_loses_the_race_to_fill_the_store_takes_what_is_there(clock: Clock) -> None:
    class Raced(MemoryStore):
        raced = False

        async def read(self) -> Stored | None:
            stored = await super().read()
            if not self.raced:
                self.raced = True
                await Links(self, OWNERS.get, clock).refresh()
            return stored

    store = Raced()
    loser, other = await gateway(store, clock), await gateway(store, clock)
    assert takes(other, token_of(loser))


async def test_rotation_ends_no_link_early_and_every_secret_at_last(clock: Clock) -> None:
    store = MemoryStore()
    rotating, late = await gateway(store, clock), await gateway(store, clock)
    clock.now += ROTATE - 1
    await rotating.refresh()
    first = rotating.signing()
    clock.now += 1
    await rotating.refresh()
    assert rotating.signing() == first  # the others do not know the new one yet
    assert takes(late, token_of(rotating))
    await late.refresh()
    clock.now += LEAD - 1
    last_of_first, too_long = token_of(rotating), token_of(rotating, seconds=2 * DAY)
    clock.now += 1
    second = rotating.signing()
    assert second.secret != first.secret
    assert takes(late, token_of(rotating))
    clock.now += DAY - 2
    assert takes(late, last_of_first)
    assert takes(rotating, last_of_first)
    assert takes(rotating, too_long)
    clock.now += 2
    # Out of force at once, and out of the store at the next look.
    assert not takes(rotating, too_long)
    assert not takes(late, too_long)
    await late.refresh()
    stored = await store.read()
    assert stored is not None
    assert [key["id"] for key in json.loads(stored.content)["keys"]] == [second.id]


async def test_store_has_two_secrets_at_most_however_long_it_lives(clock: Clock) -> None:
    store = MemoryStore()
    links = await gateway(store, clock)
    counts = set()
    for _ in range(200):
        clock.now += 3600 * 7
        await links.refresh()
        stored = await store.read()
        assert stored is not None
        counts.add(len(json.loads(stored.content)["keys"]))
    assert counts == {1, 2}


async def test_emptied_store_ends_all_links_at_every_gateway(clock: Clock) -> None:
    store = MemoryStore()
    first, second = await gateway(store, clock), await gateway(store, clock)
    token = token_of(first)
    stored = await store.read()
    assert stored is not None
    await store.replace(b"", stored.version)
    await first.refresh()
    await second.refresh()
    assert not takes(first, token)
    assert not takes(second, token)
    assert takes(second, token_of(first))


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"keys": [{"id": "00000000", "secret": "", "created": 0}]}'])
async def test_store_that_holds_something_else_is_not_overwritten_and_changes_nothing(
    clock: Clock, content: bytes
) -> None:
    store = MemoryStore()
    links = await gateway(store, clock)
    token = token_of(links)
    stored = await store.read()
    assert stored is not None
    await store.replace(content, stored.version)
    with pytest.raises(SandpodError) as error:
        await links.refresh()
    assert error.value.__cause__ is None
    assert takes(links, token)
    stored = await store.read()
    assert stored is not None
    assert stored.content == content


async def test_without_a_secret_there_are_no_links(clock: Clock) -> None:
    links = Links(MemoryStore(), OWNERS.get, clock)
    with pytest.raises(SandpodError) as error:
        links.make(LOCAL, "get", "a", "b", seconds=60)
    assert error.value.code == ErrorCode.BACKEND_UNAVAILABLE


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[tuple[KubeServer, KubernetesBackend]]:
    kube = KubeServer()
    kube.secrets["links"] = {"metadata": {"name": "links", "resourceVersion": "1"}}
    async with serve(kube, tmp_path) as kubeconfig:
        backend = KubernetesBackend(KubernetesSettings(kubeconfig=kubeconfig, link_secret="tests/links"))
        await backend.start()
        yield kube, backend
        await backend.close()


async def test_empty_secret_of_the_cluster_is_filled_once(
    cluster: tuple[KubeServer, KubernetesBackend], clock: Clock
) -> None:
    kube, backend = cluster
    store = backend.link_store()
    assert store is not None
    first, second = await gateway(store, clock), await gateway(store, clock)
    assert takes(second, token_of(first))
    assert kube.secrets["links"]["metadata"]["resourceVersion"] == "2"
    assert len(json.loads(base64.b64decode(kube.secrets["links"]["data"][LINKS_ENTRY]))["keys"]) == 1


async def test_secret_that_another_changed_meanwhile_is_not_written(
    cluster: tuple[KubeServer, KubernetesBackend],
) -> None:
    kube, backend = cluster
    store = backend.link_store()
    assert store is not None
    assert not await store.replace(b"{}", "0")
    assert "data" not in kube.secrets["links"]


async def test_links_stay_while_the_cluster_fails_and_end_when_the_secret_is_deleted(
    cluster: tuple[KubeServer, KubernetesBackend], clock: Clock
) -> None:
    kube, backend = cluster
    store = backend.link_store()
    assert store is not None
    links = await gateway(store, clock)
    token = token_of(links)
    for status in (403, 500):
        kube.broken["secrets"] = status
        with pytest.raises(SandpodError):
            await links.refresh()
        assert takes(links, token)
    kube.broken.clear()
    del kube.secrets["links"]
    with pytest.raises(SandpodError, match="no Secret"):
        await links.refresh()
    assert not takes(links, token)
