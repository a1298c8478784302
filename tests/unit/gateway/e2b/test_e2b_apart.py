"""The walls of E2B's API: without a key, with another's, with a token elsewhere, and with what no client sends."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import httpx2
import pytest

from fakes.backend import FakeBackend
from sandpod_gateway.audit.settings import AuditSettings
from sandpod_gateway.e2b.envd.connect import Decoder, envelope
from sandpod_gateway.http import attempts
from sandpod_gateway.settings import E2bSettings
from support.gateway.e2b import place
from support.walk.e2b import CONTROL
from support.walk.e2b import INSIDE as WALKED

MANAGING: Final = sorted(CONTROL)
INSIDE: Final = [
    (method, path.replace("{context}", "c") + ("?path=a" if path == "/files" else "")) for method, path in WALKED
]
DOMAIN: Final = "box.example.com"


def refusal(answer: httpx2.Response) -> dict[str, Any]:
    """Return what an answer refuses with, in whichever form."""
    if answer.headers["content-type"] == "application/connect+json":
        [said] = Decoder().feed(b"\0" + answer.content[1:])  # the end of the stream
        error: dict[str, Any] = json.loads(said)["error"]
        return error
    if answer.headers["content-type"].startswith("text/plain"):
        return {"code": answer.status_code, "message": answer.text}
    return dict(answer.json())


@pytest.mark.promise("key-required", "sandbox-tokens")
async def test_nothing_is_answered_without_a_valid_key_or_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempts, "FREE", 1000)
    async with place(tmp_path) as here:
        sandbox, token = await here.made()
        for method, path in MANAGING:
            for headers in ({}, {"x-api-key": "no"}, {"x-api-key": token}, {"x-access-token": token}):
                answer = await here.send(None, method, path.format(sandbox=sandbox), headers=headers)
                assert (answer.status_code, answer.json()["code"]) == (401, 401), path
        other, others = await here.made("eve")
        for method, path in INSIDE:
            for name, bad in (
                (sandbox, ""),
                (sandbox, others),
                (other, token),
                ("", token),
                (sandbox, here.keys["ann"]),
            ):
                refused = refusal(await here.inside(name, bad, method, path))
                assert refused["code"] in {401, "unauthenticated"}, path
                assert refused["message"] == "A valid API key or token is needed."


@pytest.mark.promise("owners-apart")
async def test_a_list_of_sandboxes_has_the_callers_alone(tmp_path: Path) -> None:
    async with place(tmp_path) as here:
        theirs, _ = await here.made("ann", metadata={"a": "b"})
        assert (await here.send("eve", "GET", "/v2/sandboxes")).json() == []
        [mine] = (await here.send("ann", "GET", "/v2/sandboxes")).json()
        assert (mine["sandboxID"], mine["state"], mine["metadata"]) == (theirs, "running", {"a": "b"})


async def test_a_sandbox_is_kept_as_long_as_is_asked_and_gone_afterwards(tmp_path: Path) -> None:
    async with place(tmp_path) as here:
        sandbox, token = await here.made(timeout=100)

        async def left() -> int:
            found = (await here.send("ann", "GET", f"/sandboxes/{sandbox}")).json()
            start, end = (int(found[name][14:16]) * 60 + int(found[name][17:19]) for name in ("startedAt", "endAt"))
            return (end - start) % 3600

        for path, seconds, ends in (
            ("connect", 50, 100),
            ("timeout", 50, 50),
            ("refreshes", 200, 200),
            ("connect", 300, 300),
        ):
            name = "duration" if path == "refreshes" else "timeout"
            answer = await here.send("ann", "POST", f"/sandboxes/{sandbox}/{path}", json={name: seconds})
            assert answer.status_code in {200, 204}
            assert ends <= await left() <= ends + 5, path
        for body in ({"timeout": 0}, {"timeout": 10**9}, {"timeout": "1"}):
            assert (await here.send("ann", "POST", f"/sandboxes/{sandbox}/timeout", json=body)).status_code == 400
        paused = await here.send("ann", "POST", f"/sandboxes/{sandbox}/pause")
        assert (paused.status_code, "not persistent" in paused.json()["message"]) == (400, True)
        assert (await here.inside(sandbox, token, "GET", "/health")).status_code == 204
        assert (await here.send("ann", "DELETE", f"/sandboxes/{sandbox}")).status_code == 204
        for method, path in INSIDE:
            if not path.endswith(("/Update", "StreamInput", "GetWatcherEvents", "RemoveWatcher")):
                refused = refusal(await here.inside(sandbox, token, method, path))
                assert refused["code"] in {502, "unavailable"}, path
                assert "was not found" in refused["message"]


async def test_a_sandbox_is_paused_and_resumed_by_connect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = FakeBackend()
    async with place(tmp_path, backend) as here:
        sandbox, token = await here.made()
        backend._live[sandbox] = replace(backend._live[sandbox], persistent=True)
        found = (await here.send("ann", "GET", f"/sandboxes/{sandbox}")).json()
        assert found["lifecycle"] == {"onTimeout": "pause", "autoResume": True}
        async with here.streamed(sandbox, token, "/filesystem.Filesystem/WatchDir", {"path": "."}) as watched:
            assert await anext(watched) == {"start": {}}
            monkeypatch.setattr(backend, "touch", None)  # neither a look nor a measurement is a use
            assert len((await here.send("ann", "GET", f"/sandboxes/{sandbox}/metrics")).json()) == 1
            assert (await here.send("ann", "POST", f"/sandboxes/{sandbox}/pause")).status_code == 204
            monkeypatch.undo()
            assert [each["error"]["code"] async for each in watched] == ["failed_precondition"]
        assert backend.wakes == 0
        [listed] = (await here.send("ann", "GET", "/v2/sandboxes", params={"state": "paused"})).json()
        assert (listed["sandboxID"], listed["state"]) == (sandbox, "paused")
        assert (await here.inside(sandbox, token, "GET", "/health")).status_code == 502
        assert (await here.send("ann", "POST", f"/sandboxes/{sandbox}/pause")).status_code == 409
        assert (await here.send("ann", "POST", f"/v2/sandboxes/{sandbox}/connect", json={})).status_code == 201
        assert (await here.inside(sandbox, token, "GET", "/health")).status_code == 204


async def test_a_request_that_is_sent_twice_makes_one_sandbox(tmp_path: Path) -> None:
    async with place(tmp_path) as here:
        keys = ("a-1", "a-1", "b-1", "A")
        made = [await here.send("ann", "POST", "/v2/sandboxes", headers={"idempotency-key": key}) for key in keys]
        names = [each.json().get("sandboxID") for each in made]
        assert (names[0] == names[1] != names[2], made[3].status_code) == (True, 400)


async def test_sandboxes_are_listed_by_pages_and_by_what_is_known_of_them(tmp_path: Path) -> None:
    async with place(tmp_path) as here:
        names = [(await here.made(metadata={"n": str(number), "all": "é&="}))[0] for number in range(3)]
        found, token = [], ""
        while True:
            answer = await here.send("ann", "GET", "/v2/sandboxes", params={"limit": 2, "nextToken": token})
            found.append([each["sandboxID"] for each in answer.json()])
            if not (token := answer.headers.get("x-next-token", "")):
                break
        assert [len(page) for page in found] == [2, 1]
        assert {name for page in found for name in page} == set(names)
        for query, count in (
            *(({"metadata": "n=1"}, 1), ({"metadata": "all=%25C3%25A9%2526%253D"}, 3), ({"metadata": "n=1&all=x"}, 0)),
            *(({"state": "paused"}, 0), ({"state": "running,paused"}, 3), ({"template": "other"}, 0)),
            ({"startedAfter": "2100-01-01T00:00:00Z"}, 0),
        ):
            assert len((await here.send("ann", "GET", "/v2/sandboxes", params=query)).json()) == count, query
        for bad in ({"limit": "0"}, {"limit": "101"}, {"limit": "x"}, {"nextToken": "x"}, {"startedAfter": "x"}):
            assert (await here.send("ann", "GET", "/v2/sandboxes", params=bad)).status_code == 400, bad


async def test_hosts_of_sandboxes_lead_to_them_and_other_ports_to_nothing(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"e2b": E2bSettings(domain=DOMAIN), "allowed_hosts": ["gateway.example.com"]}
    async with place(tmp_path, **settings) as here, httpx2.AsyncClient(base_url=here.address, timeout=60) as http:
        key = {"x-api-key": here.keys["ann"]}
        made = await http.post("/v2/sandboxes", headers={**key, "host": f"api.{DOMAIN}"}, json={})
        sandbox, token = made.json()["sandboxID"], {"x-access-token": made.json()["envdAccessToken"]}
        assert made.json()["domain"] == DOMAIN
        for port, path, status in ((49983, "/health", 204), (49999, "/contexts", 200), (8080, "/health", 501)):
            headers = {**token, "host": f"{port}-{sandbox}.{DOMAIN}", "e2b-sandbox-id": "other"}
            assert (await http.get(path, headers=headers)).status_code == status
        for path in ("/mcp", "/api/v1/sandboxes"):  # which no host of a sandbox leads to
            assert (await http.get(path, headers={**key, "host": f"www.{DOMAIN}"})).status_code == 421
        headers = {**token, "e2b-sandbox-id": sandbox, "host": "evil.example"}
        assert (await http.get("/e2b/health", headers=headers)).status_code == 421
    async with place(tmp_path, e2b=E2bSettings(enabled=False)) as here:
        assert (await here.send("ann", "GET", "/v2/sandboxes")).status_code == 404


async def test_what_cannot_be_had_and_what_no_client_sends_is_refused_in_a_sentence(tmp_path: Path) -> None:
    async with place(tmp_path) as here:
        sandbox, token = await here.made()
        one = f"/sandboxes/{sandbox}"
        for method, path in (
            *(("POST", f"{one}/fork"), ("POST", f"{one}/snapshots"), ("PUT", f"{one}/network"), ("GET", f"{one}/logs")),
            *(("GET", "/snapshots"), ("POST", "/v3/templates"), ("DELETE", "/templates/x"), ("GET", "/secrets")),
        ):
            answer = await here.send("ann", method, path)
            assert (answer.status_code, answer.json()["message"][-1]) == (501, "."), path
        assert (await here.send("ann", "GET", "/nothing")).json()["code"] == 404
        assert (await here.send("ann", "POST", "/sandboxes", content=b"[")).json()["code"] == 400

        basic = {"authorization": "Basic cm9vdDo="}  # root
        terminal, big = envelope({"process": {"cmd": "sh"}, "pty": {}}), b"\0\xff\xff\xff\xff"
        for path, options, code in (
            *(("/process.Process/List", {"headers": basic, "json": {}}, "invalid_argument"),),
            *(("/process.Process/Start", {"headers": basic}, "invalid_argument"),),
            *(("/process.Process/Start", {"content": terminal}, "invalid_argument"),),
            *(("/process.Process/Start", {"content": big}, "resource_exhausted"),),
            *(("/process.Process/Start", {"content": b""}, "invalid_argument"),),
            *(("/process.Process/Start", {"content": envelope({"process": [1]})}, "invalid_argument"),),
            *(("/process.Process/Start", {"content": b"\0\0\0\0\2{]"}, "invalid_argument"),),
            *(("/process.Process/Update", {"json": {}}, "not_found"),),
            *(("/process.Process/SendSignal", {"json": {"process": {"pid": 7}}}, "not_found"),),
            *(
                (
                    "/process.Process/SendInput",
                    {"content": b"x", "headers": {"content-type": "text/x"}},
                    "invalid_argument",
                ),
            ),
            *(("/filesystem.Filesystem/Stat", {"json": {"path": "/etc/passwd"}}, "invalid_argument"),),
            *(("/filesystem.Filesystem/Stat", {"json": {"path": 5}}, "invalid_argument"),),
            *(("/filesystem.Filesystem/ListDir", {"json": {"path": ".", "depth": "x"}}, "invalid_argument"),),
            *(("/filesystem.Filesystem/GetWatcherEvents", {"json": {"watcherId": "x"}}, "not_found"),),
            *(("/process.Process/Nothing", {"json": {}}, "not_found"),),
        ):
            refused = refusal(await here.inside(sandbox, token, "POST", path, **options))
            assert (refused["code"], refused["message"][-1]) == (code, "."), (path, options)
        for method, path, options, status in (
            *(("GET", "/files", {}, 400), ("GET", "/files?path=/etc/x", {}, 400), ("GET", "/files?path=none", {}, 404)),
            ("GET", "/files?path=a&username=root", {}, 400),
            ("POST", "/files?path=a", {"headers": {"x-metadata-a": "b"}}, 501),
            ("POST", "/files?path=a", {"headers": {"content-encoding": "br"}}, 501),
            ("POST", "/files?path=a", {"headers": {"content-encoding": "gzip"}}, 400),
            ("POST", "/files?path=a", {"headers": {"content-type": "text/plain"}}, 400),
            (
                "POST",
                "/files",
                {"headers": {"content-type": "multipart/form-data; boundary=B"}, "content": b"--B"},
                400,
            ),
            ("POST", "/files", {"headers": {"content-type": f"multipart/form-data; boundary={'B' * 300}"}}, 400),
            ("HEAD", "/files?path=none", {"headers": {"content-type": "application/octet-stream"}}, 404),
            ("POST", "/execute", {"json": {"language": "cobol", "code": "1"}}, 400),
            ("POST", "/execute", {"json": {"context_id": "none", "code": "1"}}, 404),
            ("POST", "/contexts", {"json": {"language": "bash"}}, 400),
            ("DELETE", "/contexts/none", {}, 404),
        ):
            answer = await here.inside(sandbox, token, method, path, **options)
            assert answer.status_code == status, (method, path, answer.text)


@pytest.mark.promise("audit-recorded")
async def test_each_act_leaves_a_record(tmp_path: Path) -> None:
    log = tmp_path / "audit"
    async with place(tmp_path, audit=AuditSettings(sink="file", path=log)) as here:
        sandbox, token = await here.made()
        await here.send("ann", "POST", f"/sandboxes/{sandbox}/timeout", json={"timeout": 60})
        await here.inside(sandbox, token, "POST", "/execute", json={"code": "print(1)"})
        await here.inside(sandbox, token, "POST", "/files?path=a")
        await here.inside(sandbox, token, "POST", "/filesystem.Filesystem/ListDir", json={"path": "."})
        await here.send("ann", "DELETE", f"/sandboxes/{sandbox}")
        await here.inside(sandbox, "bad", "GET", "/health")
    records = [json.loads(line) for line in log.read_text().splitlines()]
    told = [
        (each["event"], each.get("tool") or each.get("method"), each.get("outcome"), each.get("user"))
        for each in records
        if each["event"] not in {"start", "stop", "keys"} and each.get("phase") != "begin"
    ]
    assert told == [
        *((("call", name, "ok", "user:ann")) for name in ("create_sandbox", "set_lifetime", "start_run")),
        ("file", "put", "ok", "user:ann"),
        *((("call", name, "ok", "user:ann")) for name in ("list_files", "close_sandbox")),
        ("refused", None, None, None),
    ]


@pytest.mark.promise("audit-recorded")
async def test_every_route_leaves_a_record(tmp_path: Path) -> None:
    log = tmp_path / "audit"
    async with place(tmp_path, audit=AuditSettings(sink="file", path=log)) as here:
        sandbox, token = await here.made()
        for method, path in INSIDE:
            endless = {"content": envelope({"path": "none"})} if path.endswith("WatchDir") else {}
            await here.inside(sandbox, token, method, path, **endless)
        for method, path in sorted(MANAGING, reverse=True):  # the sandbox ends last
            await here.send("ann", method, path.format(sandbox=sandbox))
    acts = [each for each in map(json.loads, log.read_text().splitlines()) if each["event"] in {"call", "file"}]
    counts = Counter(each.get("tool") or each["method"] for each in acts if each["phase"] == "end")
    assert counts == {
        "create_sandbox": 3,
        "list_sandboxes": 2,
        "get_sandbox": 1,
        "get_metrics": 1,
        "close_sandbox": 1,
        "set_lifetime": 2,
        "suspend": 1,
        "connect": 3,
        "get": 1,
        "put": 1,
        "start_run": 3,
        "read_run": 1,
        "list_contexts": 3,
        "list_runs": 7,
        "stat_file": 3,
        "move_file": 1,
        "list_files": 1,
        "delete_file": 1,
        "watch": 2,
    }
