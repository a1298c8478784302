"""Traces of a server as a collector gets them by OTLP, the log that goes with them, and what is there without them."""

import asyncio
import json
import sys
from pathlib import Path

import httpx2
import pytest
from fastmcp import Client

from support.cluster.server import serving
from support.gateway.served import LOCAL
from support.traces import CLIENT, TRACE, TRACEPARENT, as_client, collector

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.needs_userns]

SECRET = "hunter2-do-not-tell"
RUN = "tools/call run_python_code"


@pytest.mark.promise("traces-private", "traces-harmless")
async def test_calls_of_a_real_client_arrive_at_a_collector_as_its_trace(tmp_path: Path) -> None:
    log = tmp_path / "log"
    both = ("bash", "-c", f'exec "$@" 2> >(tee {log} >&2)', "bash")
    with collector() as here:
        # A busy machine may take long to answer, and what takes too long is lost.
        otlp = {"ENDPOINT": here.address, "HEADERS": "x-who=me", "TIMEOUT": "60"}
        env = ("env", *(f"OTEL_EXPORTER_OTLP_{name}={value}" for name, value in otlp.items()))
        async with (
            serving(*LOCAL, "--log-format=json", prefix=(*env, *both)) as (url, _),
            Client(url) as client,
            httpx2.AsyncClient(base_url=url.removesuffix("/mcp"), timeout=60) as http,
        ):
            with as_client():
                given = {"code": f"print('{SECRET}')", "env": {"TOKEN": SECRET}}
                answer = await client.call_tool("run_python_code", given)
                await client.call_tool("write_file", {"path": f"{SECRET}.txt", "text": SECRET})
                await client.call_tool("get_sandbox", {"sandbox": SECRET}, raise_on_error=False)
            made = await http.post(
                "/api/v1/runs", json={"language": "python", "code": "1"}, headers={"traceparent": TRACEPARENT}
            )
            assert made.status_code == 200, made.text
            spans = await here.until("tools/call get_sandbox", "tools/call write_file", "POST /api/v1/runs")
            # A collector that hangs holds up no call, nor the end of the server.
            here.gate.clear()
            asked = here.asked
            await client.call_tool("list_files", {})
            while here.asked == asked:  # noqa: ASYNC110 - a thread is asked
                await asyncio.sleep(0.02)
            again = await client.call_tool("run_python_code", {"code": "print(6 * 7)"})
            assert (again.structured_content or {})["stdout"] == "42\n"
    run = (answer.structured_content or {})["run_id"]
    first = spans.one(RUN, CLIENT)
    of = {each.name: each for each in spans.all() if each.parent == first.id}
    assert of.keys() == {"sandbox.claim", "sandbox.run"}
    assert of["sandbox.claim"].attributes["sandpod.claim.origin"] == "cold"
    assert of["sandbox.run"].of("sandpod.run.id", "sandpod.run.outcome") == (run, "ok")
    stream = spans.one("sandbox.stream")
    assert stream.parent == of["sandbox.run"].id
    assert spans.path("sandbox.file.write") == ["sandbox.file.write", "tools/call write_file", CLIENT]
    refused = spans.one("tools/call get_sandbox")
    assert (refused.failed, refused.attributes["error.type"]) == (True, "session_not_found")
    server = spans.one("POST /api/v1/runs")
    assert (server.parent, server.attributes["http.response.status_code"]) == (CLIENT, 200)
    assert server.id in {each.parent for each in spans.named(RUN)}
    assert {each.trace for each in spans.all() if each.name.startswith(("sandbox.", "tools/call", "POST"))} == {TRACE}
    assert {each.service for each in spans.all()} == {"sandpod-gateway"}
    assert here.headers[0]["x-who"] == "me"
    assert not any(SECRET in each.text for each in spans.all())
    lines = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
    line = next(each for each in lines if each["message"].startswith(f"run {run} ended"))
    known = {name: line.get(name) for name in ("trace_id", "span_id", "owner", "sandbox", "run")}
    ids = {"trace_id": TRACE, "span_id": of["sandbox.run"].id}
    assert known == {**ids, "owner": "local", "sandbox": run.partition(".")[0], "run": run}


async def test_without_a_collector_nothing_that_sends_is_loaded() -> None:
    program = """
import asyncio, sys
from sandpod_gateway.app import Gateway
from sandpod_gateway.backends.factory import create_backend
from sandpod_gateway.cli import serve
from sandpod_gateway.settings import load
settings = load([], config=None, program="sandpod serve")
serve.configure_logs(settings)
with serve._traces(settings.traces):
    Gateway(settings, create_backend("local", local=settings.local)).http_app()
import sandpod_operator.__main__, sandpod_operator.manager.manager, sandpod_operator.controllers.traces
loaded = [name for name in sys.modules if name.startswith(("opentelemetry.sdk", "opentelemetry.exporter",
    "opentelemetry.proto", "google.protobuf", "starlette.middleware.opentelemetry", "sandpod_telemetry.export",
    "sandpod_telemetry.recorder"))]
print(loaded)
"""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    assert (await process.communicate())[0] == b"[]\n"
