"""Sign-in through the gateway leaves records: of users what they do, of anybody else numbers."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sandpod_gateway.audit.settings import AuditSettings
from support.gateway.peers import until
from support.gateway.sign_in import BACK, PUBLIC, TAKEN, VERIFIER, Team, consent
from unit.gateway.audit.test_writing import files_of_at_most, records_of
from unit.gateway.auth.test_sign_in_proxy import team_of

ISSUE = {"grant_type": "authorization_code", "redirect_uri": BACK}


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as made:
        yield made


async def audited(stack: AsyncExitStack, folder: Path, *, required: bool = False, **oidc: Any) -> tuple[Team, str]:
    """Start a gateway with an audit log; return it, and a client that has registered."""
    audit = AuditSettings(sink="file", path=folder / "audit.jsonl", required=required)
    team = await team_of(stack, folder, gateways=1, audit=audit, **oidc)
    return team, (await team.register()).json()["client_id"]


async def end(team: Team, client: str, token: str) -> int:
    form = {"client_id": client, "client_secret": "", "token": token}
    return (await team.send("POST", f"{PUBLIC}/revoke", data=form)).status_code


def of(folder: Path, *names: str) -> list[tuple[Any, ...]]:
    """Return these members of all records but those of start and keys."""
    records = [each for each in records_of(folder / "audit.jsonl") if each["event"] not in {"start", "stop", "keys"}]
    return [tuple(each.get(name) for name in ("event", *names)) for each in records]


@pytest.mark.promise("audit-recorded", "audit-secrets")
async def test_sign_in_is_recorded_with_its_user_from_consent_to_revocation_and_without_a_credential(
    stack: AsyncExitStack, tmp_path: Path
) -> None:
    team, client = await audited(stack, tmp_path, admin_groups=["root"])
    team.issuer.claims = {"groups": ["root"], "exp": 1}  # what it says of the user counts when it has ended, too
    code = await team.sign_in(client)
    wrong = await team.exchange(client, **ISSUE, code=code, code_verifier="w" * 43)
    assert wrong.status_code == 401
    first = (await team.exchange(client, **ISSUE, code=code, code_verifier=VERIFIER)).json()
    team.issuer.claims = {}
    second = (await team.exchange(client, grant_type="refresh_token", refresh_token=first["refresh_token"])).json()
    assert (await team.call(second["access_token"])).status_code == TAKEN
    assert await end(team, client, second["access_token"]) == 200
    await stack.aclose()
    alice = ("user:alice", "token", "127.0.0.1", "a client")
    found = of(tmp_path, "method", "outcome", "status", "role", "user", "key", "from", "client")
    assert found == [
        ("sign_in", "consent", None, None, None, None, None, "127.0.0.1", None),
        ("sign_in", "issue", "refused", 401, "admin", *alice),
        ("sign_in", "issue", "ok", 200, "admin", *alice),
        ("sign_in", "refresh", "ok", 200, "admin", *alice),
        ("refused", None, None, 400, None, "user:alice", None, "127.0.0.1", None),
        ("sign_in", "revoke", "ok", 200, None, *alice),
    ]
    text = (tmp_path / "audit.jsonl").read_text("utf-8")
    held = [client, code, VERIFIER, "w" * 43, *first.values(), *second.values(), *team.issuer.sessions, "access-"]
    assert [each for each in held if isinstance(each, str) and each not in {"Bearer", "openid"} and each in text] == []


@pytest.mark.promise("audit-bounded")
async def test_what_anybody_may_do_on_the_way_to_a_sign_in_is_counted(stack: AsyncExitStack, tmp_path: Path) -> None:
    team, client = await audited(stack, tmp_path)
    other = (await team.register(client_name="another")).json()["client_id"]
    tokens = await team.tokens(client)
    for _ in range(5):
        page = await team.send("GET", (await team.begin(client)).headers["location"])
        await team.send("POST", f"{PUBLIC}/consent", data=consent(page.text))
        page = await team.send("GET", (await team.begin(client)).headers["location"])
        denied = await team.send("POST", f"{PUBLIC}/consent", data=consent(page.text) | {"action": "deny"})
        assert "error=access_denied" in denied.headers["location"]
        await team.send("GET", f"{PUBLIC}/auth/callback", params={"error": "access_denied"})
        await team.begin("nobody")
        await team.exchange(client, **ISSUE, code="guessed", code_verifier=VERIFIER)
        await team.exchange(client, grant_type="refresh_token", refresh_token="a.b.c")
        await team.exchange(other, grant_type="refresh_token", refresh_token=tokens["refresh_token"])
        await team.send("POST", f"{PUBLIC}/token", content=b"\xff" * 100)
        assert await end(team, client, "a.b.c") == 200, "as RFC 7009 has it; nothing was done"
        assert await end(team, other, tokens["access_token"]) == 200, "as above"
    assert (await team.call(tokens["access_token"])).status_code == TAKEN
    await stack.aclose()
    counted: dict[tuple[Any, ...], int] = {}
    for *kind, count in of(tmp_path, "method", "path", "status", "count"):
        counted[tuple(kind)] = counted.get(tuple(kind), 0) + (count or 0)
    assert counted == {
        ("sign_in", "consent", None, None): 6,
        ("sign_in", "issue", None, 200): 0,
        ("sign_in", "revoke", None, None): 10,
        ("refused", None, "/consent", 302): 5,
        ("refused", None, "/auth/callback", 400): 5,
        ("refused", None, "/authorize", 400): 5,
        ("refused", None, "/token", 401): 20,
        ("refused", None, None, 400): 1,
    }
    assert len(of(tmp_path)) == 2 * 6 + 2


async def test_user_who_has_no_place_here_is_counted(stack: AsyncExitStack, tmp_path: Path) -> None:
    team, client = await audited(stack, tmp_path, tenants={"/red": "red"})
    for _ in range(3):
        await team.tokens(client)
    await stack.aclose()
    found = of(tmp_path, "method", "count", "user")
    assert sorted(each for each in found if each[1] == "issue") == [
        ("sign_in", "issue", 1, None),
        ("sign_in", "issue", 2, None),
    ]


async def test_user_is_who_a_provider_without_id_tokens_says(stack: AsyncExitStack, tmp_path: Path) -> None:
    endpoints = {"authorization": "authorize", "token": "token", "userinfo": "userinfo"}
    bound: dict[str, Any] = {"user_claim": "login", "required_claims": {"login": ("alice",)}}
    team, client = await audited(stack, tmp_path, endpoints=endpoints, **bound)
    await team.tokens(client)
    team.issuer.user = "mallory"
    await team.tokens(client)
    await stack.aclose()
    assert [each for each in of(tmp_path, "method", "user") if each[1] == "issue"] == [
        ("sign_in", "issue", "user:alice"),
        ("sign_in", "issue", None),
    ]


@pytest.mark.promise("audit-required")
async def test_nobody_gets_a_token_while_a_required_record_can_not_be_written(
    stack: AsyncExitStack, tmp_path: Path
) -> None:
    team, client = await audited(stack, tmp_path, required=True)
    code = await team.sign_in(client)
    value = partial(team.gateways[0].metrics.registry.get_sample_value, "sandpod_audit_records_total")
    path = tmp_path / "audit.jsonl"
    await until(lambda: '"sign_in"' in path.read_text(encoding="utf-8"))  # what was counted so far is written
    with files_of_at_most(path.stat().st_size + 100):
        refused = await team.exchange(client, **ISSUE, code=code, code_verifier=VERIFIER)
        assert (refused.status_code, refused.json()["error"]) == (503, "backend_unavailable")
        await until(lambda: value({"sink": "file", "result": "lost"}) == 2)
    assert (await team.exchange(client, **ISSUE, code=code, code_verifier=VERIFIER)).status_code == 200
    await stack.aclose()
    assert of(tmp_path, "phase", "outcome", "count") == [
        ("sign_in", None, None, 1),
        ("lost", None, None, 2),
        ("sign_in", "begin", None, None),
        ("sign_in", "end", "ok", None),
    ]


async def test_session_is_not_ended_while_the_provider_can_not_say_whose_it_is(
    stack: AsyncExitStack, tmp_path: Path
) -> None:
    team, client = await audited(stack, tmp_path, introspection={"remember_seconds": 1})
    tokens = await team.tokens(client)
    team.issuer.introspection = "it is broken"
    assert await end(team, client, tokens["access_token"]) == 503
    await stack.aclose()
    assert of(tmp_path, "method", "outcome", "user")[-1] == ("sign_in", "revoke", "refused", "user:alice")
