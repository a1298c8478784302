"""What callers do leaves records: over a whole gateway with a fake backend."""

import asyncio
import base64
import contextlib
import os
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fastmcp import Client
from fastmcp.client.transports import StreamableHttpTransport
from mcp.shared.exceptions import MCPError
from starlette.routing import Mount, Route

from fakes.backend import FakeBackend
from sandpod_gateway.app import Gateway
from sandpod_gateway.audit import counts, log
from sandpod_gateway.audit.settings import AuditSettings
from sandpod_gateway.auth.api_keys import KeyFile, make_key
from sandpod_gateway.auth.key_changes import MAX_NAMED, KeyChanges
from sandpod_gateway.auth.key_file import read_keys
from sandpod_gateway.auth.oidc.settings import OidcSettings
from sandpod_gateway.backends.first_use import FirstUse
from sandpod_gateway.backends.tenants import TenantBackend
from sandpod_gateway.cli import serve
from sandpod_gateway.errors import StartError
from sandpod_gateway.mcp.compat.settings import CompatSettings
from sandpod_gateway.settings import AuthSettings, LinkSettings, Settings
from support.gateway.fake_gateway import keys_file
from support.gateway.peers import INITIALIZE, PATIENCE, until
from support.gateway.server import listening
from unit.gateway.audit.test_writing import files_of_at_most, records_of
from unit.gateway.backends.test_first_use import Part, Source

WRITTEN = {"sink": "file", "result": "written"}
SECRET = "hunter2-is-in-no-record"


def settings_for(folder: Path, *, required: bool = False, **others: Any) -> Settings:
    return Settings(audit=AuditSettings(sink="file", path=folder / "audit.jsonl", required=required), **others)


@asynccontextmanager
async def calling(gateway: Gateway) -> AsyncIterator[Client[Any]]:
    async with gateway.running(), Client(gateway.mcp) as client:
        yield client


async def call(client: Client[Any], tool: str, **arguments: Any) -> dict[str, Any]:
    result = await client.call_tool(tool, arguments, raise_on_error=False)
    assert isinstance(result.structured_content, dict)
    return result.structured_content


def acts_in(folder: Path) -> list[dict[str, Any]]:
    return [record for record in records_of(folder / "audit.jsonl") if "id" in record]


@pytest.mark.promise("audit-recorded")
async def test_every_tool_and_resource_there_is_leaves_a_record(tmp_path: Path) -> None:
    systems = CompatSettings(systems=["philschmid", "johanli233", "chrishayuk", "gaiar"])
    gateway = Gateway(settings_for(tmp_path, tools=["all"], compat=systems), FakeBackend())
    async with calling(gateway) as client:
        tools = [tool.name for tool in await client.list_tools()]
        uris = [str(each.uri) for each in await client.list_resources()]
        uris += [each.uri_template.partition("{")[0] + "a/b" for each in await client.list_resource_templates()]
        for tool in tools:
            await client.call_tool(tool, {}, raise_on_error=False)
        for uri in uris:
            with contextlib.suppress(MCPError):  # there is no such file
                await client.read_resource(uri)
        theirs = {"sandbox_id": "none", "code": "1"}
        await client.call_tool("execute_python_code", theirs, raise_on_error=False)
    *acts, refused = acts_in(tmp_path)
    assert (refused["outcome"], refused["error"]) == ("refused", "session_not_found"), "whatever form the answer has"
    assert len(tools) > 50
    assert [act["tool"] for act in acts if act["event"] == "call"] == tools
    assert [act["uri"] for act in acts if act["event"] == "read"] == uris
    assert {act["outcome"] for act in acts} == {"ok", "refused"}
    assert [act for act in acts if act["outcome"] == "refused" and "error" not in act] == []


SIGN_IN = {"/authorize", "/token", "/register", "/revoke", "/auth/callback", "/consent"}
RESOURCE = "/.well-known/oauth-protected-resource"
WELL_KNOWN = {"/.well-known/oauth-authorization-server", RESOURCE, f"{RESOURCE}/mcp"}


@pytest.mark.parametrize("signs_in", [False, True])
async def test_every_route_leaves_records_but_for_probes_and_what_tells_where_to_sign_in(
    tmp_path: Path, *, signs_in: bool
) -> None:
    settings = settings_for(tmp_path)
    if signs_in:
        links = LinkSettings(public_url="http://localhost:1")
        settings = settings.model_copy(update={"auth": AuthSettings(oidc=proxied(tmp_path)), "links": links})
    routes = Gateway(settings, FakeBackend()).http_app().routes
    with_log = re.compile("(Link|SignIn)Audit")
    audited = {each.path for each in routes if isinstance(each, Route) and with_log.search(repr(each.app))}
    files = {"/files/{sandbox}/{path:path}", "/archives/{sandbox}.tar.gz", "/archives/{sandbox}.zip"}
    assert audited == (files | SIGN_IN if signs_in else files)
    others = {each.path for each in routes if not (isinstance(each, Route) and each.path in audited)}  # type: ignore[attr-defined]
    # Each operation of the REST API and of E2B's has its own test, and so have the console's pages.
    faces = {"/api/v1", "/e2b", "/", "/console", "/console/static/{version}/{path:path}", ""}
    assert others == {"/healthz", "/readyz"} | faces | (WELL_KNOWN if signs_in else {"/metrics"})
    assert isinstance(routes[-1], Mount), "the transports, which count what they refuse"


def proxied(folder: Path) -> OidcSettings:
    (folder / "secret").write_text("secret-of-the-client")
    own = {"client_id": "sandpod", "client_secret_file": folder / "secret", "proxy": {}}
    return OidcSettings.model_validate({"issuer": "https://login.example.com", **own})


@pytest.mark.promise("audit-secrets")
async def test_record_says_who_did_what_and_holds_no_secret(tmp_path: Path) -> None:
    gateway = Gateway(settings_for(tmp_path), FakeBackend())
    code = f"print('{SECRET}')"
    async with calling(gateway) as client:
        secrets = {"env": {"A": SECRET}, "stdin": SECRET, "args": [SECRET]}
        run = await call(client, "run_python_code", code=code, **secrets)
        await call(client, "write_file", path="d/" * 150 + "a", text=SECRET)
        await call(client, "read_file", path="none.txt", sandbox=run["sandbox"])
        await call(client, "run_python_code", source_code="import sys; sys.exit(3)")
        await call(client, "start_run", code="print(1)", timeout=SECRET)
        await client.call_tool("no_such_tool", {"code": "1"}, raise_on_error=False)
    ran, wrote, read, failed, invalid, unknown = acts_in(tmp_path)
    assert SECRET not in (tmp_path / "audit.jsonl").read_text("utf-8")
    assert "role" not in ran, "the usual one"
    expected = {"event": "call", "phase": "end", "id": 1, "user": "local", "key": "none", "from": "stdio"}
    expected |= {"tool": "run_python_code", "sandbox": run["sandbox"], "run_id": run["run_id"], "template": "default"}
    expected |= {"language": "python", "outcome": "ok", "run_outcome": "ok", "code_bytes": len(code)}
    expected |= {"code_sha256": sha256(code.encode()).hexdigest(), "bytes_in": len(code) + 3 * len(SECRET)}
    assert {name: ran.get(name) for name in expected} == expected
    assert ran["bytes_out"] >= len(SECRET)
    assert ran["duration_ms"] >= 0
    assert datetime.fromisoformat(ran["time"]).tzinfo is UTC
    assert (wrote["parameters"]["path"], wrote["outcome"]) == ("d/" * 128 + "…", "ok")
    assert (read["sandbox"], read["outcome"], read["error"]) == (run["sandbox"], "refused", "not_found")
    assert (failed["outcome"], failed["run_outcome"], failed["code_bytes"]) == ("ok", "error", 23), "another name of it"
    assert (invalid["outcome"], invalid["error"]) == ("refused", "invalid_argument")
    assert (unknown["tool"], unknown["outcome"]) == ("no_such_tool", "refused")


@pytest.mark.promise("audit-secrets")
@pytest.mark.parametrize("required", [False, True])
async def test_secrets_of_a_sandbox_are_masked_in_what_is_recorded_of_its_calls(
    tmp_path: Path, *, required: bool
) -> None:
    audit = AuditSettings(sink="file", path=tmp_path / "audit.jsonl", code="body", required=required)
    gateway = Gateway(Settings(audit=audit), FakeBackend())
    async with calling(gateway) as client:
        given = await call(client, "create_sandbox", secrets={"TOKEN": SECRET})
        await call(client, "run_python_code", code=f"print('{SECRET}')", sandbox=given["sandbox"])
        await call(client, "read_file", path=f"{SECRET}.txt", sandbox=given["sandbox"])
    *_, ran, read = [act for act in acts_in(tmp_path) if act["phase"] == "end"]
    assert SECRET not in (tmp_path / "audit.jsonl").read_text("utf-8")
    assert (ran["code"], ran["code_bytes"]) == ("print('[secret TOKEN]')", len(SECRET) + 9)
    assert read["parameters"] == {"path": "[secret TOKEN].txt"}


async def test_call_that_is_cancelled_has_a_record(tmp_path: Path) -> None:
    backend = FakeBackend()
    gateway = Gateway(settings_for(tmp_path), backend)
    async with calling(gateway) as client:
        task = asyncio.create_task(client.call_tool("run_python_code", {"code": "import time\ntime.sleep(600)"}))
        await until(lambda: len(backend.launcher.cells) == 1 and len(backend.launcher.cells[0].runner.runs) == 1)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await until(lambda: '"cancelled"' in (tmp_path / "audit.jsonl").read_text("utf-8"))
    [act] = acts_in(tmp_path)
    assert (act["outcome"], act["run_outcome"]) == ("cancelled", "cancelled")


@pytest.mark.promise("audit-required")
async def test_nothing_is_done_while_a_required_record_can_not_be_written(tmp_path: Path) -> None:
    backend, file = FakeBackend(), tmp_path / "audit.jsonl"
    gateway = Gateway(settings_for(tmp_path, required=True), backend)
    async with calling(gateway) as client:
        with files_of_at_most(file.stat().st_size + 100):
            answer = await call(client, "run_python_code", code="print(1)")
            assert (answer["error"], answer["message"][:17]) == ("backend_unavailable", "Nothing was done:")
            with pytest.raises(Exception, match="backend_unavailable: Nothing was done"):
                await client.read_resource("sandpod://capabilities")
            assert backend.launcher.cells == []
            lost = partial(gateway.metrics.registry.get_sample_value, "sandpod_audit_records_total")
            await until(lambda: lost({"sink": "file", "result": "lost"}) == 4)
        assert (await call(client, "run_python_code", code="print(1)"))["stdout"] == "1\n"
    records = records_of(file)
    assert [each["event"] for each in records] == ["start", "lost", "call", "call", "stop"]
    _, told, begin, end, _ = records
    assert told["count"] == 4, "beginning and end of two calls"
    assert (begin["phase"], end["phase"], begin["id"] == end["id"]) == ("begin", "end", True)
    assert "outcome" not in begin
    assert begin["code_bytes"] == 8
    assert (end["code_bytes"], end["code_sha256"]) == (8, begin["code_sha256"])


@contextmanager
def standard_output_in(file: Path) -> Iterator[None]:
    """Put what this process writes to standard output into a file; a pipe is between, which has no limit of size."""
    reader, writer = os.pipe()
    kept = os.dup(1)
    os.dup2(writer, 1)
    os.close(writer)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        with os.fdopen(reader, "rb") as rest:
            file.write_bytes(rest.read())


@pytest.mark.promise("audit-recorded", "audit-required")
async def test_both_places_get_each_record_in_a_chain_of_their_own_and_one_that_fails_refuses_the_call(
    tmp_path: Path,
) -> None:
    places = [tmp_path / "audit.jsonl", tmp_path / "stdout"]
    audit = AuditSettings(sink="both", path=places[0], required=True)
    backend = FakeBackend()
    gateway = Gateway(Settings(audit=audit), backend)
    with standard_output_in(places[1]):
        async with calling(gateway) as client:
            with files_of_at_most(places[0].stat().st_size + 100):
                assert (await call(client, "run_python_code", code="print(1)"))["error"] == "backend_unavailable"
                assert backend.launcher.cells == []
                lost = partial(gateway.metrics.registry.get_sample_value, "sandpod_audit_records_total")
                await until(lambda: lost({"sink": "file", "result": "lost"}) == 2)
            assert (await call(client, "run_python_code", code="print(1)"))["stdout"] == "1\n"
        assert [lost({"sink": sink, "result": "lost"}) for sink in ("file", "stdout")] == [2, 0]
    of_file, of_output = map(records_of, places)
    assert [each["event"] for each in of_file] == ["start", "lost", "call", "call", "stop"]
    assert [each["event"] for each in of_output] == ["start", *["call"] * 4, "stop"]
    same = [
        [(each["id"], each["phase"], each.get("outcome")) for each in of if each["event"] == "call"]
        for of in (of_file, of_output)
    ]
    assert same[0] == same[1][2:] == [(2, "begin", None), (2, "end", "ok")]
    assert same[1][:2] == [(1, "begin", None), (1, "end", "refused")], "this one says what the file could not"


@pytest.mark.promise("audit-required")
async def test_call_waits_no_longer_than_it_must_for_a_disk_that_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "WAIT_SECONDS", 0.01)
    monkeypatch.setattr("sandpod_gateway.audit.writer.Writer.submit", lambda *_: None)
    gateway = Gateway(settings_for(tmp_path, required=True), FakeBackend())
    async with calling(gateway) as client:
        assert (await call(client, "run_python_code", code="print(1)"))["error"] == "backend_unavailable"


async def test_server_does_not_start_without_its_audit_log(tmp_path: Path) -> None:
    gateway = Gateway(settings_for(tmp_path / "none"), FakeBackend())
    with pytest.raises(StartError, match=r"Audit records can't be written to .*audit\.jsonl\.") as refused:
        async with gateway.running():
            pass
    assert refused.value.cause == "No such file or directory"


async def test_server_without_an_audit_log_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    gateway = Gateway(Settings(), FakeBackend())
    async with calling(gateway) as client:
        await call(client, "run_python_code", code="print(1)")
    assert not (tmp_path / "audit.jsonl").exists()
    assert gateway.metrics.registry.get_sample_value("sandpod_audit_records_total", WRITTEN) == 0


@pytest.mark.promise("audit-recorded", "audit-bounded")
async def test_over_http_keys_addresses_links_and_refusals_are_recorded(tmp_path: Path) -> None:
    path, [key, _] = keys_file(tmp_path, "alice", "bob")
    settings = settings_for(tmp_path, auth=AuthSettings(keys_file=path))
    gateway = Gateway(settings, FakeBackend())
    async with listening(gateway, settings) as address, httpx2.AsyncClient(base_url=address) as http:
        transport = StreamableHttpTransport(f"{address}/mcp", headers={"authorization": f"Bearer {key}"})
        async with Client(transport) as client:
            sandbox = (await call(client, "write_file", path="a.txt", text="12345"))["sandbox"]
            down = (await call(client, "create_link", path="a.txt"))["url"]
            up = (await call(client, "create_link", path="b.txt", method="put"))["url"]
        assert (await http.get(down)).text == "12345"
        assert (await http.put(up, content=b"x" * 70_000)).status_code == 201
        assert (await http.get(down.replace("a.txt", "c.txt"))).status_code == 403
        for _ in range(8):
            assert (await http.post("/mcp", json=INITIALIZE)).status_code == 401
        assert (await http.get("/nothing")).status_code == 404
        assert (await http.post("/mcp", json={}, headers={"x-api-key": key})).status_code == 400
    entry = read_keys(path).keys[0]
    records = records_of(tmp_path / "audit.jsonl")
    acts = [record for record in records if "id" in record]
    assert {(act["user"], act["from"]) for act in acts} == {("user:alice", "127.0.0.1")}
    assert [act["key"] for act in acts] == [entry.id] * 3 + ["link"] * 2
    got, put = acts[3:]
    assert (got["method"], got["path"], got["sandbox"], got["bytes_out"]) == ("get", "a.txt", sandbox, 5)
    assert (put["method"], put["path"], put["bytes_in"], put["outcome"], put["status"]) == (
        "put",
        "b.txt",
        70_000,
        "ok",
        201,
    )
    refused = [record for record in records if record["event"] == "refused"]
    found = sorted((each["status"], each.get("user"), each["count"], each["from"]) for each in refused)
    assert [each[:3] for each in found] == [
        *((400, "user:alice", 1), (401, None, 1), (401, None, 7), (403, None, 1), (404, None, 1)),
    ]
    text = (tmp_path / "audit.jsonl").read_text("utf-8")
    assert key not in text
    assert down.partition("token=")[2] not in text
    assert base64.b64encode(key.encode()).decode() not in text


@pytest.mark.promise("audit-bounded")
def test_refusals_without_number_are_a_bounded_number_of_records() -> None:
    written: list[dict[str, Any]] = []
    counted = counts.Counts(written.append)
    for number in range(100_000):
        counted.add("sign_in" if number % 4 else "refused", address=f"10.0.{number % 201}.1", status=401)
    counted.flush()
    assert sum(record["count"] for record in written) == 100_000
    assert sum(record["count"] for record in written if record["event"] == "refused") == 25_000
    assert len(written) <= 2 * counts.MAX_KINDS + 2
    counted.flush()
    assert sum(record["count"] for record in written) == 100_000


def test_changes_of_keys_are_recorded_with_their_ids() -> None:
    now = datetime.now(UTC)
    entries = [make_key(user=f"u{number}", name="n", days=None, now=now)[1] for number in range(3)]
    changes = KeyChanges()
    first = changes.facts(KeyFile(keys=entries[:2]))
    assert first is not None
    assert first.keys() == {"keys", "keys_sha256"}
    assert changes.facts(KeyFile(keys=[entries[1], entries[0]])) is None, "in another order"
    ending = entries[1].model_copy(update={"expires": now + timedelta(hours=1)})
    facts = changes.facts(KeyFile(keys=[ending, entries[2]]))
    assert facts is not None
    lists = {name: value for name, value in facts.items() if isinstance(value, list)}
    named = {name: [(each["id"], each["user"]) for each in value] for name, value in lists.items()}
    assert named == {
        "keys_added": [(entries[2].id, "u2")],
        "keys_removed": [(entries[0].id, "u0")],
        "keys_changed": [(ending.id, "u1")],
    }
    many = [make_key(user="u", name="n", days=None, now=now)[1] for _ in range(2 * MAX_NAMED)]
    facts = changes.facts(KeyFile(keys=many))
    assert facts is not None
    assert (len(facts["keys_added"]), facts["keys_added_count"]) == (MAX_NAMED, 2 * MAX_NAMED)


@pytest.mark.promise("audit-recorded")
async def test_tenant_that_is_made_on_first_use_and_the_role_of_its_caller_are_recorded(tmp_path: Path) -> None:
    now, scopes = datetime.now(UTC), {"tenant": "red", "role": "admin"}
    key, entry = make_key(user="alice", name="n", days=None, now=now, **scopes)
    path = tmp_path / "keys.yaml"
    path.write_bytes(KeyFile(keys=[entry]).dump())
    settings = settings_for(tmp_path, auth=AuthSettings(keys_file=path))
    tenants = FirstUse(Source(), lambda _: Part(), timeout=PATIENCE, limit=10)
    gateway = Gateway(settings, TenantBackend(FakeBackend(), first_use=tenants))
    async with listening(gateway, settings) as address:
        transport = StreamableHttpTransport(f"{address}/mcp", headers={"authorization": f"Bearer {key}"})
        async with Client(transport) as client:
            for _ in range(2):
                assert (await call(client, "run_python_code", code="print(1)"))["outcome"] == "ok"
    records = records_of(tmp_path / "audit.jsonl")
    [made] = [record for record in records if record["event"] == "tenant"]
    assert (made["tenant"], made["user"]) == ("red", "tenant:red:user:alice")
    calls = [record for record in records if record["event"] == "call"]
    assert [(each["user"], each["role"]) for each in calls] == [(made["user"], "admin")] * 2


async def test_change_of_a_key_file_is_recorded(tmp_path: Path) -> None:
    path, _ = keys_file(tmp_path, "alice")
    gateway = Gateway(settings_for(tmp_path, auth=AuthSettings(keys_file=path)), FakeBackend())
    async with gateway.running():
        gateway._use_keys(KeyFile())
        gateway._use_keys(read_keys(path))
    records = [record for record in records_of(tmp_path / "audit.jsonl") if record["event"] == "keys"]
    assert [record["keys"] for record in records] == [1, 0, 1]
    assert (records[1]["keys_removed_count"], records[2]["keys_added_count"]) == (1, 1)


def test_server_over_standard_output_is_refused_where_records_would_go_there() -> None:
    with pytest.raises(StartError, match="the protocol is there"):
        serve.run(Settings(audit=AuditSettings(sink="stdout")), over_stdio=True)
