"""The REST API over real sandboxes: each operation as a program would use it, with nothing but HTTP."""

import asyncio
import json
import os
import signal
from typing import Any

import httpx2
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from sandpod_gateway.rest.operations import OPERATIONS, STARTED
from support.cluster.cluster import until
from support.cluster.server import serving
from support.gateway.served import LOCAL, Served, connected, gateway
from support.servers.package_index import package_index, wheel

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.needs_userns]

API = "/api/v1"
SLOWLY = "import time\nfor number in range(3): print(number, flush=True); time.sleep(0.1)"


async def post(served: Served, path: str, status: int = 200, /, **body: Any) -> Any:
    answer = await served.http.post(API + path, json=body)
    assert answer.status_code == status, answer.text
    return answer.json()


async def get(served: Served, path: str, status: int = 200, /, **query: Any) -> Any:
    answer = await served.http.get(API + path, params=query)
    assert answer.status_code == status, answer.text
    return answer.json()


async def events(served: Served, run: str, **headers: str) -> list[tuple[str, Any]]:
    """Return the events of a run, each with its data, and the id among them."""
    found: list[tuple[str, Any]] = []
    number, name = 0, ""
    async with served.http.stream("GET", f"{API}/runs/{run}/events", headers=headers) as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        async for line in stream.aiter_lines():
            if line.startswith("id: "):
                number = int(line[4:])
            elif line.startswith("event: "):
                name = line[7:]
            elif line.startswith("data: "):
                found.append((name, {**json.loads(line[6:]), "id": number}))
    return found


@pytest.mark.parametrize(
    ("language", "code"),
    [("python", "print('it', 6 * 7)"), ("js", "console.log('it', 6 * 7)"), ("shell", "echo it $((6 * 7))")],
)
async def test_a_program_runs_in_each_language_and_its_result_is_that_of_the_tool(
    alone: Served, language: str, code: str
) -> None:
    result = await post(alone, "/runs", language=language, code=code)
    assert (result["outcome"], result["stdout"]) == ("ok", "it 42\n")
    tools = {"python": "run_python_code", "js": "run_js_code"}
    argument = "code" if language in tools else "command"
    assert result.keys() == (await alone.call(tools.get(language, "run_shell_command"), **{argument: code})).keys()


async def test_a_picture_comes_with_the_result(alone: Served) -> None:
    code = "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()"
    result = await post(alone, "/runs", code=code)
    [picture] = result["pictures"]
    assert picture["mime_type"] == "image/png"
    assert picture["data_base64"].startswith("iVBOR")


async def test_a_run_that_is_not_waited_for_is_streamed_from_any_point_and_stopped(alone: Served) -> None:
    answer = await alone.http.post(f"{API}/runs", json={"code": SLOWLY}, headers={"prefer": "respond-async"})
    assert answer.status_code == STARTED.status
    run = answer.json()["run_id"]
    assert answer.headers["location"] == f"{API}/runs/{run}"
    told = await events(alone, run)
    assert "".join(data["stdout"] for name, data in told[:-1] if name == "output") == "0\n1\n2\n"
    assert (told[-1][0], told[-1][1]["outcome"], told[-1][1]["stdout"]) == ("result", "ok", "0\n1\n2\n")
    url = str(alone.http.base_url).replace("http", "ws", 1) + f"{API}/runs/{run}/events"
    async with connect(url) as socket:
        messages = [json.loads(each) async for each in socket]
    assert socket.close_code == 1000
    assert [(each["event"], {**each["data"], "id": each["id"]}) for each in messages] == await events(alone, run)
    again = await events(alone, run, **{"last-event-id": str(told[0][1]["id"])})
    assert again[-1][0] == "result"
    assert "".join(data["stdout"] for name, data in again[:-1]) == "0\n1\n2\n".removeprefix(told[0][1]["stdout"])
    assert (await get(alone, f"/runs/{run}"))["result"]["outcome"] == "ok"

    answer = await alone.http.post(
        f"{API}/runs", json={"code": "input()", "timeout": 60}, headers={"prefer": "respond-async"}
    )
    stopped = await alone.http.delete(f"{API}/runs/{answer.json()['run_id']}")
    assert stopped.json()["state"] == "ended"


async def test_a_stream_of_events_ends_with_the_server_and_is_told_apart_from_a_look() -> None:
    async with serving(*LOCAL, "--shutdown.calls=600") as (url, pid), httpx2.AsyncClient(timeout=60) as http:
        api = url.removesuffix("/mcp") + API
        code = {"code": "import time\nprint('begun', flush=True)\ntime.sleep(600)", "timeout": 900}
        run = (await http.post(f"{api}/runs", json=code, headers={"prefer": "respond-async"})).json()["run_id"]
        looked = await http.head(f"{api}/runs/{run}/events")
        assert (looked.status_code, looked.content) == (200, b"")
        socket = await connect(f"{api}/runs/{run}/events".replace("http", "ws", 1))
        assert json.loads(await socket.recv())["data"]["stdout"] == "begun\n"
        async with http.stream("GET", f"{api}/runs/{run}/events") as stream:
            lines = stream.aiter_lines()
            async for line in lines:
                if "begun" in line:
                    break
            os.kill(pid, signal.SIGTERM)
            assert [line async for line in lines if line.startswith("event")] == []
        with pytest.raises(ConnectionClosed):
            await socket.recv()
        assert socket.close_code == 1012  # connect to another one


async def test_files_go_in_and_out_as_they_are(alone: Served) -> None:
    data = bytes(range(256)) * 1000
    here = f"{API}/sandboxes/default/files"
    answer = await alone.http.put(f"{here}/a/b c.bin", content=data)
    assert (answer.status_code, answer.json()["size"]) == (201, len(data))
    whole = await alone.http.get(f"{here}/a/b c.bin")
    assert (whole.content, whole.headers["accept-ranges"]) == (data, "bytes")
    part = await alone.http.get(f"{here}/a/b c.bin", headers={"range": "bytes=5-9", "if-range": whole.headers["etag"]})
    assert (part.status_code, part.content) == (206, data[5:10])
    listed = await get(alone, "/sandboxes/default/files", recursive="true")
    assert {each["path"] for each in listed["entries"]} == {"a", "a/b c.bin"}
    moved = await post(alone, "/sandboxes/default/moves", source="a/b c.bin", destination="c.bin")
    assert moved["destination"] == "c.bin"
    for status in (200, 404):
        assert (await alone.http.delete(f"{here}/c.bin")).status_code == status
    for name in ("a%0Ab", "%0A", "c%0D%0A"):  # names that files may have
        assert (await alone.http.put(f"{here}/{name}", content=b"it")).status_code == 201
        assert (await alone.http.get(f"{here}/{name}")).content == b"it"
    link = await post(alone, "/sandboxes/default/links", 201, path="a\nb")
    assert (await alone.http.get(link["url"])).content == b"it"
    assert (await alone.http.get(f"{here}/../../etc/passwd")).status_code in {400, 404}


async def test_packages_are_installed_without_a_wait_and_their_installation_is_followed_to_its_end() -> None:
    with package_index() as index:
        index.add("greet", "1.2", content=wheel("greet", "1.2", needs=("helper>=1",)))
        index.add("helper", "1.0")
        flags = (*LOCAL, "--packages.index-url", index.url)
        async with gateway(*flags) as address, connected(address, Served) as here:
            sandbox = (await post(here, "/sandboxes", 201))["sandbox"]
            packages = f"/sandboxes/{sandbox}/packages"
            index.hold.clear()
            begun = await post(here, packages, packages=["greet>=1"])
            assert (begun["status"], begun["sandbox"], begun["packages"]) == ("installing", sandbox, [])
            installation = f"/installations/{begun['installation']}"
            assert (await get(here, installation))["status"] == "installing"
            index.hold.set()
            done = await get(here, installation, wait=120)
            versions = {"greet": "1.2", "helper": "1.0"}
            assert (done["status"], {each["name"]: each["version"] for each in done["packages"]}) == (
                "success",
                versions,
            )
            assert await get(here, installation) == done
            listed = (await get(here, packages, limit=500))["packages"]
            assert {each["name"]: each["version"] for each in listed if each["source"] == "installed"} == versions
            code = "import greet, helper; print(greet.VERSION, helper.VERSION)"
            assert (await post(here, "/runs", code=code, sandbox=sandbox))["stdout"] == "1.2 1.0\n"
            failed = await post(here, packages, packages=["nowhere"], wait=120)
            assert (failed["status"], "nowhere" in failed["message"]) == ("failed", True), failed
            other = (await get(here, f"/installations/{failed['installation']}"))["message"]
            assert other == failed["message"]
            for tried, status, code in ((["greet=="], 400, "invalid_argument"), ([], 400, "invalid_argument")):
                answer = await here.http.post(API + packages, json={"packages": tried})
                assert (answer.status_code, answer.json()["error"]) == (status, code)
            assert (await get(here, "/installations/inst-of-before", 404))["error"] == "not_found"


async def test_a_sandbox_is_made_described_and_closed_with_what_is_in_it(alone: Served) -> None:
    answer = await alone.http.post(f"{API}/sandboxes", json={"name": "mine"})
    handle = answer.json()["sandbox"]
    assert (answer.status_code, answer.headers["location"]) == (201, f"{API}/sandboxes/{handle}")
    await post(alone, "/runs", code="x = 1", sandbox=handle, context="c")
    contexts = await get(alone, f"/sandboxes/{handle}/contexts")
    assert [each["name"] for each in contexts["contexts"]] == ["c"]
    assert (await alone.http.delete(f"{API}/sandboxes/{handle}/contexts/c")).json()["context"] == "c"
    assert [each["run_id"] for each in (await get(alone, f"/sandboxes/{handle}/runs"))["runs"]]
    assert (await get(alone, "/sandboxes"))["sandboxes"][0]["sandbox"] == handle
    for operation in OPERATIONS:
        if operation.listing is not None and "{sandbox}" in operation.path:
            page = await get(alone, operation.path.format(sandbox=handle), limit=1)
            assert len(page[operation.listing.field]) <= 1, operation
            assert (page["next"] is None) == (operation.tool != "list_packages"), operation
    made = [(await post(alone, "/runs", language="shell", code="true", sandbox=handle))["run_id"] for _ in range(5)]
    runs = (await get(alone, f"/sandboxes/{handle}/runs"))["runs"]
    assert [each["run_id"] for each in runs[1:]] == made  # the oldest first, also those of one second
    assert (await alone.http.delete(f"{API}/sandboxes/{handle}", params={"force": "true"})).status_code == 200
    gone = await alone.http.get(f"{API}/sandboxes/{handle}")
    assert (gone.status_code, gone.headers["content-type"]) == (404, "application/problem+json")
    assert gone.json()["error"] == "session_not_found"


async def test_a_client_that_leaves_ends_its_run(alone: Served) -> None:
    await alone.call("write_file", path="first", text="makes the sandbox")

    async def running(count: int) -> bool:
        runs = (await get(alone, "/sandboxes/default/runs"))["runs"]
        return [each["state"] for each in runs].count("running") == count

    request = asyncio.create_task(alone.http.post(f"{API}/runs", json={"code": "import time\ntime.sleep(600)"}))
    await until("it runs", lambda: running(1), within=60)
    request.cancel()
    await until("it has ended", lambda: running(0), within=60)


async def test_a_request_that_is_sent_twice_runs_once(alone: Served) -> None:
    code = "open('count', 'a').write('x'); print(open('count').read())"
    answers = [
        await alone.http.post(f"{API}/runs", json={"code": code}, headers={"idempotency-key": "one"}) for _ in range(2)
    ]
    assert [each.json()["stdout"] for each in answers] == ["x\n", "x\n"]


async def test_each_operation_is_described_with_what_its_tool_takes(alone: Served) -> None:
    described = await get(alone, "/openapi.json")
    for operation in (*OPERATIONS, STARTED):
        assert operation.method.lower() in described["paths"][operation.path], operation
