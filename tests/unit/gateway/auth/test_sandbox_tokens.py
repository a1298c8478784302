"""Tokens for one sandbox: whom they stand for, where, and until when."""

import base64
import json
from typing import Any

import pytest
import pytest_asyncio

from sandpod_gateway.auth.callers import LOCAL, TOKEN_KEY_ID, Caller
from sandpod_gateway.auth.links import Links, MemoryStore
from sandpod_gateway.auth.sandbox_tokens import LEAST, MAX_SECONDS, STEP_SECONDS, SandboxTokens

ALICE = Caller("user:alice", b"a" * 8, key="laptop")
BOB = Caller("user:bob", b"b" * 8)
SIGNED_IN = Caller("tenant:blue:user:carol", TOKEN_KEY_ID, tenant="blue", role="admin")
NOW = 1_000_000


class Place:
    def __init__(self) -> None:
        self.now = float(NOW)
        self.ends: dict[bytes, int] = {}
        self.callers = {caller.key_id: caller for caller in (ALICE, BOB, LOCAL)}
        self.links = Links(MemoryStore(), lambda _: None, clock=lambda: self.now)
        self.tokens = SandboxTokens(self.links, self.callers.get, self.of_owner)

    def of_owner(self, owner: str) -> list[tuple[Caller, int | None]]:
        return [(caller, self.ends.get(caller.key_id)) for caller in self.callers.values() if caller.owner == owner]

    def who(self, token: str, sandbox: str = "sbx-1") -> Caller | None:
        found = self.tokens.check(token, sandbox)
        return None if found is None else found.caller


@pytest_asyncio.fixture
async def place() -> Place:
    made = Place()
    await made.links.refresh()
    return made


@pytest.mark.promise("sandbox-tokens")
@pytest.mark.parametrize("caller", [ALICE, LOCAL, SIGNED_IN])
async def test_a_token_stands_for_its_caller_in_its_sandbox_alone(place: Place, caller: Caller) -> None:
    token = place.tokens.make(caller, "sbx-1", until=None)
    assert place.who(token) == caller
    assert place.who(token, "sbx-2") is None
    found = place.tokens.check(token, "sbx-1")
    assert found is not None
    assert token not in repr(found)
    other = Place()
    await other.links.refresh()
    assert other.who(token) is None  # whose secrets are others


@pytest.mark.promise("sandbox-tokens")
async def test_a_token_ends_after_a_day_or_with_what_it_was_made_for(place: Place) -> None:
    day, short = (place.tokens.make(ALICE, "sbx-1", until=until) for until in (None, NOW + 60))
    place.now = NOW + 60
    assert (place.who(day), place.who(short)) == (ALICE, None)
    place.now = NOW + MAX_SECONDS
    assert place.who(day) is None


@pytest.mark.promise("sandbox-tokens")
async def test_the_tokens_that_clients_may_sign_with_are_found_again(place: Place) -> None:
    carol, carols = Caller("user:carol", b"c" * 8), NOW + 100
    place.callers[carol.key_id], place.ends[carol.key_id] = carol, carols
    made = {place.tokens.make(ALICE, "sbx-1", until=None)}

    def valid(owner: str | None, sandbox: str = "sbx-1") -> list[str]:
        found = [*place.tokens.of(owner, sandbox)]
        assert len(found) == LEAST  # whosever they are, so that the time for them tells nothing
        return [each for each in found if place.tokens.check(each, sandbox) is not None]

    assert valid(carol.owner) == [place.tokens.make(carol, "sbx-1", until=carols)]
    assert valid(None) == valid("user:nobody") == []
    for _ in range(3):
        place.now += STEP_SECONDS
        made.add(place.tokens.make(ALICE, "sbx-1", until=None))
    found = valid(ALICE.owner)
    assert (len(made), made <= {*found}) == (4, True)
    assert {place.who(each) for each in found} == {ALICE}
    assert valid(carol.owner) == []  # whose key has ended
    assert {*valid(ALICE.owner, "sbx-2")}.isdisjoint(found)
    place.now += MAX_SECONDS
    assert made.isdisjoint(valid(ALICE.owner))


@pytest.mark.promise("sandbox-tokens")
async def test_a_token_ends_with_its_key_and_has_the_scopes_that_the_key_has_now(place: Place) -> None:
    token = place.tokens.make(ALICE, "sbx-1", until=None)
    place.callers[ALICE.key_id] = narrow = Caller("user:alice", b"a" * 8, read_only=True, key="laptop")
    assert place.who(token) == narrow
    place.callers[ALICE.key_id] = BOB  # a key of the same id is another's
    assert place.who(token) is None
    del place.callers[ALICE.key_id]
    assert place.who(token) is None


def changed(token: str, **fields: Any) -> str:
    content, _, code = token.removeprefix("sbt_").partition(".")
    claims = json.loads(base64.urlsafe_b64decode(content + "=="))
    return "sbt_" + base64.urlsafe_b64encode(json.dumps({**claims, **fields}).encode()).decode() + "." + code


@pytest.mark.promise("sandbox-tokens")
async def test_nothing_else_is_a_token(place: Place) -> None:
    token = place.tokens.make(SIGNED_IN, "sbx-1", until=None)
    admin = {"owner": "user:alice", "tenant": "", "role": "admin"}
    link, _ = place.links.make(ALICE, "get", "sbx-1", "a", seconds=60)
    others = [
        *("", "sbt_", "sbt_.", "sbt_e30.", "sbt_é.é", token[4:], token + "A", token[:-1], "x" * 10_000),
        *(changed(token, end=2**39), changed(token, signed_in=admin), changed(token, key="61" * 8)),
        *(changed(token, signed_by="00" * 4), changed(token, more=1), link.partition("token=")[2]),
    ]
    assert [each for each in others if place.who(each) is not None] == []
