"""What clients say first, in the forms in which they say it, and how it is answered."""

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from fakes.backend import FakeBackend
from sandpod_gateway.app import Gateway
from sandpod_gateway.settings import Settings
from support.gateway.peers import ACCEPT, ENVELOPE, HEADERS, INITIALIZE, PING
from support.gateway.server import listening

LIST = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
SLOWLY = "import time\nfor i in range(5):\n    print(i)\n    time.sleep(0.06)"
RUN = {
    "jsonrpc": "2.0",
    "id": 5,
    "method": "tools/call",
    "params": {"name": "run_python_code", "arguments": {"code": SLOWLY}, "_meta": {"progressToken": 7}},
}


@pytest.fixture
async def http() -> AsyncIterator[httpx2.AsyncClient]:
    settings = Settings()
    async with (
        listening(Gateway(settings, FakeBackend()), settings) as address,
        httpx2.AsyncClient(base_url=address) as client,
    ):
        del client.headers["accept"]
        yield client


@pytest.fixture
async def session(http: httpx2.AsyncClient) -> dict[str, str]:
    answer = await http.post("/mcp", json=INITIALIZE, headers=ACCEPT)
    return {"mcp-session-id": answer.headers["mcp-session-id"], "mcp-protocol-version": "2025-11-25"}


def message_of(answer: httpx2.Response) -> Any:
    if answer.headers["content-type"].startswith("text/event-stream"):
        return json.loads(answer.text.rpartition("data: ")[2])
    return answer.json()


async def test_initialize_with_the_id_of_an_ended_session_begins_a_new_one(http: httpx2.AsyncClient) -> None:
    stale = {**ACCEPT, "mcp-session-id": "0123dead"}
    answer = await http.post("/mcp", json=INITIALIZE, headers=stale)
    assert answer.status_code == 200
    assert answer.headers["mcp-session-id"] != "0123dead"
    refused = await http.post("/mcp", json=LIST, headers=stale)
    assert (refused.status_code, refused.json()["error"]["message"]) == (404, "Session not found")


async def test_notification_is_accepted_without_a_body(http: httpx2.AsyncClient, session: dict[str, str]) -> None:
    note = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    answer = await http.post("/mcp", json=note, headers={**ACCEPT, **session})
    assert (answer.status_code, answer.content) == (202, b"")


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("application/json", "application/json"),
        ("application/*", "application/json"),
        ("*/*", "application/json"),
        (None, "application/json"),
        ("application/json, text/event-stream", "text/event-stream"),
        ("text/event-stream, */*", "text/event-stream"),
    ],
)
async def test_answer_has_a_type_that_was_asked_for(http: httpx2.AsyncClient, accept: str | None, kind: str) -> None:
    headers = {"accept": accept} if accept is not None else {}
    opened = await http.post("/mcp", json=INITIALIZE, headers=headers)
    assert (opened.status_code, opened.headers["content-type"].partition(";")[0]) == (200, kind)
    assert message_of(opened)["result"]["serverInfo"]["name"] == "sandpod"
    headers["mcp-session-id"] = opened.headers["mcp-session-id"]
    answer = await http.post("/mcp", json=RUN, headers=headers)
    assert answer.headers["content-type"].partition(";")[0] == kind
    assert message_of(answer)["result"]["structuredContent"]["stdout"] == "0\n1\n2\n3\n4\n"
    assert (b"notifications/progress" in answer.content) == (kind == "text/event-stream")


@pytest.mark.parametrize("token", [0, "0", "", "t\u00f6k-1", 1099511627776, None])
async def test_progress_has_the_token_that_was_given_grows_and_comes_before_the_answer(
    http: httpx2.AsyncClient, session: dict[str, str], token: Any
) -> None:
    call = {**RUN, "params": {**RUN["params"], "_meta": {} if token is None else {"progressToken": token}}}  # type: ignore[dict-item]
    answer = await http.post("/mcp", json=call, headers={**ACCEPT, **session})
    *notes, last = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    assert last["result"]["structuredContent"]["stdout"] == "0\n1\n2\n3\n4\n"
    assert {note["method"] for note in notes} <= {"notifications/progress"}
    assert [repr(note["params"]["progressToken"]) for note in notes] == [repr(token)] * len(notes)
    told = [note["params"]["progress"] for note in notes]
    assert told == sorted(set(told))
    assert (len(notes) > 0) == (token is not None)


async def test_call_without_the_form_of_one_is_refused_as_such(
    http: httpx2.AsyncClient, session: dict[str, str]
) -> None:
    for params in ({}, {"name": 5}, {"name": "run_python_code", "arguments": [1]}, {"name": "x", "_meta": 5}):
        answer = message_of(await http.post("/mcp", json={**RUN, "params": params}, headers={**ACCEPT, **session}))
        assert (answer["id"], answer["error"]["code"]) == (5, -32602), params


async def test_newer_era_answers_in_json_where_nothing_else_is_accepted(http: httpx2.AsyncClient) -> None:
    call = {**RUN, "params": {**RUN["params"], "_meta": {**ENVELOPE, "progressToken": 7}}}  # type: ignore[dict-item]
    answer = await http.post("/mcp", json=call, headers={**HEADERS, "accept": "application/json"})
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
    assert answer.json()["result"]["structuredContent"]["stdout"] == "0\n1\n2\n3\n4\n"


@pytest.mark.parametrize("accept", ["text/html", "text/event-stream"])
async def test_a_type_that_can_not_be_had_is_refused_with_those_that_can(http: httpx2.AsyncClient, accept: str) -> None:
    answer = await http.post("/mcp", json=INITIALIZE, headers={"accept": accept})
    assert answer.status_code == 406
    assert "Send Accept: application/json, text/event-stream" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        ("application/json; charset=utf-8", 200),
        ("application/json;charset=UTF-8", 200),
        ("Application/JSON", 200),
        ("text/plain", 415),
        ("", 415),
    ],
)
async def test_content_type_is_json_in_any_spelling(http: httpx2.AsyncClient, kind: str, status: int) -> None:
    headers = {**ACCEPT, "content-type": kind}
    answer = await http.post("/mcp", content=json.dumps(INITIALIZE), headers=headers)
    assert answer.status_code == status
    assert status == 200 or "Send Content-Type: application/json" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("asked", "agreed"),
    [("2099-01-01", "2025-11-25"), ("2024-11-05", "2024-11-05"), ("2025-03-26", "2025-03-26")],
)
async def test_version_is_agreed_on(http: httpx2.AsyncClient, asked: str, agreed: str) -> None:
    body = {**INITIALIZE, "params": {**INITIALIZE["params"], "protocolVersion": asked}}  # type: ignore[dict-item]
    for headers in ({}, {"mcp-protocol-version": asked}):
        answer = await http.post("/mcp", json=body, headers={**ACCEPT, **headers})
        assert answer.status_code == 200
        assert message_of(answer)["result"]["protocolVersion"] == agreed


async def test_unknown_version_is_refused_with_the_known_ones_and_none_is_fine(
    http: httpx2.AsyncClient, session: dict[str, str]
) -> None:
    unknown = await http.post("/mcp", json=PING, headers={**ACCEPT, **session, "mcp-protocol-version": "1900-01-01"})
    assert unknown.status_code == 400
    assert "Send one of 2024-11-05" in unknown.json()["error"]["message"]
    assert "2025-11-25" in unknown.json()["error"]["data"]["supported"]
    del session["mcp-protocol-version"]
    assert (await http.post("/mcp", json=PING, headers={**ACCEPT, **session})).status_code == 200


async def test_batch_is_refused_in_a_sentence(http: httpx2.AsyncClient, session: dict[str, str]) -> None:
    answer = await http.post("/mcp", json=[PING, PING], headers={**ACCEPT, **session})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, -32600)
    assert "Batches are not supported" in answer.json()["error"]["message"]


@pytest.mark.parametrize("name", ["abc", "", 0, -1, 9007199254740993])
async def test_id_comes_back_as_it_was(http: httpx2.AsyncClient, session: dict[str, str], name: Any) -> None:
    answer = message_of(await http.post("/mcp", json={**PING, "id": name}, headers={**ACCEPT, **session}))
    assert (answer["id"], type(answer["id"])) == (name, type(name))


@pytest.mark.parametrize("name", [1.5, None, True, [1], {"a": 1}])
async def test_request_whose_id_is_none_is_refused_and_not_swallowed(
    http: httpx2.AsyncClient, session: dict[str, str], name: Any
) -> None:
    answer = await http.post("/mcp", json={**PING, "id": name}, headers={**ACCEPT, **session})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, -32600)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("HEAD", "/mcp", 405),
        ("HEAD", "/sse", 405),
        ("GET", "/mcp", 400),
        ("PUT", "/mcp", 405),
        ("POST", "/sse", 405),
        ("GET", "/messages/", 405),
        ("POST", "/messages/?session_id=x", 400),
        ("POST", "/messages/?session_id=" + "0" * 32, 404),
        ("POST", "/", 404),
        ("POST", "/nosuch", 404),
    ],
)
async def test_what_is_not_served_ends_at_once_as_json(
    http: httpx2.AsyncClient, method: str, path: str, status: int
) -> None:
    answer = await http.request(method, path, headers=ACCEPT, json=PING if method == "POST" else None)
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/json")
    assert (status == 405) == ("allow" in answer.headers)
    if method != "HEAD":
        body = answer.json()
        assert body.get("message") or body["error"]["message"]
