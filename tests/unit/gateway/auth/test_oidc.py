"""Access tokens of a provider: what is accepted, and every way to be wrong."""

import asyncio
import base64
import hmac
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from joserfc.jwk import ECKey, OctKey, OKPKey, RSAKey
from pydantic import ValidationError

from sandpod_gateway.auth.callers import TOKEN_KEY_ID, Caller
from sandpod_gateway.auth.oidc import tokens
from sandpod_gateway.auth.oidc.answers import Introspection
from sandpod_gateway.auth.oidc.provider import PAUSE, REFRESH, RETIRE, Provider
from sandpod_gateway.auth.oidc.settings import OidcSettings
from sandpod_gateway.auth.oidc.tokens import OidcVerifier
from support.clock import Clock
from support.servers.issuer import AUDIENCE, Issuer, provided

Key = RSAKey | ECKey | OKPKey


@pytest.fixture
async def issuer() -> AsyncIterator[Issuer]:
    async with provided() as made:
        yield made


def verifier_of(issuer: Issuer, clock: Clock | None = None, **settings: Any) -> OidcVerifier:
    chosen, clock = OidcSettings(issuer=issuer.address, **settings), clock or Clock()
    provider = Provider(chosen, clock)
    return OidcVerifier(chosen, AUDIENCE, provider, Introspection(chosen, provider, clock))


async def test_token_says_who_calls(issuer: Issuer) -> None:
    token = await verifier_of(issuer).verify(issuer.token(scope="run read", azp="app"))
    assert token is not None
    assert token.caller == Caller("user:alice", TOKEN_KEY_ID)
    assert (token.subject, token.client_id, token.scopes, token.token) == ("user:alice", "app", ["run", "read"], "")


async def test_claim_of_the_settings_names_the_user(issuer: Issuer) -> None:
    token = await verifier_of(issuer, user_claim="email").verify(issuer.token(email="alice@example.com"))
    assert token is not None
    assert token.caller.owner == "user:alice@example.com"


@pytest.mark.parametrize(
    ("key", "algorithms"),
    [
        (RSAKey.generate_key(2048, {"kid": "k"}), ("RS256", "RS512", "PS256")),
        (ECKey.generate_key("P-256", {"kid": "k"}), ("ES256",)),
        (ECKey.generate_key("P-521", {"kid": "k"}), ("ES512",)),
        (OKPKey.generate_key("Ed25519", {"kid": "k"}), ("Ed25519",)),
    ],
)
async def test_each_signature_with_a_private_key_is_taken(
    issuer: Issuer, key: Key, algorithms: tuple[str, ...]
) -> None:
    issuer.keys.append(key)
    for alg in algorithms:
        assert await verifier_of(issuer).verify(issuer.token(alg=alg, key=key)) is not None, alg


@pytest.mark.promise("tokens-verified")
@pytest.mark.parametrize(
    "claims",
    [
        {"iss": "https://evil.example.com"},
        {"iss": None},
        {"iss": ["x"]},
        {"aud": "https://other.example.com/mcp"},
        {"aud": ["https://other.example.com/mcp"]},
        {"aud": f"{AUDIENCE}/"},
        {"aud": None},
        {"exp": -61},
        {"exp": None},
        {"exp": "later"},
        {"nbf": 3600},
        {"iat": 3600},
        {"sub": None},
        {"sub": ""},
        {"sub": 7},
        {"sub": "x" * 129},
    ],
    ids=str,
)
async def test_token_with_a_wrong_claim_is_refused(issuer: Issuer, claims: dict[str, Any]) -> None:
    now = int(time.time())
    given: dict[str, Any] = {
        name: now + value if name != "sub" and isinstance(value, int) else value for name, value in claims.items()
    }
    assert await verifier_of(issuer).verify(issuer.token(**given)) is None


async def test_clocks_may_differ_by_less_than_a_minute(issuer: Issuer) -> None:
    now = int(time.time())
    assert await verifier_of(issuer).verify(issuer.token(exp=now - 30, nbf=now + 30, iat=now + 30)) is not None


async def test_audience_may_be_one_of_several(issuer: Issuer) -> None:
    assert await verifier_of(issuer).verify(issuer.token(aud=["other", AUDIENCE])) is not None


async def refreshed(verifier: OidcVerifier) -> None:
    """Wait for the fetch that a token began and did not wait for."""
    assert verifier._provider.refreshing is not None
    await verifier._provider.refreshing


def encoded(header: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(header).encode()).rstrip(b"=").decode()


def with_shared_secret(body: str, secret: bytes) -> str:
    """Return a token that is signed with a public key as if that were a secret."""
    head = encoded({"alg": "HS256", "kid": "one"})
    code = hmac.digest(secret, f"{head}.{body}".encode(), "sha256")
    return f"{head}.{body}.{base64.urlsafe_b64encode(code).rstrip(b'=').decode()}"


@pytest.mark.promise("tokens-verified")
async def test_forged_token_is_refused(issuer: Issuer) -> None:
    verifier, right = verifier_of(issuer), issuer.token()
    other = ECKey.generate_key("P-256", {"kid": "one"})
    head, body, code = right.split(".")
    for forged in (
        issuer.token(key=other),
        issuer.token(key=other, header={"jwk": other.as_dict(private=False)}),
        issuer.token(key=other, header={"jku": "https://evil.example.com/jwks"}),
        with_shared_secret(body, issuer.keys[0].as_pem(private=False)),
        f"{encoded({'alg': 'none', 'kid': 'one'})}.{body}.",
        f"{head}.{body}.",
        f"{head}.{body}.{code[:-4]}AAAA",
        f"{issuer.token(sub='bob').split('.')[0]}.{issuer.token(sub='bob').split('.')[1]}.{code}",
        issuer.token(header={"crit": ["b64"], "b64": False}),
        issuer.token(header={"typ": "logout+jwt"}),
        f"{encoded({'alg': 'ES256', 'kid': ['one']})}.{body}.{code}",
        "a.b.c",
        "..",
        "é.é.é",
        "x" * 20_000,
    ):
        assert await verifier.verify(forged) is None, forged
    assert await verifier.verify(right) is not None


async def test_token_without_a_key_id_is_taken_where_there_is_one_key(issuer: Issuer) -> None:
    assert await verifier_of(issuer).verify(issuer.token(header={"kid": None})) is not None
    issuer.keys.append(ECKey.generate_key("P-256", {"kid": "two"}))
    assert await verifier_of(issuer).verify(issuer.token(header={"kid": None})) is None


async def test_scopes_of_the_settings_are_needed(issuer: Issuer) -> None:
    verifier = verifier_of(issuer, scopes=["run", "read"])
    assert await verifier.verify(issuer.token(scope="run")) is None
    assert await verifier.verify(issuer.token(scope="read other run")) is not None
    assert await verifier.verify(issuer.token(scp=["read", "run"])) is not None


async def test_new_key_of_the_provider_is_fetched_and_not_more_often_than_every_few_seconds(issuer: Issuer) -> None:
    clock = Clock()
    verifier = verifier_of(issuer, clock)
    assert await verifier.verify(issuer.token()) is not None
    second = ECKey.generate_key("P-256", {"kid": "two"})
    issuer.keys = [second]
    for _ in range(20):
        assert await verifier.verify(issuer.token()) is None, "its key was not fetched yet"
    assert issuer.fetched == 1
    clock.now += PAUSE
    assert await verifier.verify(issuer.token()) is not None
    assert issuer.fetched == 2


async def test_key_that_the_provider_withdraws_is_used_until_its_keys_are_fetched_again(issuer: Issuer) -> None:
    clock = Clock()
    verifier = verifier_of(issuer, clock)
    first = issuer.keys[0]
    assert await verifier.verify(issuer.token()) is not None
    issuer.keys = [ECKey.generate_key("P-256", {"kid": "two"})]
    clock.now += REFRESH
    assert await verifier.verify(issuer.token(key=first)) is not None, "it waits for no fetch"
    await refreshed(verifier)
    assert await verifier.verify(issuer.token(key=first)) is None


@pytest.mark.promise("tokens-while-down")
async def test_provider_that_hangs_holds_up_no_token_whose_key_is_known(issuer: Issuer) -> None:
    clock = Clock()
    verifier = verifier_of(issuer, clock)
    assert await verifier.verify(issuer.token()) is not None
    issuer.hangs = asyncio.Event()
    for _ in range(3):
        clock.now += REFRESH
        assert await verifier.verify(issuer.token()) is not None
        assert verifier._provider.refreshing is not None
        assert not verifier._provider.refreshing.done(), "the token waited for no fetch"
    issuer.hangs.set()
    await refreshed(verifier)
    assert issuer.fetched == 2, "there was one fetch at a time"


@pytest.mark.promise("tokens-while-down")
@pytest.mark.parametrize("document", ["broken", "broken_keys"])
@pytest.mark.parametrize(
    "answer",
    [
        "",
        "[]",
        "{",
        "null",
        "x" * (2**20 + 1),
        '{"keys": 7}',
        '{"keys": [7]}',
        '{"keys": []}',
        '{"keys": [{"kty": 1}]}',
    ],
    ids=lambda text: text[:20],
)
async def test_tokens_of_a_provider_that_is_broken_work_for_a_day_and_then_no_more(
    issuer: Issuer, answer: str, document: str
) -> None:
    clock = Clock()
    verifier = verifier_of(issuer, clock)
    assert await verifier.verify(issuer.token()) is not None
    setattr(issuer, document, answer)
    clock.now += REFRESH
    assert await verifier.verify(issuer.token()) is not None
    assert await verifier.verify(issuer.token(key=ECKey.generate_key("P-256", {"kid": "two"}))) is None
    clock.now = RETIRE
    assert await verifier.verify(issuer.token()) is None
    setattr(issuer, document, None)
    clock.now += PAUSE
    assert await verifier.verify(issuer.token()) is not None


async def test_provider_that_was_not_there_at_first_is_found_later(issuer: Issuer) -> None:
    clock = Clock()
    verifier, issuer.broken = verifier_of(issuer, clock), ""
    assert await verifier.verify(issuer.token()) is None
    issuer.broken = None
    clock.now += PAUSE
    assert await verifier.verify(issuer.token()) is not None


@pytest.mark.promise("tokens-verified")
async def test_configuration_of_another_issuer_is_not_used(issuer: Issuer) -> None:
    issuer.more = {"issuer": "https://evil.example.com"}
    assert await verifier_of(issuer).verify(issuer.token()) is None


async def test_keys_that_sign_nothing_are_left_out(issuer: Issuer) -> None:
    secret = OctKey.generate_key(256, {"kid": "secret"})
    encrypting = ECKey.generate_key("P-256", {"kid": "enc"})
    issuer.keys += [secret.as_dict(private=True), encrypting.as_dict(private=False) | {"use": "enc"}]
    issuer.keys += [{"kty": "AKP", "kid": "new"}]
    verifier = verifier_of(issuer)
    assert await verifier.verify(issuer.token()) is not None
    assert await verifier.verify(issuer.token(key=encrypting)) is None


@pytest.mark.parametrize("issuer", ["http://login.example.com", "ftp://login.example.com", "login.example.com", ""])
def test_issuer_without_encryption_is_refused(issuer: str) -> None:
    with pytest.raises(ValidationError):
        OidcSettings(issuer=issuer, audience=AUDIENCE)


def test_no_algorithm_has_a_shared_secret() -> None:
    assert not [alg for alg in tokens.ALGORITHMS if alg.startswith("HS") or alg == "none"]
