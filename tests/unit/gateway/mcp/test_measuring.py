"""What is counted of calls and requests, and that no caller can make series."""

from http import HTTPStatus

import httpx2
import pytest
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from sandpod_gateway.http.measuring import MeasuredRequests
from sandpod_gateway.metrics import Metrics, face
from sandpod_gateway.middleware import FACES
from support.gateway.fake_gateway import ERAS, Caller, Place
from support.gateway.series import series


@ERAS
@pytest.mark.promise("fixed-labels")
async def test_a_flood_of_invented_names_makes_no_series(alice: Caller, place: Place) -> None:
    async def invent(number: int) -> None:
        await alice.client.call_tool(f"tool{number}", {}, raise_on_error=False)
        with pytest.raises(Exception, match=r"(?i)resource|not found|unknown"):
            await alice.client.read_resource(f"sandpod://made/up/{number}")
        for wish in ({"language": f"lang{number}"}, {"sandbox": f"sbx-{number}"}):
            await alice.call("start_run", code="1", **wish)
        await alice.call("create_sandbox", template=f"template{number}", network=f"net{number}")

    await invent(0)
    before = series(place.gateway.metrics.registry)
    for number in range(1, 30):
        await invent(number)
    # What a sandbox uses is counted as its time goes on.
    new = {labels for _, labels in series(place.gateway.metrics.registry) - before}
    assert new <= {str({"tenant": ""})}
    labels = {v for f in place.gateway.metrics.registry.collect() for s in f.samples for v in s.labels.values()}
    assert not {label for label in labels if "29" in label}


@ERAS
async def test_calls_are_counted_and_timed_by_tool_and_error(alice: Caller, place: Place) -> None:
    await alice.python("print(1)")
    await alice.call("read_file", path="none.txt")
    call = {"mcp_method_name": "tools/call"}
    name = "mcp_server_operation_duration_seconds_count"
    assert place.metric(name, **call, gen_ai_tool_name="run_python_code", error_type="") == 1
    assert place.metric(name, **call, gen_ai_tool_name="read_file", error_type="tool_error") == 1
    assert place.metric("sandpod_tool_calls_total", tool="run_python_code", face="mcp", code="ok") == 1
    assert place.metric("sandpod_tool_calls_total", tool="read_file", face="mcp", code="not_found") == 1
    assert place.metric("sandpod_claims_total", how="cold", code="") == 1
    assert place.metric("sandpod_streams_total", event="opened") == 1
    await alice.python("print(2)")
    assert place.metric("sandpod_claim_seconds_count", how="cold") == 1


async def test_requests_are_counted_by_the_way_in_and_never_by_what_a_caller_invents() -> None:
    metrics = Metrics()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/files/broken":
            raise ConnectionResetError
        await PlainTextResponse(face.get(), status_code=HTTPStatus.ACCEPTED)(scope, receive, send)

    measured = MeasuredRequests(app, metrics, FACES)
    ways = {
        "/mcp": "mcp",
        "/mcp/core": "mcp",
        "/messages/x": "mcp",
        "/api/v1/sandboxes": "rest",
        "/api/v2": "other",
        "/": "console",
        "/console/runs": "console",
        "/e2b/x": "e2b",
        "/archives/a": "files",
        "/readyz": "health",
        "/.well-known/a": "sign_in",
        "/token": "sign_in",
    }
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(measured), base_url="http://t") as client:
        for path, way in ways.items():
            assert (await client.get(path)).text == way, path
        with pytest.raises(ConnectionResetError):
            await client.get("/files/broken")
        value, name = metrics.registry.get_sample_value, "http_server_request_duration_seconds_count"
        labels = {"face": "mcp", "http_request_method": "GET", "http_response_status_code": "202"}
        assert value(name, labels) == 3
        assert value(name, {**labels, "face": "files", "http_response_status_code": ""}) == 1
        assert value("http_server_active_requests", {"face": "mcp"}) == 0
        await client.request("PAINT0", "/made0")
        before = series(metrics.registry)
        for number in range(1, 50):
            await client.request(f"PAINT{number}", f"/made{number}/up")
        assert series(metrics.registry) - before == set()
