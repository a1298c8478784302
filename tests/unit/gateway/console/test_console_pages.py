"""Pages without a browser: who gets them, what they forbid, and what of a caller's words is markup."""

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import httpx2
import pytest

from fakes.backend import FakeBackend
from sandpod_gateway.app import Gateway
from sandpod_gateway.audit.settings import AuditSettings
from sandpod_gateway.console.assets import Assets
from sandpod_gateway.console.calls import MAX_FORM
from sandpod_gateway.console.views import policy
from sandpod_gateway.settings import AuthSettings, ConsoleSettings, LinkSettings, Settings
from support.gateway.fake_gateway import keys_file
from support.gateway.server import listening

PAGES: Final = ("", "sandboxes/default", "usage", "keys", "audit", "connect", "rows")
Place = tuple[httpx2.AsyncClient, str]
HOSTILE: Final = "\"'><script>alert(1)</script>"


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[Place]:
    path, [key] = keys_file(tmp_path, "alice")
    audit = AuditSettings(sink="file", path=tmp_path / "audit")
    settings = Settings(auth=AuthSettings(keys_file=path, change_keys=True), audit=audit)
    async with (
        listening(Gateway(settings, FakeBackend()), settings) as address,
        httpx2.AsyncClient(base_url=address, headers={"origin": address}) as http,
    ):
        yield http, key


async def sign_in(http: httpx2.AsyncClient, key: str, following: str = "") -> httpx2.Response:
    return await http.post("/console/sign-in", data={"key": key, "next": following})


@pytest.mark.promise("console-session", "console-same-origin", "key-required", "key-revoked", "audit-recorded")
async def test_a_session_is_for_own_pages_until_its_key_is_revoked(here: Place, tmp_path: Path) -> None:
    http, key = here
    for page in PAGES:
        answer = await http.get(f"/console/{page}")
        assert (answer.status_code, answer.headers["location"]) == (303, f"/console/sign-in?next=/console/{page}")
    # A part of a page that is open leads back to that page, and to none of another site.
    for url, page in (
        (f"{str(http.base_url).rstrip('/')}/console/keys", "/console/keys"),
        ("http://b.example/x", "/console/"),
        ("", "/console/"),
    ):
        answer = await http.get("/console/rows", headers={"hx-request": "true", "hx-current-url": url})
        assert (answer.status_code, answer.text) == (401, "")
        assert answer.headers["hx-redirect"] == f"/console/sign-in?ended=1&next={page}"
    assert (await http.get("/api/v1/sandboxes")).status_code == 401
    for wrong in ("", "sandpod_wrong", "x" * 10_000, "é"):
        assert (await sign_in(http, wrong)).status_code == 401
    assert not http.cookies
    # A form of another site's can't sign anybody in either.
    elsewhere = {"origin": "http://elsewhere.example"}
    assert (await http.post("/console/sign-in", data={"key": key}, headers=elsewhere)).status_code == 403

    for following in ("https://elsewhere.example/", "//elsewhere.example", "/console/\\elsewhere", "javascript:1"):
        assert (await sign_in(http, key, following)).headers["location"] == "/console/"
    assert (await sign_in(http, key, "/console/keys")).headers["location"] == "/console/keys"
    for page in PAGES:
        assert (await http.get(f"/console/{page}")).status_code == 200
    assert (await http.get("/api/v1/sandboxes")).status_code == 200
    assert (await http.post("/api/v1/sandboxes", json={"name": "mine"})).status_code == 201
    assert (await http.post("/mcp", json={})).status_code == 401  # a cookie is nothing to MCP
    for headers in ({"origin": "null"}, {"origin": ""}, {"sec-fetch-site": "cross-site", "origin": ""}):
        assert (await http.post("/api/v1/sandboxes", json={}, headers=headers)).status_code in {401, 403}
        assert (await http.post("/console/sandboxes", headers=headers)).status_code in {303, 401, 403}
    assert (await http.get("/console/keys", headers={"origin": "", "sec-fetch-site": "cross-site"})).status_code == 303

    [own] = re.findall(r'hx-delete="(/console/keys/\w+)"', (await http.get("/console/keys")).text)
    assert (await http.delete(own)).status_code == 200
    answer = await http.get("/console/keys")
    assert answer.headers["location"] == "/console/sign-in?ended=1&next=/console/keys"
    assert "Your session has ended" in (await http.get(answer.headers["location"])).text
    await http.post("/console/sign-out")
    assert not http.cookies

    text = (tmp_path / "audit").read_text()
    assert key not in text
    records = [json.loads(line) for line in text.splitlines()]
    acts = {
        each.get("tool") or each.get("uri") or each.get("method")
        for each in records
        if each.get("user") == "user:alice"
    }
    shown = {"list_sandboxes", "get_usage", "list_keys", "list_audit_records", "sandpod://capabilities"}
    assert acts == shown | {"create_sandbox", "revoke_key", "console"}
    assert [each["event"] for each in records if each.get("method") == "console"] == ["sign_in"] * 5


@pytest.mark.promise("console-policy", "console-text")
async def test_pages_forbid_what_they_do_not_need_and_words_of_callers_are_text(
    here: Place,
) -> None:
    http, key = here
    await sign_in(http, key)
    made = await http.post("/console/sandboxes", data={"name": HOSTILE}, headers={"hx-request": "true"})
    page = made.headers["hx-redirect"]
    key_made = await http.post("/console/keys", data={"name": HOSTILE, "days": "1"})
    assert "sandpod_" in key_made.text
    pages = [f"/console/{each}" for each in PAGES] + [
        page,
        f"/console/usage?by={HOSTILE}",
        "/console/<b>",
        "/console/pools",
    ]
    nonces = set()
    for each in pages:
        answer = await http.get(each)
        rules = dict(rule.partition(" ")[::2] for rule in answer.headers["content-security-policy"].split("; "))
        assert rules["default-src"] == rules["frame-ancestors"] == rules["base-uri"] == "'none'"
        assert rules["script-src"] == f"{http.base_url.netloc.decode()}/console/static/{Assets().version}/"
        [nonce] = re.findall(r"'nonce-([\w-]+)'", rules["style-src"])
        nonces.add(nonce)
        assert "unsafe" not in str(rules)
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "private, no-store"
        assert "<script>alert" not in answer.text
        assert re.findall(r"<script(?! src=)|<style|\sstyle=|\son\w+=|javascript:", answer.text) == []
    assert len(nonces) == len(pages)
    for each in ("/console/", page, "/console/keys"):
        assert "&lt;script&gt;alert(1)" in (await http.get(each)).text
    frame = (await http.get("/console/frame")).headers["content-security-policy"]
    assert frame.startswith("sandbox allow-scripts; default-src 'none'; script-src 'self'; ")
    assert policy("[::1]:8000", "n", "/s").count("script-src 'self'") == 1


async def test_refusals_are_pages_or_parts_with_the_coded_sentence(here: Place) -> None:
    http, key = here
    await sign_in(http, key)
    tries: list[tuple[str, str, Any, int, str]] = [
        ("GET", "/console/nowhere", None, 404, "not_found"),
        ("GET", "/console/sandboxes/no-such", None, 404, "session_not_found"),
        ("DELETE", "/console/sandboxes/no-such", None, 404, "session_not_found"),
        ("GET", "/console/pools", None, 403, "forbidden"),
        ("GET", "/console/usage?by=nobody", None, 400, "invalid_argument"),
        ("POST", "/console/sandboxes", {"hours": "many"}, 400, "invalid_argument"),
        ("POST", "/console/sandboxes", {"template": "no-such"}, 400, "invalid_argument"),
        ("POST", "/console/sandboxes", {"name": "x" * MAX_FORM}, 413, "upload_too_large"),
        ("POST", "/console/keys", {}, 400, "invalid_argument"),
    ]
    for method, path, data, status, code in tries:
        whole = await http.request(method, path, data=data)
        part = await http.request(method, path, data=data, headers={"hx-request": "true"})
        assert (whole.status_code, part.status_code) == (status, status), path
        assert code in whole.text, path
        assert code in part.text, path
        assert ("<html" in whole.text, "<html" in part.text) == (True, False)


async def test_rows_come_again_only_when_they_are_others(here: Place) -> None:
    http, key = here
    await sign_in(http, key)
    known = re.findall(r"known=(\w+)", (await http.get("/console/")).text)[0]
    assert (await http.get(f"/console/rows?known={known}")).status_code == 204
    made = [(await http.post("/api/v1/sandboxes", json={"name": name})).json()["sandbox"] for name in ("old", "other")]
    rows = await http.get(f"/console/rows?known={known}")
    # In place of the text that there are none come all of them.
    assert (rows.status_code, rows.text.count('id="rows" '), rows.text.count("<tr ")) == (200, 1, 2)
    known = re.findall(r"known=(\w+)", rows.text)[0]
    assert (await http.get(f"/console/rows?known={known}")).status_code == 204
    await http.post("/api/v1/sandboxes", json={"name": "new"})
    await http.delete(f"/api/v1/sandboxes/{made[1]}")
    await http.post("/api/v1/runs", json={"code": "print(1)", "sandbox": made[0]})
    rows = await http.get(f"/console/rows?known={known}")
    assert re.findall(r'<tr id="row-([^"]+)"([^>]*)>', rows.text)[:2] == [
        (made[1], ' hx-swap-oob="delete"'),
        (made[0], ' hx-swap-oob="true"'),
    ]
    assert re.search(r'<tbody hx-swap-oob="afterbegin:#rows">\s*<tr id="row-[^>]*>.*<bdi>new</bdi>', rows.text)
    assert rows.text.count("<tr ") == 3
    known = re.findall(r"known=(\w+)", rows.text)[0]
    assert (await http.get(f"/console/rows?known={known}&tools=core")).status_code == 403  # who may not list them
    again = await http.get(f"/console/rows?known={known}")  # nothing but what the one in use does
    assert (again.status_code, re.findall(r'id="([^"]+)" hx-swap-oob', again.text)) == (200, [f"now-{made[0]}"])


async def test_files_are_kept_under_an_address_that_changes_with_them(tmp_path: Path) -> None:
    (tmp_path / "a.js").write_text("1")
    first = Assets(tmp_path).version
    (tmp_path / "a.js").write_text("2")
    assert Assets(tmp_path).version != first
    settings = Settings()
    async with (
        listening(Gateway(settings, FakeBackend()), settings) as address,
        httpx2.AsyncClient(base_url=address) as http,
    ):
        static = f"/console/static/{Assets().version}"
        answer = await http.get(f"{static}/app.js")
        assert answer.headers["content-type"].startswith("text/javascript")
        assert answer.headers["cache-control"].endswith("immutable")
        assert answer.headers["access-control-allow-origin"] == "*"  # for frames without an origin
        assert (await http.get("/console/static/old/app.js")).headers["cache-control"] == "no-store"
        for wrong in ("nothing.js", "../app.py", "%2e%2e/app.py", "vendor"):
            assert (await http.get(f"{static}/{wrong}")).status_code == 404
        # Without keys nobody signs in, and there are no keys to show.
        door = await http.get("/", follow_redirects=True)
        assert (door.url.path, "Sign out" in door.text, "/console/keys" in door.text) == ("/console/", False, False)
        assert (await http.post("/", content="x")).json()["error"] == "not_found"


async def test_behind_a_proxy_that_ends_tls_the_public_address_is_the_pages_own(tmp_path: Path) -> None:
    path, [key] = keys_file(tmp_path, "alice")
    public = "https://pod.example"
    settings = Settings(auth=AuthSettings(keys_file=path), links=LinkSettings(public_url=public))
    async with (
        listening(Gateway(settings, FakeBackend()), settings) as address,
        httpx2.AsyncClient(base_url=address, headers={"host": "pod.example", "origin": public}) as http,
    ):
        assert (
            await http.post("/console/sign-in", data={"key": key}, headers={"origin": "http://b"})
        ).status_code == 403
        answer = await http.post("/console/sign-in", data={"key": key})
        cookie = answer.headers["set-cookie"].partition(";")[0]
        assert cookie.startswith("__Host-sandpod=")
        made = await http.post("/api/v1/sandboxes", json={}, headers={"cookie": cookie})
        assert made.status_code == 201
        assert (
            f'<code id="url">{public}/mcp</code>'
            in (await http.get("/console/connect", headers={"cookie": cookie})).text
        )


async def test_a_server_can_have_no_console() -> None:
    settings = Settings(console=ConsoleSettings(enabled=False))
    async with (
        listening(Gateway(settings, FakeBackend()), settings) as address,
        httpx2.AsyncClient(base_url=address) as http,
    ):
        assert [(await http.get(path)).status_code for path in ("/", "/console/", "/console/sign-in")] == [404] * 3
