"""Tokens that a provider revokes: it is asked, not too often, and what it can't say counts as no."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.auth.callers import owner_of
from sandpod_gateway.auth.oidc.answers import Answers, Introspection
from sandpod_gateway.auth.oidc.claims import RefusedError
from sandpod_gateway.auth.oidc.provider import Provider
from sandpod_gateway.auth.oidc.settings import OidcSettings
from sandpod_gateway.auth.oidc.tokens import OidcVerifier
from sandpod_gateway.errors import SandpodError
from support.clock import Clock
from support.servers.issuer import AUDIENCE, Issuer, provided

REVOKED = '{"active": false}'


@pytest.fixture
async def issuer() -> AsyncIterator[Issuer]:
    async with provided() as made:
        yield made


@pytest.fixture
def clock() -> Clock:
    return Clock()


def verifier_of(issuer: Issuer, clock: Clock, folder: Path, **more: Any) -> OidcVerifier:
    secret = folder / "secret"
    secret.write_text("pass:word\n")
    client = {"client_id": "sandpod", "client_secret_file": secret}
    settings = OidcSettings.model_validate({"issuer": issuer.address, "introspection": {}} | client | more)
    provider = Provider(settings, clock)
    return OidcVerifier(settings, AUDIENCE, provider, Introspection(settings, provider, clock))


@pytest.mark.promise("token-revoked")
async def test_revoked_token_is_refused_within_seconds(issuer: Issuer, clock: Clock, tmp_path: Path) -> None:
    verifier, token = verifier_of(issuer, clock, tmp_path), issuer.token()
    assert await verifier.verify(token) is not None
    issuer.introspection = REVOKED
    clock.now += 29
    assert await verifier.verify(token) is not None
    assert len(issuer.introspected) == 1, "one answer serves for half a minute"
    clock.now += 1
    assert await verifier.verify(token) is None
    assert await verifier.verify(token) is None
    assert len(issuer.introspected) == 2


OPAQUE = {"active": True, "sub": "ann", "aud": AUDIENCE, "scope": "run"}


@pytest.mark.promise("token-revoked")
@pytest.mark.parametrize(
    ("change", "is_taken"),
    [
        ({}, True),
        ({"aud": [AUDIENCE, "other"], "exp": 4_000_000_000}, True),
        ({"active": False}, False),
        ({"active": "true"}, False),
        ({"aud": "other"}, False),
        ({"aud": None}, False),
        ({"iss": "https://other.example"}, False),
        ({"exp": 1}, False),
        ({"nbf": 4_000_000_000}, False),
        ({"exp": "never"}, False),
        ({"scope": "read"}, False),
        ({"sub": None}, False),
        ({"sub": 7}, False),
    ],
)
async def test_token_that_is_no_jwt_is_what_the_provider_says_of_it(
    issuer: Issuer, clock: Clock, tmp_path: Path, change: dict[str, Any], *, is_taken: bool
) -> None:
    answer = {name: value for name, value in (OPAQUE | change).items() if value is not None}
    issuer.introspection = json.dumps(answer)
    verifier = verifier_of(issuer, clock, tmp_path, introspection={"opaque": True}, scopes=("run",))
    found = await verifier.verify("an-opaque-token")
    assert (found is not None) == is_taken
    assert found is None or found.caller.owner == owner_of("", "ann")
    assert await verifier.verify("an.opaque.token") is None, "a JWT must be signed"
    assert [form["token"] for _, form in issuer.introspected] == ["an-opaque-token"]


async def test_nobody_is_asked_of_a_token_that_is_no_jwt_unless_the_settings_say_so(
    issuer: Issuer, clock: Clock, tmp_path: Path
) -> None:
    issuer.introspection = json.dumps(OPAQUE)
    assert await verifier_of(issuer, clock, tmp_path).verify("an-opaque-token") is None
    assert issuer.introspected == []


async def test_gateway_says_who_it_is_and_asks_of_the_token(issuer: Issuer, clock: Clock, tmp_path: Path) -> None:
    token, basic = issuer.token(), base64.b64encode(b"sandpod:pass:word").decode()
    await verifier_of(issuer, clock, tmp_path).verify(token)
    await verifier_of(issuer, clock, tmp_path, client_auth="client_secret_post").verify(token)
    assert issuer.introspected == [
        (f"Basic {basic}", {"token": token}),
        (None, {"token": token, "client_id": "sandpod", "client_secret": "pass:word"}),
    ]


async def test_calls_at_once_share_one_question(issuer: Issuer, clock: Clock, tmp_path: Path) -> None:
    verifier, token = verifier_of(issuer, clock, tmp_path), issuer.token()
    found = await asyncio.gather(*(verifier.verify(token) for _ in range(20)))
    assert None not in found
    assert len(issuer.introspected) == 1


async def test_nobody_is_asked_of_a_forged_token(issuer: Issuer, clock: Clock, tmp_path: Path) -> None:
    verifier = verifier_of(issuer, clock, tmp_path)
    for wrong in (issuer.token(aud="other"), issuer.token(exp=1), issuer.token()[:-4] + "AAAA"):
        assert await verifier.verify(wrong) is None
    assert issuer.introspected == []


@pytest.mark.promise("token-revoked")
@pytest.mark.parametrize("answer", ["", "[]", "{", "x" * (2**20 + 1)], ids=lambda text: text[:2])
async def test_while_the_provider_can_not_say_tokens_are_refused_as_unavailable(
    issuer: Issuer, clock: Clock, tmp_path: Path, answer: str
) -> None:
    verifier, token = verifier_of(issuer, clock, tmp_path), issuer.token()
    issuer.introspection = answer
    for _ in range(3):
        with pytest.raises(RefusedError) as refused:
            await verifier.verify(token)
        assert refused.value.error.code is ErrorCode.BACKEND_UNAVAILABLE
    assert len(issuer.introspected) == 1, "a provider that fails is not asked for each call"
    issuer.introspection = '{"active": true}'
    clock.now += 30
    assert await verifier.verify(token) is not None


@pytest.mark.parametrize("active", ["false", "null", '"true"', "1"])
async def test_only_true_is_yes(issuer: Issuer, clock: Clock, tmp_path: Path, active: str) -> None:
    issuer.introspection = f'{{"active": {active}}}'
    assert await verifier_of(issuer, clock, tmp_path).verify(issuer.token()) is None


async def test_call_that_is_cancelled_cancels_no_others_question() -> None:
    answers, gate, asked = Answers[str](30), asyncio.Event(), 0

    async def ask() -> str:
        nonlocal asked
        asked += 1
        await gate.wait()
        return "yes"

    first, second = (asyncio.ensure_future(answers.get("token", ask)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    gate.set()
    assert await second == "yes"
    assert asked == 1


async def test_failures_are_not_remembered() -> None:
    answers = Answers[str](30)

    async def fails() -> str:
        raise SandpodError(ErrorCode.BACKEND_ERROR, "No.", next_step="")

    async def works() -> str:
        return "yes"

    with pytest.raises(SandpodError):
        await answers.get("token", fails)
    assert await answers.get("token", works) == "yes"
