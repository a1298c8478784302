"""Everybody's sandboxes by the REST API and the console: an administrator's own tenant's, or all tenants'."""

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx2
import pytest

from fakes.backend import FakeBackend
from sandpod_gateway.app import Gateway
from sandpod_gateway.audit.settings import AuditSettings
from sandpod_gateway.auth.api_keys import KeyFile, make_key
from sandpod_gateway.backends.tenants import TenantBackend
from sandpod_gateway.sandboxes import load
from sandpod_gateway.settings import AuthSettings, Settings
from support.gateway.server import listening

USERS: dict[str, dict[str, Any]] = {
    "ann": {"tenant": "a"},
    "bob": {"tenant": "b"},
    "eve": {},
    "boss": {"tenant": "a", "role": "admin"},
    "root": {"role": "admin"},
    "narrow": {"role": "admin", "templates": ["other"]},
}
SEEN = {"boss": {"ann"}, "root": {"ann", "bob", "eve"}, "narrow": set[str]()}


@pytest.mark.promise("tenants-apart", "owners-apart", "audit-recorded")
async def test_sandboxes_are_seen_and_closed_by_the_administrators_of_their_tenant_and_by_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "PERIOD_SECONDS", 0.0)
    now = datetime.now(UTC)
    keys = {user: make_key(user=user, name="k", days=None, now=now, **of) for user, of in USERS.items()}
    (tmp_path / "keys.yaml").write_bytes(KeyFile(keys=[entry for _, entry in keys.values()]).dump())
    audit = AuditSettings(sink="file", path=tmp_path / "audit")
    settings = Settings(auth=AuthSettings(keys_file=tmp_path / "keys.yaml"), audit=audit)
    backend = TenantBackend(FakeBackend(), {"a": FakeBackend(), "b": FakeBackend()})
    async with listening(Gateway(settings, backend), settings) as address, httpx2.AsyncClient() as http:

        async def ask(who: str, method: str, path: str, **options: Any) -> tuple[int, Any]:
            key = {"x-api-key": keys[who][0]}
            answer = await http.request(method, f"{address}/api/v1{path}", headers=key, **options)
            return answer.status_code, answer.json()

        async def page(who: str, path: str, method: str = "GET") -> tuple[int, str]:
            headers = {"authorization": f"Bearer {keys[who][0]}", "origin": address, "hx-request": "true"}
            answer = await http.request(method, f"{address}/console/all{path}", headers=headers)
            return answer.status_code, answer.text

        made = {
            user: (await ask(user, "POST", "/sandboxes", json={"name": user}))[1]["sandbox"] for user in SEEN["root"]
        }
        for who, seen in SEEN.items():
            status, listed = await ask(who, "GET", "/admin/sandboxes")
            assert (status, {each["user"] for each in listed["sandboxes"]}) == (200, seen)
            assert all(each["tenant"] == USERS[each["user"]].get("tenant", "") for each in listed["sandboxes"])
            status, table = await page(who, "")
            assert (status, {user for user, name in made.items() if name in table}) == (200, seen)
            for user, name in made.items():
                status, state = await ask(who, "GET", f"/admin/sandboxes/{name}")
                assert (await page(who, f"/{name}"))[0] == (await page(who, f"/{name}/state"))[0] == status
                assert status == (200 if user in seen else 404)
                if user in seen:
                    assert (state["user"], state["conditions"][0]["type"]) == (user, "Ready")
                else:
                    assert state["error"] == "session_not_found"
                    assert (await ask(who, "DELETE", f"/admin/sandboxes/{name}"))[0] == 404
                # What is in it stays its owner's, whatever the role.
                assert (await ask(who, "GET", f"/sandboxes/{name}/files"))[0] == 404
        # By a name that two may have nobody is found, but by a handle alone.
        assert (await ask("root", "GET", "/admin/sandboxes/ann"))[0] == 404

        for who in ("ann", "eve"):
            for name in (made["ann"], "none"):
                refused = [await ask(who, "GET", "/admin/sandboxes"), await ask(who, "GET", f"/admin/sandboxes/{name}")]
                refused.append(await ask(who, "DELETE", f"/admin/sandboxes/{name}"))
                assert [(status, body["error"]) for status, body in refused] == [(403, "forbidden")] * 3
                for path, method in (("", "GET"), ("/rows", "GET"), (f"/{name}", "GET"), (f"/{name}/state", "GET")):
                    status, text = await page(who, path, method)
                    assert (status, "forbidden" in text, made["bob"] in text) == (403, True, False)
                assert (await page(who, f"/{name}", "DELETE"))[0] == 403

        known = re.findall(r"known=(\w+)", (await page("root", ""))[1])[0]
        status, text = await page("root", f"/rows?known={known}")  # nothing is new but what they do
        assert (status, text.count("hx-swap-oob"), "<tbody" in text) == (200, 3, False)
        assert (await ask("boss", "DELETE", f"/admin/sandboxes/{made['ann']}"))[1]["closed"] is True
        assert (await page("root", f"/{made['bob']}", "DELETE"))[0] == 204
        assert (await ask("ann", "GET", "/sandboxes"))[1]["sandboxes"] == []
        assert [each["user"] for each in (await ask("root", "GET", "/admin/sandboxes"))[1]["sandboxes"]] == ["eve"]

    records = [json.loads(line) for line in (tmp_path / "audit").read_text().splitlines()]
    closed = [
        (each["user"], each["target_user"], each["sandbox"])
        for each in records
        if each.get("tool") == "close_any_sandbox" and each.get("outcome") == "ok"
    ]
    assert closed == [
        ("tenant:a:user:boss", "tenant:a:user:ann", made["ann"]),
        ("user:root", "tenant:b:user:bob", made["bob"]),
    ]
