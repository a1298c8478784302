"""Pools by the REST API: an administrator's own tenant's, or all tenants'."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx2
import pytest

from fakes.backend import FakeBackend
from sandpod_gateway.app import Gateway
from sandpod_gateway.auth.api_keys import KeyFile, make_key
from sandpod_gateway.settings import AuthSettings, Settings
from support.gateway.server import listening

USERS: dict[str, dict[str, Any]] = {"boss": {"tenant": "a"}, "chief": {"tenant": "b"}, "root": {}}


@pytest.mark.promise("tenants-apart")
async def test_pools_are_seen_and_scaled_by_the_administrators_of_their_tenant(tmp_path: Path) -> None:
    made = {
        user: make_key(user=user, name="k", days=None, now=datetime.now(UTC), role="admin", **of)
        for user, of in USERS.items()
    }
    (tmp_path / "keys.yaml").write_bytes(KeyFile(keys=[entry for _, entry in made.values()]).dump())
    settings = Settings(auth=AuthSettings(keys_file=tmp_path / "keys.yaml"))
    async with listening(Gateway(settings, FakeBackend()), settings) as address, httpx2.AsyncClient() as http:

        async def ask(who: str, method: str, path: str, **options: Any) -> tuple[int, Any]:
            answer = await http.request(
                method, f"{address}/api/v1/pools{path}", headers={"x-api-key": made[who][0]}, **options
            )
            return answer.status_code, answer.json()

        async def replicas(who: str, **query: str) -> int:
            [pool] = (await ask(who, "GET", "", params=query))[1]["pools"]
            return int(pool["replicas"])

        status, pool = await ask("boss", "PATCH", "/default", json={"replicas": 7})
        assert (status, pool["replicas"], pool["ready"], pool["template"]) == (200, 7, 7, "default")
        assert [await replicas(who) for who in USERS] == [7, 1, 1]
        assert (await ask("root", "PATCH", "/default", json={"replicas": 3, "tenant": "b"}))[0] == 200
        assert [await replicas("root", tenant=tenant) for tenant in "ab"] == [7, 3]
        assert (await ask("boss", "PATCH", "/default", json={"replicas": 9, "tenant": "b"}))[0] == 403
        assert (await ask("boss", "GET", "", params={"tenant": "b"}))[0] == 403
        assert (await ask("boss", "PATCH", "/none", json={"replicas": 1}))[1]["error"] == "not_found"
        for wrong in ({}, {"replicas": -1}, {"replicas": 10_001}, {"replicas": "many"}):
            assert (await ask("boss", "PATCH", "/default", json=wrong))[0] == 400
        assert [await replicas(who) for who in USERS] == [7, 3, 1]
