"""Audit records by the REST API: whose records a caller sees."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx2
import pytest

from fakes.backend import FakeBackend
from sandpod_gateway.app import Gateway
from sandpod_gateway.audit.settings import AuditSettings
from sandpod_gateway.auth.api_keys import KeyFile, make_key
from sandpod_gateway.settings import AuthSettings, Settings
from support.gateway.server import listening

USERS: dict[str, dict[str, Any]] = {
    "ann": {"tenant": "a"},
    "carol": {"tenant": "b"},
    "boss": {"tenant": "a", "role": "admin"},
    "root": {"role": "admin"},
}


@pytest.mark.promise("tenants-apart", "owners-apart")
async def test_users_see_their_records_and_administrators_those_of_their_tenant_or_all(tmp_path: Path) -> None:
    made = {user: make_key(user=user, name="k", days=None, now=datetime.now(UTC), **of) for user, of in USERS.items()}
    (tmp_path / "keys.yaml").write_bytes(KeyFile(keys=[entry for _, entry in made.values()]).dump())
    audit = AuditSettings(sink="file", path=tmp_path / "audit.jsonl", required=True)
    settings = Settings(auth=AuthSettings(keys_file=tmp_path / "keys.yaml"), audit=audit)
    async with listening(Gateway(settings, FakeBackend()), settings) as address, httpx2.AsyncClient() as http:

        async def seen(who: str, **query: Any) -> list[dict[str, Any]]:
            answer = await http.get(f"{address}/api/v1/audit", params=query, headers={"x-api-key": made[who][0]})
            assert answer.status_code == 200, answer.text
            assert all(each["replica"] == answer.json()["replica"] for each in answer.json()["records"])
            records: list[dict[str, Any]] = answer.json()["records"]
            return records

        for who in USERS:
            await http.get(f"{address}/api/v1/sandboxes", headers={"x-api-key": made[who][0]})
        users = {who: {each.get("user") for each in await seen(who)} for who in USERS}
        ann, boss = "tenant:a:user:ann", "tenant:a:user:boss"
        assert users["ann"] == {ann}
        assert users["carol"] == {"tenant:b:user:carol"}
        assert users["boss"] == {ann, boss}
        assert users["root"] > {ann, boss, "tenant:b:user:carol", "user:root"}
        assert {each["user"] for each in await seen("root", user="ann")} == {ann}
        assert {each["event"] for each in await seen("root", event="keys")} == {"keys"}
        assert await seen("boss", user="carol") == await seen("ann", event="keys") == []
        times = [each["time"] for each in await seen("root")]
        assert times == sorted(times, reverse=True)
        assert len(await seen("root", limit=3)) == 3
