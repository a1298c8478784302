"""What a trace has of a call, by whichever way it came, with the parent of each span; and what no span has."""

import json
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fastmcp import Client

from fakes.backend import FakeBackend
from sandpod_gateway.app import Gateway
from sandpod_gateway.settings import E2bSettings, Settings
from support.gateway.e2b import place as e2b
from support.gateway.peers import ACCEPT, ENVELOPE, HEADERS, INITIALIZE
from support.gateway.server import listening
from support.gateway.team import ONE, team
from support.traces import CLIENT, TRACE, TRACEPARENT, Spans, as_client, recording

SECRET = "hunter2-do-not-tell"


@pytest.fixture
def spans() -> Iterator[Spans]:
    with recording() as seen:
        yield seen


def call(code: str = "print('42')", **meta: str) -> dict[str, Any]:
    params = {"name": "run_python_code", "arguments": {"code": code}, "_meta": {**ENVELOPE, **meta}}
    return {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_a_call_is_one_trace_with_its_client_in_both_eras(spans: Spans, mode: Any) -> None:
    settings = Settings()
    async with (
        listening(Gateway(settings, FakeBackend()), settings) as address,
        Client(f"{address}/mcp", mode=mode) as client,
    ):
        with as_client():
            await client.call_tool("run_python_code", {"code": "print('42')"})
            await client.call_tool("write_file", {"path": "a.txt", "text": "abc"})
    top = "tools/call run_python_code"
    assert spans.path("sandbox.claim")[:2] == ["sandbox.claim", top]
    assert spans.path("sandbox.run")[:2] == ["sandbox.run", top]
    assert spans.path("sandbox.stream")[:3] == ["sandbox.stream", "sandbox.run", top]
    assert spans.path("sandbox.file.write")[:2] == ["sandbox.file.write", "tools/call write_file"]
    assert spans.path("sandbox.stream")[-1] == CLIENT
    tools = [each for each in spans.all() if each.name.startswith(("tools/call", "sandbox."))]
    assert {each.trace for each in tools} == {TRACE}
    assert not any(each.failed for each in tools)
    server, run = spans.one(top), spans.one("sandbox.run")
    assert server.kind == "SERVER"
    assert server.of("mcp.method.name", "gen_ai.tool.name", "gen_ai.operation.name") == (
        "tools/call",
        "run_python_code",
        "execute_tool",
    )
    assert run.of("sandpod.run.language", "sandpod.run.outcome") == ("python", "ok")
    assert run.attributes["sandpod.run.id"].startswith(spans.one("sandbox.claim").attributes["sandpod.sandbox"])
    assert spans.one("sandbox.file.write").attributes["sandpod.file.bytes"] == 3


async def test_the_header_counts_as_the_message_does_and_a_senseless_one_counts_for_nothing(spans: Spans) -> None:
    settings = Settings()
    async with (
        listening(Gateway(settings, FakeBackend()), settings) as address,
        httpx2.AsyncClient(base_url=address, headers=HEADERS) as http,
    ):
        for headers, meta in (
            ({"traceparent": TRACEPARENT}, {}),
            ({}, {"traceparent": TRACEPARENT}),
            ({"traceparent": "00-" + "0" * 32 + "-x"}, {"traceparent": "x" * 10_000}),
            ({"traceparent": TRACEPARENT[:-1] + "0"}, {}),
        ):
            answer = await http.post("/mcp", json=call(**meta), headers=headers)
            assert answer.status_code == 200, answer.text
    of = spans.named("tools/call run_python_code")
    assert [each.parent for each in of] == [CLIENT, CLIENT, None], (
        "the client's decision that its trace is not kept counts"
    )
    assert [each.trace == TRACE for each in of] == [True, True, False]


async def test_a_rest_call_is_in_the_trace_of_its_header_and_its_refusal_has_the_code(spans: Spans) -> None:
    settings = Settings()
    async with (
        listening(Gateway(settings, FakeBackend()), settings) as address,
        httpx2.AsyncClient(base_url=f"{address}/api/v1", headers={"traceparent": TRACEPARENT}) as http,
    ):
        run = await http.post("/runs?tools=all", json={"language": "python", "code": "print(1)"})
        assert run.status_code == 200, run.text
        lost = await http.get(f"/sandboxes/{SECRET}")
        assert lost.status_code == 404, lost.text
        file = await http.put("/sandboxes/default/files/private/plan.txt", content=b"abcd")
        assert file.status_code < 300, file.text
    assert spans.path("sandbox.run") == ["sandbox.run", "tools/call run_python_code", "POST /api/v1/runs", CLIENT]
    server = spans.one("POST /api/v1/runs")
    assert server.of("http.request.method", "http.route", "http.response.status_code") == ("POST", "/api/v1/runs", 200)
    refused = spans.one("tools/call get_sandbox")
    assert refused.failed
    assert refused.of("error.type", "sandpod.error.code") == ("session_not_found", "session_not_found")
    written = spans.one("sandbox.file.write")
    assert written.attributes["sandpod.file.bytes"] == 4
    assert spans.path("sandbox.file.write")[-1] == CLIENT
    assert not any(text in each.text for each in spans.all() for text in (SECRET, "plan.txt", "tools=all"))


async def test_an_e2b_call_is_in_the_trace_of_its_header(spans: Spans, tmp_path: Path) -> None:
    async with e2b(tmp_path) as place:
        sent = {"headers": {"traceparent": TRACEPARENT}}
        made = await place.send("ann", "POST", "/sandboxes", json={"templateID": "base"}, **sent)
        assert made.status_code == 201, made.text
        sandbox, token = made.json()["sandboxID"], made.json()["envdAccessToken"]
        answer = await place.inside(sandbox, token, "POST", "/execute", json={"code": "print(1)"}, **sent)
        assert answer.status_code == 200, answer.text
    assert spans.path("sandbox.claim")[-2:] == ["POST /e2b/sandboxes", CLIENT]
    assert spans.path("sandbox.run")[-2:] == ["POST /e2b/execute", CLIENT]
    assert not any(token in each.text for each in spans.all())


async def test_a_refused_claim_and_a_lost_sandbox_fail_by_their_codes(spans: Spans) -> None:
    backend, settings = FakeBackend(), Settings()
    async with listening(Gateway(settings, backend), settings) as address, Client(f"{address}/mcp") as client:
        for _ in range(settings.local.max_sandboxes_per_owner):
            await client.call_tool("create_sandbox", {})
        await client.call_tool("create_sandbox", {}, raise_on_error=False)
        await client.call_tool("nonsense-" + SECRET, {}, raise_on_error=False)
        await client.call_tool("run_python_code", {"code": SECRET, "timeout": SECRET}, raise_on_error=False)
        await client.call_tool("read_file", {"path": f"../{SECRET}\0"}, raise_on_error=False)
    failed = [each for each in spans.all() if each.failed and each.kind != "CLIENT"]
    assert [each.attributes["error.type"] for each in failed if each.name == "sandbox.claim"] == ["max_sessions"]
    codes = {each.name: each.attributes["error.type"] for each in failed}
    assert codes["tools/call create_sandbox"] == "max_sessions"
    assert codes["tools/call run_python_code"] == "invalid_argument"
    assert codes["tools/call read_file"] == "invalid_path"
    server = [each for each in spans.all() if each.kind == "SERVER"]
    unknown = next(each for each in server if each.name.startswith("tools/call nonsense"))
    assert unknown.failed
    texts = [each.text for each in server if each is not unknown] + [each.text for each in spans.named("sandbox.claim")]
    assert not any(SECRET in text for text in texts)


@pytest.mark.promise("traces-private")
async def test_code_output_input_arguments_paths_and_secrets_are_in_no_span(spans: Spans) -> None:
    settings = Settings()
    async with listening(Gateway(settings, FakeBackend()), settings) as address, Client(f"{address}/mcp") as client:
        secrets = {"TOKEN": SECRET}
        made = await client.call_tool("create_sandbox", {"name": "box", "secrets": secrets}, raise_on_error=False)
        sandbox = (made.structured_content or {})["sandbox"]
        code = f"print('out-{SECRET}'); raise ValueError('{SECRET}')"
        given = {"code": code, "stdin": f"in-{SECRET}", "env": {"OWN": SECRET}, "sandbox": sandbox}
        await client.call_tool("run_python_code", given, raise_on_error=False)
        await client.call_tool("write_file", {"path": f"{SECRET}.txt", "text": SECRET, "sandbox": sandbox})
        await client.read_resource(f"sandpod://sandboxes/{sandbox}/files/{SECRET}.txt")
        await client.call_tool("list_files", {"path": SECRET, "sandbox": sandbox}, raise_on_error=False)
    names = {each.name for each in spans.all()}
    assert {"tools/call run_python_code", "resources/read", "sandbox.file.read", "sandbox.file.list"} <= names
    assert not [each.name for each in spans.all() if SECRET in each.text]
    assert all(len(str(value)) <= 256 for each in spans.all() for value in each.attributes.values())


async def test_what_a_client_chooses_as_a_name_is_bounded_and_of_a_known_form(spans: Spans) -> None:
    settings = Settings()
    async with (
        listening(Gateway(settings, FakeBackend()), settings) as address,
        httpx2.AsyncClient(base_url=address, headers=HEADERS) as http,
    ):
        body = call()
        body["params"]["name"] = name = f"a tool: {SECRET}"
        await http.post("/mcp", json=body, headers={"mcp-name": name})
        body["method"] = "no method/" + "x" * 500
        await http.post("/mcp", json=body, headers={"mcp-method": body["method"]})
    names = {each.name for each in spans.all()}
    assert {"tools/call"} <= names <= {"tools/call", "unknown"}
    assert not any(SECRET in each.text for each in spans.all())


async def test_a_call_that_arrives_at_another_gateway_is_one_trace_over_both(
    spans: Spans, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with team(monkeypatch) as made, AsyncExitStack() as stack:
        one, other = await made.both()
        here, there = [
            await stack.enter_async_context(httpx2.AsyncClient(base_url=each.address, headers=ACCEPT, timeout=60))
            for each in (one, other)
        ]
        session = (await here.post("/mcp", json=INITIALIZE)).headers["mcp-session-id"]
        old = {"mcp-session-id": session, "mcp-protocol-version": "2025-11-25"}
        answer = await there.post("/mcp", json=call(), headers={**old, "traceparent": TRACEPARENT})
        assert "42" in answer.text, answer.text
        assert other.passed_on() == 1
        await there.post("/mcp", json=call("print(1)", traceparent=TRACEPARENT), headers=old)
        # It goes on, and is the trace's, where the gateway that had the session is gone.
        await one.end()
        made.ready.remove(ONE)
        await other.gateway._peers.refresh()
        answer = await there.post("/mcp", json=call("print(2)", traceparent=TRACEPARENT), headers=old)
        assert '"isError":true' not in answer.text
    passed = spans.one("gateway.pass_on")
    assert (passed.parent, passed.kind) == (CLIENT, "CLIENT")
    parents = [each.parent for each in spans.named("tools/call run_python_code")]
    assert parents == [passed.id, CLIENT, CLIENT]
    assert {each.trace for each in spans.named("sandbox.run")} == {TRACE}


async def test_nothing_is_recorded_without_traces(caplog: pytest.LogCaptureFixture) -> None:
    settings = Settings(e2b=E2bSettings())
    async with (
        listening(Gateway(settings, FakeBackend()), settings) as address,
        httpx2.AsyncClient(base_url=address, headers=HEADERS) as http,
    ):
        answer = await http.post("/mcp", json=call(traceparent=TRACEPARENT), headers={"traceparent": TRACEPARENT})
        assert json.loads(answer.text)["result"]["structuredContent"]["stdout"] == "42\n"
    assert not [each for each in caplog.records if each.levelname != "INFO"]
