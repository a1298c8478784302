"""What is given with a claim is kept once that is ours, beside all it waits for, and nothing is left where it fails."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.backends.kubernetes.claims import claimer
from sandpod_gateway.errors import SandpodError
from sandpod_kube.errors import UnreachableError
from support.gateway.claiming import LIMIT, Place, quick_place
from support.gateway.kube_objects import READY, body, held_by


@pytest.fixture
async def place(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Place]:
    async with quick_place(monkeypatch) as place:
        yield place


async def turns() -> None:
    """Let other tasks do what they can without waiting."""
    for _ in range(50):
        await asyncio.sleep(0)


async def test_secrets_are_written_once_and_no_claim_is_answered_before_they_are_there(place: Place) -> None:
    place.warm("w")
    place.api.answer_after["secret"] = asyncio.Event()
    claiming = place.claim_with_secret()
    await place.until_asked("secret")
    await turns()
    assert not claiming.done()
    place.api.answer_after["secret"].set()
    assert (await asyncio.wait_for(claiming, LIMIT)).metadata.name == "w"
    assert place.api.requests == ["patch", "secret"]
    [secret] = place.api.secrets.values()
    assert secret["metadata"]["ownerReferences"][0]["uid"] == place.api.objects["w"]["metadata"]["uid"]


async def test_secrets_are_written_while_a_claim_waits_for_its_sandbox_or_for_others_of_its_session(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    cold = place.claim_with_secret()
    name = await place.starting()
    await place.until_asked("secret")
    await turns()
    assert place.api.secrets
    assert not cold.done()
    place.see(place.api.set_conditions(name, READY))
    await asyncio.wait_for(cold, LIMIT)
    place.api.requests.clear()

    monkeypatch.setattr(claimer, "WATCH_LAG", LIMIT)
    place.warm("w")
    named = place.claim_with_secret("one")
    await place.until_asked("secret")
    await turns()
    assert len(place.api.secrets) == 2
    assert not named.done()
    place.watch_catches_up()
    assert (await asyncio.wait_for(named, LIMIT)).metadata.name == "w"


async def test_claim_that_loses_its_race_writes_no_secret_beneath_anothers_sandbox(place: Place) -> None:
    place.warm("a")
    place.api.put(body("a", claim=held_by("bob")))
    claiming = place.claim_with_secret()
    name = await place.starting()
    place.see(place.api.set_conditions(name, READY))
    assert (await asyncio.wait_for(claiming, LIMIT)).metadata.name == name
    assert place.api.requests == ["lost", "get", "create", "secret"]
    [secret] = place.api.secrets.values()
    assert secret["metadata"]["ownerReferences"][0]["name"] == name


async def test_claim_whose_secret_can_not_be_kept_fails_at_once_though_its_sandbox_starts_and_leaves_nothing(
    place: Place,
) -> None:
    place.api.failures["secret"] = UnreachableError("no answer")
    claiming = place.claim_with_secret()
    with pytest.raises(SandpodError) as refused:
        await asyncio.wait_for(claiming, LIMIT)
    assert refused.value.code == ErrorCode.BACKEND_UNAVAILABLE
    assert place.api.objects == {}


async def test_sandbox_that_is_given_up_is_deleted_after_its_secret_was_written(place: Place) -> None:
    place.api.answer_after["secret"] = asyncio.Event()
    place.warm("w")
    place.api.put(body("theirs", claim=held_by("alice", "one", "2020-01-01T00:00:00Z")))
    assert (await asyncio.wait_for(place.claim_with_secret("one"), LIMIT)).metadata.name == "theirs"
    cold = place.claim_with_secret()
    await place.starting()
    cold.cancel()
    await turns()
    assert "delete" not in place.api.requests
    place.api.answer_after["secret"].set()
    await asyncio.gather(cold, return_exceptions=True)
    await place.background.close()
    assert cold.cancelled()
    assert set(place.api.objects) == {"theirs"}
    assert place.api.requests.index("secret") < place.api.requests.index("delete")
