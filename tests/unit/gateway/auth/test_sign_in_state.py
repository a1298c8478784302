"""What gateways share of sign-ins: sealed, bound to its name and its end, and bounded."""

import base64
import time
from collections.abc import AsyncIterator
from pathlib import Path
from secrets import token_hex
from typing import Any

import pytest
from fastmcp.server.auth import TokenVerificationError

from sandpod_api.fields import DAY
from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.auth.links import MemoryStore, Stored
from sandpod_gateway.auth.oidc.places import MemoryPlaces
from sandpod_gateway.auth.oidc.shared_key import shared_key
from sandpod_gateway.auth.oidc.state import MAX_BEGUN, MAX_ENTRY, MAX_SECONDS, MAX_SIGNED_IN, SignInState
from sandpod_gateway.backends.kubernetes.backend import KubernetesBackend
from sandpod_gateway.backends.kubernetes.secrets import SIGN_IN_ENTRY
from sandpod_gateway.backends.kubernetes.settings import KubernetesSettings
from sandpod_gateway.errors import SandpodError
from support.clock import Clock
from support.servers.kube_server import KubeServer, serve

BEGUN = "mcp-oauth-transactions"
SIGNED_IN = "mcp-upstream-tokens"
KEY = bytes(32)


@pytest.fixture
def clock() -> Clock:
    return Clock(time.time())  # the library has a clock of its own


@pytest.fixture
def places() -> MemoryPlaces:
    return MemoryPlaces(count=1)


def state_of(places: Any, clock: Clock, key: bytes = KEY) -> SignInState:
    state = SignInState(places, clock)
    state.use(key)
    return state


def held(places: MemoryPlaces) -> dict[str, bytes]:
    return places._places.get(0, {})


@pytest.mark.promise("sign-in-shared")
async def test_another_gateway_reads_what_one_wrote_and_nobody_else_does(places: MemoryPlaces, clock: Clock) -> None:
    await state_of(places, clock).put("code-of-alice", {"access": "token-of-alice"}, collection=SIGNED_IN)
    assert await state_of(places, clock).get("code-of-alice", collection=SIGNED_IN) == {"access": "token-of-alice"}
    assert await state_of(places, clock).get("code-of-alice", collection=BEGUN) is None
    assert await state_of(places, clock, b"k" * 32).get("code-of-alice", collection=SIGNED_IN) is None
    [(name, content)] = held(places).items()
    assert "alice" not in name
    assert b"alice" not in content


@pytest.mark.promise("sign-in-shared")
async def test_entry_that_was_moved_or_given_more_time_is_worth_nothing(places: MemoryPlaces, clock: Clock) -> None:
    state = state_of(places, clock)
    await state.put("alice", {"access": "a"}, collection=SIGNED_IN, ttl=60)
    await state.put("mallory", {"access": "m"}, collection=SIGNED_IN, ttl=60)
    first, second = held(places)
    whole = held(places)[first]
    later = (int.from_bytes(whole[:4]) + 3600).to_bytes(4) + whole[4:]
    for spoilt in (held(places)[second], later, whole[:-1], whole[:8], b""):
        await places.change(0, {first: spoilt})
        assert await state.get("alice", collection=SIGNED_IN) is None
    await places.change(0, {first: whole})
    assert await state.get("alice", collection=SIGNED_IN) == {"access": "a"}


async def test_entries_end_and_are_removed_by_the_next_write(places: MemoryPlaces, clock: Clock) -> None:
    state = state_of(places, clock)
    await state.put("short", {}, collection=BEGUN, ttl=60)
    clock.now += 61
    await state.put("long", {}, collection=SIGNED_IN, ttl=10 * 365 * DAY)
    assert len(held(places)) == 1, "what ended is gone"
    assert await state.get("long", collection=SIGNED_IN) == {}
    clock.now += MAX_SECONDS
    assert await state.get("long", collection=SIGNED_IN) is None
    assert not await state.delete("short", collection=BEGUN)
    assert await state.delete("long", collection=SIGNED_IN)
    assert held(places) == {}


@pytest.mark.promise("sign-in-shared")
async def test_flood_of_begun_sign_ins_drops_the_oldest_of_them_and_nobody_who_signed_in(
    places: MemoryPlaces, clock: Clock
) -> None:
    state, large = state_of(places, clock), token_hex(6000)
    await state.put("alice", {}, collection=SIGNED_IN)
    for number in range(40):
        clock.now += 1
        await state.put(str(number), {"text": large}, collection=BEGUN, ttl=900)
    assert sum(map(len, held(places).values())) <= MAX_BEGUN
    assert await state.get("alice", collection=SIGNED_IN) == {}
    assert await state.get("0", collection=BEGUN) is None
    assert await state.get("39", collection=BEGUN) == {"text": large}


async def test_place_for_those_who_signed_in_is_bounded_too(places: MemoryPlaces, clock: Clock) -> None:
    state, large = state_of(places, clock), token_hex(30_000)
    for number in range(25):
        clock.now += 1
        await state.put(str(number), {"text": large}, collection=SIGNED_IN)
    assert sum(map(len, held(places).values())) <= MAX_SIGNED_IN
    assert await state.get("0", collection=SIGNED_IN) is None
    assert await state.get("24", collection=SIGNED_IN) == {"text": large}
    with pytest.raises(ValueError, match="too large"):
        await state.put("huge", {"text": token_hex(MAX_ENTRY)}, collection=SIGNED_IN)


async def test_key_is_made_once_and_shared() -> None:
    store = MemoryStore()
    assert await shared_key(store) == await shared_key(store)


async def test_what_is_no_key_is_not_replaced() -> None:
    store = MemoryStore(Stored(b"something else", "7"))
    with pytest.raises(SandpodError) as error:
        await shared_key(store)
    assert error.value.code is ErrorCode.BACKEND_ERROR
    assert await store.read() == Stored(b"something else", "7")


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[tuple[KubeServer, KubernetesBackend]]:
    kube = KubeServer()
    for name in ("links", "state-0", "state-1"):
        kube.secrets[name] = {"metadata": {"name": name, "resourceVersion": "1"}}
    async with serve(kube, tmp_path) as kubeconfig:
        settings = KubernetesSettings(
            kubeconfig=kubeconfig, link_secret="tests/links", sign_in_secrets=("tests/state-0", "tests/state-1")
        )
        backend = KubernetesBackend(settings)
        await backend.start()
        yield kube, backend
        await backend.close()


async def test_secrets_of_the_cluster_hold_key_and_state(
    cluster: tuple[KubeServer, KubernetesBackend], clock: Clock
) -> None:
    kube, backend = cluster
    store, places = backend.sign_in_key_store(), backend.sign_in_places()
    assert store is not None
    assert places is not None
    key = await shared_key(store)
    assert base64.b64decode(kube.secrets["links"]["data"][SIGN_IN_ENTRY]).decode() == key
    state = state_of(places, clock)
    for number in range(8):
        await state.put(str(number), {"number": number}, collection=SIGNED_IN)
    assert [await state.get(str(number), collection=SIGNED_IN) for number in range(8)] == [
        {"number": number} for number in range(8)
    ]
    assert all(kube.secrets[f"state-{place}"]["data"] for place in (0, 1)), "spread over both"
    for number in range(8):
        assert await state.delete(str(number), collection=SIGNED_IN)
    assert not any(kube.secrets[f"state-{place}"]["data"] for place in (0, 1))


@pytest.mark.parametrize("status", [403, 404, 500])
async def test_cluster_that_fails_makes_no_token_invalid(
    cluster: tuple[KubeServer, KubernetesBackend], clock: Clock, status: int
) -> None:
    kube, backend = cluster
    state = state_of(backend.sign_in_places(), clock)
    kube.broken["secrets"] = status
    with pytest.raises(TokenVerificationError):
        await state.get("alice", collection=SIGNED_IN)
