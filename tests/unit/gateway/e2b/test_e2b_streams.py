"""What of E2B's API goes on for long: watches, input, output; each is bounded, and ends with what it came with."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from starlette.types import Message

from fakes.backend import FakeBackend
from fakes.runner import FakeRun
from sandpod_gateway.auth.current import CallerToken
from sandpod_gateway.auth.links import MemoryStore
from sandpod_gateway.auth.sandbox_tokens import SandboxTokens
from sandpod_gateway.e2b.envd import watches
from sandpod_gateway.e2b.envd.connect import envelope
from sandpod_gateway.e2b.envd.process_forms import process_id
from sandpod_gateway.files.watch import Watch
from sandpod_gateway.runs.request import RunRequest
from sandpod_gateway.settings import LimitSettings
from support.gateway.e2b import Place, place
from support.gateway.peers import until
from support.gateway.team import team


async def test_a_watcher_is_asked_at_any_gateway(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    monkeypatch.setattr(FakeBackend, "link_store", lambda _: store)
    async with team(monkeypatch) as made:
        here, there = (Place(each.address, {"ann": "none"}, each.gateway) for each in await made.both())
        sandbox, token = await here.made("ann")

        async def ask(place: Place, name: str, status: int = 200, **message: Any) -> dict[str, Any]:
            path = f"/filesystem.Filesystem/{name}"
            answer = await place.inside(sandbox, token, "POST", path, json=message)
            assert answer.status_code == status, answer.text
            return dict(answer.json())

        watcher = (await ask(here, "CreateWatcher", path="."))["watcherId"]
        await here.inside(sandbox, token, "POST", "/files?path=a")
        events = (await ask(there, "GetWatcherEvents", watcherId=watcher))["events"]
        assert [each["type"] for each in events] == ["EVENT_TYPE_CREATE", "EVENT_TYPE_WRITE"]
        assert await ask(there, "RemoveWatcher", watcherId=watcher) == {}
        for place in (here, there):
            assert (await ask(place, "GetWatcherEvents", 404, watcherId=watcher))["code"] == "not_found"


async def test_watches_of_one_caller_are_bounded_however_they_come_and_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watches, "MAX_WATCHES", 3)
    async with place(tmp_path) as here:
        sandbox, token = await here.made()

        async def ask(name: str, **message: Any) -> Any:
            answer = await here.inside(sandbox, token, "POST", f"/filesystem.Filesystem/{name}", json=message)
            return answer.json().get("code", answer.json())

        missing = [await ask("CreateWatcher", path="none") for _ in range(4)]
        assert missing == ["not_found"] * 4  # which takes no place
        async with here.streamed(sandbox, token, "/filesystem.Filesystem/WatchDir", {"path": "."}) as watched:
            assert await anext(watched) == {"start": {}}
            made = await asyncio.gather(*(ask("CreateWatcher", path=".") for _ in range(6)))
            assert made.count("resource_exhausted") == 4
        first, second = (each for each in made if each != "resource_exhausted")
        await ask("RemoveWatcher", **first)
        look = Watch.changes

        async def remove(watch: Watch) -> Any:
            monkeypatch.undo()
            await ask("RemoveWatcher", **second)
            return await look(watch)

        monkeypatch.setattr(Watch, "changes", remove)
        assert await ask("GetWatcherEvents", **second) == {"events": []}
        assert await ask("GetWatcherEvents", **second) == "not_found"


async def test_streamed_input_comes_whole_and_ends_with_its_key_and_with_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend, looked, came = FakeBackend(), asyncio.Event(), asyncio.Event()
    find, fed = backend.list, list[bytes]()
    monkeypatch.setattr(FakeRun, "feed", lambda _, data, **__: fed.append(data))

    async def find_slowly(owner: str) -> Any:
        looked.set()
        await came.wait()
        return await find(owner)

    def data(text: bytes) -> bytes:
        return envelope({"data": {"input": {"stdin": base64.b64encode(text).decode()}}})

    async with place(tmp_path, backend) as here:
        sandbox, token = await here.made()
        run = RunRequest(language="python", code="a = input()", open_stdin=True)
        begun = await here.gateway._background.start("user:ann", run, sandbox=sandbox)
        start = envelope({"start": {"process": {"pid": process_id(begun.run_id)}}})

        async def body() -> AsyncIterator[bytes]:
            yield start
            await looked.wait()
            yield data(b"one")
            await here.send(None, "GET", "/nothing")  # after which the server has that part
            came.set()
            await until(lambda: bool(fed))
            monkeypatch.setattr(SandboxTokens, "check", lambda *_: None)
            yield data(b"two")

        monkeypatch.setattr(backend, "list", find_slowly)
        path = "/process.Process/StreamInput"
        refused = await here.inside(sandbox, token, "POST", path, content=body())
        assert (refused.status_code, fed) == (401, [b"one"])
        monkeypatch.undo()

        parts, answer = [start], list[Message]()

        async def receive() -> Message:
            if not parts:
                here.gateway.ending.set()
                await asyncio.Event().wait()
            return {"type": "http.request", "body": parts.pop(), "more_body": True}

        async def answered(message: Message) -> None:
            answer.append(message)

        headers = {"e2b-sandbox-id": sandbox, "x-access-token": token, "content-type": "application/connect+json"}
        scope = {"type": "http", "method": "POST", "path": "/e2b/process.Process/StreamInput", "query_string": b""}
        scope["headers"] = [(name.encode(), value.encode()) for name, value in {**headers, "host": "x"}.items()]
        await here.gateway.http_app()(scope, receive, answered)
        assert answer[0]["status"] == 400


async def test_code_ends_when_the_stream_of_it_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend, check, left = FakeBackend(), SandboxTokens.check, [True, True]  # to let it in, and for its first line

    def check_twice(tokens: SandboxTokens, token: str, sandbox: str) -> CallerToken | None:
        return check(tokens, token, sandbox) if left and left.pop() else None

    async with place(tmp_path, backend) as here:
        sandbox, token = await here.made()
        monkeypatch.setattr(SandboxTokens, "check", check_twice)
        code = {"code": "print(1)\ntime.sleep(600)"}
        answer = await here.inside(sandbox, token, "POST", "/execute", json=code)
        assert [json.loads(line)["type"] for line in answer.text.splitlines()] == ["stdout", "error"]
        await until(lambda: not backend.runner(sandbox).runs)


async def test_one_request_is_one_and_those_in_progress_are_bounded(tmp_path: Path) -> None:
    backend = FakeBackend()
    async with place(tmp_path, backend, limits=LimitSettings(max_requests_per_owner=1)) as here:
        sandbox, token = await here.made()
        path, timeout = f"/sandboxes/{sandbox}", {"timeout": 60}
        for method, rest in (("GET", ""), ("POST", "/timeout"), ("POST", "/connect")):
            answer = await here.send("ann", method, path + rest, **({"json": timeout} if rest else {}))
            assert answer.is_success
        for rest in ("/process.Process/List", "/execute"):
            assert (await here.inside(sandbox, token, "POST", rest, json={"code": "print(1)"})).is_success
        backend.launcher.gate.clear()
        making = asyncio.create_task(here.made())
        await until(lambda: bool(backend.launcher.gate._waiters))
        for method, rest in (("GET", ""), ("POST", "/pause"), ("GET", "/metrics"), ("POST", "/connect")):
            assert (await here.send("ann", method, path + rest)).status_code == 429
        assert (await here.send("eve", "GET", "/v2/sandboxes")).status_code == 200
        backend.launcher.gate.set()
        await making
