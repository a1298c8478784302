"""The REST API's walls: without a key, with another's, with one that may not, and with bodies that no program sends."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import product
from pathlib import Path
from typing import Any, Final

import httpx2
import pytest
import yaml
from starlette.authentication import UnauthenticatedUser
from starlette.requests import Request
from starlette.websockets import WebSocketDisconnect
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from fakes.backend import FakeBackend
from sandpod_gateway.api.run_results import RunOutput
from sandpod_gateway.app import Gateway
from sandpod_gateway.audit.settings import AuditSettings
from sandpod_gateway.content import Answer
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.http import attempts
from sandpod_gateway.rest.events import run_events, send_events
from sandpod_gateway.rest.files import METHODS
from sandpod_gateway.rest.operations import EVENTS, FILE, OPERATIONS, PREFIX, STARTED
from sandpod_gateway.rest.requests import key_needed, need_owner
from sandpod_gateway.settings import AuthSettings, Settings
from support.gateway.fake_gateway import keys_file
from support.gateway.server import listening

# Each address with a method, the tool of its operation too.
ROUTES: Final = [
    *((each.method, each.path) for each in (*OPERATIONS, STARTED)),
    *((method, FILE) for method in METHODS),
    ("GET", EVENTS),
]

ADMIN: Final = "/admin/"  # in the paths that show administrators what is others'


class Place:
    """A gateway, and clients with the keys of its users."""

    def __init__(self, address: str, keys: dict[str, str]) -> None:
        self.address = address
        self.keys = keys

    async def send(self, user: str | None, method: str, path: str, **options: Any) -> httpx2.Response:
        headers = {"x-api-key": self.keys[user], **options.pop("headers", {})} if user else options.pop("headers", {})
        async with httpx2.AsyncClient(base_url=self.address + PREFIX, timeout=60) as http:
            return await http.request(method, path, headers=headers, **options)


@asynccontextmanager
async def place(folder: Path, **settings: Any) -> AsyncIterator[Place]:
    path, keys = keys_file(folder, "ann", "eve", "reader")
    text = yaml.safe_load(path.read_text())
    text["keys"][2]["read_only"] = True
    path.write_text(yaml.safe_dump(text))
    made = Settings(auth=AuthSettings(keys_file=path, change_keys=True), **settings)
    async with listening(Gateway(made, FakeBackend()), made) as address:
        yield Place(address, dict(zip(("ann", "eve", "reader"), keys, strict=True)))


def filled(path: str, sandbox: str, key_id: str = "0" * 16) -> str:
    return path.format(
        sandbox=sandbox,
        run_id=f"{sandbox}.run-0123456789abcdef",
        key_id=key_id,
        pool="default",
        path="a",
        context="c",
        installation="i",
    )


def body(method: str) -> dict[str, Any]:
    known = {"code": "print(1)", "path": "a", "source": "a", "destination": "b", "packages": ["six"], "seconds": 60}
    return {"content": b"x"} if method == "PUT" else {"json": known} if method in {"POST", "PATCH"} else {}


@pytest.mark.promise("key-required")
async def test_nothing_is_answered_without_a_valid_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "FREE", 10_000)  # refusals that are answered at once: these are many
    credentials: list[dict[str, str]] = [{}, {"authorization": "Bearer no"}, {"x-api-key": "no"}]
    async with place(tmp_path) as here:
        for (method, path), headers in product(ROUTES, credentials):
            answer = await here.send(None, method, filled(path, "default"), headers=headers, **body(method))
            assert answer.status_code == 401, (method, path)
            assert answer.headers["www-authenticate"].startswith("Bearer")
            assert method == "HEAD" or answer.json()["error"] == "unauthorized"


@pytest.mark.promise("key-scopes")
async def test_a_read_only_key_changes_nothing(tmp_path: Path) -> None:
    async with place(tmp_path) as here:
        for method, path in ROUTES:
            if method not in {"GET", "HEAD"} and path != "/sandboxes/{sandbox}/archives":
                answer = await here.send("reader", method, filled(path, "default"), **body(method))
                assert (answer.status_code, answer.json()["error"]) == (403, "forbidden"), (method, path)


@pytest.mark.promise("key-scopes")
async def test_what_is_for_administrators_is_refused_to_all_others(tmp_path: Path) -> None:
    async with place(tmp_path) as here:
        paths = (await here.send("ann", "GET", "/openapi.json")).json()["paths"]
        known = {(method.upper(), path) for path, of in paths.items() for method in of if "tags" in of[method]}
        pools = {("GET", "/pools"), ("PATCH", "/pools/{pool}")}
        assert known == pools | {each for each in ROUTES if ADMIN in each[1]}
        made = (await here.send("ann", "POST", "/sandboxes", json={})).json()["sandbox"]
        for method, path in known:
            answers = [await here.send("eve", method, filled(path, name), **body(method)) for name in (made, "none")]
            assert [(each.status_code, each.json()["error"]) for each in answers] == [(403, "forbidden")] * 2
            assert answers[0].text == answers[1].text, (method, path)


@pytest.mark.parametrize(
    ("content", "status", "word"),
    [
        (b"{", 400, "not readable JSON"),
        (b"[]", 400, "no JSON object"),
        (b"\xff\xfe", 400, "not readable JSON"),
        (b'{"code": "1", "x": NaN}', 400, "not readable JSON"),
        (b'{"code": 1e999}', 400, ""),
        (b'{"args": [' + b"1," * 6000 + b"1]}", 400, "1000 items"),
        (b'{"code": ' + b"[" * 40 + b"]" * 40 + b"}", 400, "levels deep"),
        (b'{"code": "' + b"x" * (4 * 2**20) + b'"}', 413, "bytes"),
        (b'{"language": 5, "code": "1"}', 400, "language"),
        (b'{"language": "cobol", "code": "1"}', 400, ""),
        (b"", 400, "missing"),
    ],
)
async def test_a_body_that_cannot_be_used_is_refused_in_a_sentence(
    tmp_path: Path, content: bytes, status: int, word: str
) -> None:
    async with place(tmp_path) as here:
        answer = await here.send("ann", "POST", "/runs", content=content)
        details = answer.json()
        assert (answer.status_code, details["status"]) == (status, status)
        assert answer.headers["content-type"] == "application/problem+json"
        assert word in details["detail"]
        assert details["next"].endswith((".", "?"))


@pytest.mark.parametrize(
    ("headers", "status"), [({"host": "evil.example"}, 421), ({"origin": "https://evil.example"}, 403)]
)
async def test_a_page_of_another_site_reaches_nothing_on_this_machine(headers: dict[str, str], status: int) -> None:
    settings = Settings()
    async with (
        listening(Gateway(settings, FakeBackend()), settings) as address,
        httpx2.AsyncClient(base_url=address + PREFIX) as http,
    ):
        assert (await http.get("/sandboxes")).status_code == 200
        for path in ("/sandboxes", "/openapi.json", "/sandboxes/default/files/a"):
            assert (await http.get(path, headers=headers)).status_code == status


async def test_a_limit_of_calls_holds_and_says_when_there_is_room_again(tmp_path: Path) -> None:
    async with place(tmp_path, quotas={"per_user": {"calls_per_minute": 2}}) as here:
        answers = [await here.send("ann", "GET", "/sandboxes") for _ in range(3)]
    assert [each.status_code for each in answers] == [200, 200, 429]
    assert int(answers[2].headers["retry-after"]) > 0


@pytest.mark.promise("audit-recorded")
async def test_each_request_leaves_a_record(tmp_path: Path) -> None:
    log = tmp_path / "audit"
    async with place(tmp_path, audit=AuditSettings(sink="file", path=log)) as here:
        await here.send("ann", "POST", "/runs", json={"code": "print(1)"})
        await here.send("ann", "PUT", "/sandboxes/default/files/a", content=b"xyz")
        await here.send("ann", "GET", "/sandboxes/default/files/none")
        await here.send(None, "GET", "/sandboxes")
    records = [json.loads(line) for line in log.read_text().splitlines()]
    told = [
        (each["event"], each.get("tool") or each.get("method"), each.get("outcome"), each.get("bytes_in"))
        for each in records
        if each["event"] not in {"start", "stop"} and each.get("phase") != "begin"
    ]
    assert told == [
        ("keys", None, None, None),
        ("call", "run_python_code", "ok", 8),
        ("file", "put", "ok", 3),
        ("file", "get", "refused", 0),
        ("refused", None, None, None),
    ]


async def test_an_address_says_which_methods_it_takes(tmp_path: Path) -> None:
    async with place(tmp_path) as here:
        for path in {path for _, path in ROUTES}:
            answer = await here.send("ann", "OPTIONS", filled(path, "default"))
            known = {method for method, other in ROUTES if other == path}
            assert (answer.status_code, set(answer.headers["allow"].split(", ")) - {"HEAD"}) == (405, known - {"HEAD"})
        assert (await here.send("ann", "HEAD", "/sandboxes")).status_code == 200
        for path in ("/nothing", "/no%0Athing", "/sandboxes/default/files/a%0Ab%0A"):
            assert (await here.send("ann", "GET", path)).json()["error"] in {"not_found", "session_not_found"}, path


@pytest.mark.promise("audit-recorded")
async def test_every_operation_leaves_one_record(tmp_path: Path) -> None:
    log = tmp_path / "audit"
    async with place(tmp_path, audit=AuditSettings(sink="file", path=log)) as here:
        await here.send("ann", "PUT", "/sandboxes/default/files/a", content=b"xyz")
        for method, path in ROUTES:
            await here.send("ann", method, filled(path, "default"), **body(method))
    records = [json.loads(line)["event"] for line in log.read_text().splitlines()]
    assert [each for each in records if each in {"call", "file", "refused"}].count("refused") == 0
    assert len([each for each in records if each in {"call", "file"}]) == len(ROUTES) + 1


@pytest.mark.parametrize(
    ("method", "path", "headers"),
    [
        ("GET", "/sandboxes?tools=bogus", {}),
        ("POST", "/runs?tools=bogus", {}),
        ("GET", "/openapi.json?tools=bogus", {}),
        ("GET", "/sandboxes/default/files/a?tools=bogus", {}),
        ("GET", "/runs/a.run-0123456789abcdef/events?cursor=1.0", {}),
        ("GET", "/runs/a.run-0123456789abcdef/events", {"last-event-id": "-1"}),
        ("GET", "/runs/a.run-0123456789abcdef/events", {"last-event-id": "9" * 400}),
    ],
)
async def test_what_an_address_cannot_mean_is_refused(
    tmp_path: Path, method: str, path: str, headers: dict[str, str]
) -> None:
    async with place(tmp_path) as here:
        answer = await here.send("ann", method, path, headers=headers)
        assert (answer.status_code, answer.json()["error"]) == (400, "invalid_argument")


async def test_nothing_is_redirected(tmp_path: Path) -> None:
    async with place(tmp_path) as here:
        for method, path in (("GET", "/sandboxes/"), ("POST", "/runs/")):
            answer = await here.send("ann", method, path, headers={"host": "evil.example"}, **body(method))
            assert (answer.status_code, "location" in answer.headers) == (404, False)


async def test_where_there_are_no_tools_of_its_own_there_is_nothing(tmp_path: Path) -> None:
    async with place(tmp_path, compat={"systems": ["johanli233", "chrishayuk"]}) as here:
        for method, path in ROUTES:
            answer = await here.send("ann", method, filled(path, "default"), **body(method))
            assert answer.status_code in {403, 404}, (method, path)
        assert (await here.send("ann", "GET", "/openapi.json")).json()["paths"] == {}


async def test_key_without_links_gets_no_file_as_it_is(tmp_path: Path) -> None:
    async with place(tmp_path) as here:
        answer = await here.send("ann", "GET", "/sandboxes/default/files/a?tools=core")
        assert (answer.status_code, answer.json()["error"]) == (403, "forbidden")


class Background:
    """A run that writes for ever."""

    reads = 0

    async def read(self, _owner: str, run_id: str, **_: Any) -> Answer[RunOutput]:
        self.reads += 1
        return Answer(RunOutput(run_id=run_id, sandbox="a", state="running", stdout=f"{self.reads}", cursor=self.reads))


async def test_stream_of_a_key_that_is_revoked_ends() -> None:
    background: Any = Background()

    async def check() -> None:
        if background.reads == 2:
            raise key_needed()

    found = [each async for each in run_events(background, "ann", "a.run-1", 0, check) if each is not None]
    assert [(each.name, each.data.get("stdout"), each.cursor) for each in found[:2]] == [
        ("output", "1", 1),
        ("output", "2", 2),
    ]
    assert [(each.name, each.data["error"]) for each in found[2:]] == [("error", "unauthorized")]


@pytest.mark.parametrize("leaves", [True, False])
async def test_nothing_is_asked_for_while_a_client_does_not_read_and_all_ends_when_it_leaves(*, leaves: bool) -> None:
    background: Any = Background()
    sending, left = asyncio.Event(), asyncio.Event()

    class Socket:
        """One to a client that reads nothing."""

        async def accept(self) -> None:
            pass

        async def send_text(self, _: str) -> None:
            sending.set()
            await (left.wait() if leaves else asyncio.sleep(0))
            raise RuntimeError if not leaves else WebSocketDisconnect  # as what is closed already does

        async def receive(self) -> dict[str, str]:
            await sending.wait()
            await asyncio.sleep(0)
            return {"type": "websocket.receive" if not leaves else "websocket.disconnect"}

    async def check() -> None:
        pass

    socket: Any = Socket()
    events = run_events(background, "ann", "a.run-1", 0, check)
    await asyncio.wait_for(send_events(socket, events), 60)
    assert background.reads == 1
    with pytest.raises(StopAsyncIteration):
        await anext(events)


async def test_a_websocket_is_refused_as_any_other_request_is(tmp_path: Path) -> None:
    async with place(tmp_path) as here:
        theirs = (await here.send("ann", "POST", "/sandboxes", json={"name": "hers"})).json()["sandbox"]
        url = f"{here.address}{PREFIX}/runs/{theirs}.run-0123456789abcdef/events".replace("http", "ws", 1)
        key = {"x-api-key": here.keys["eve"]}
        asked: list[tuple[str, dict[str, str], int]] = [
            ("", {}, 401),
            ("", key, 404),
            ("?cursor=x", key, 400),
            ("?tools=bogus", key, 400),
            ("", {**key, "origin": "https://evil.example"}, 403),
            ("", {**key, "origin": "http://localhost:1"}, 403),
            ("", {**key, "origin": here.address}, 404),
        ]
        for query, headers, status in asked:
            with pytest.raises(InvalidStatus) as refused:
                await connect(url + query, additional_headers=headers)
            assert refused.value.response.status_code == status, (query, headers)


def test_refusals_do_not_add_up() -> None:
    lengths = set()
    for _ in range(3):
        with pytest.raises(SandpodError) as refused:
            need_owner(Request({"type": "http", "user": UnauthenticatedUser()}))
        lengths.add(len(refused.traceback))
    assert len(lengths) == 1
