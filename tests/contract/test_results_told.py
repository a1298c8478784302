"""What descriptions of the fields of results say, tried by a client in local sandboxes.

What other tests see by the way is not tried again here.
"""

import asyncio
import base64
import hashlib
import json
import re
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx2
import pytest
import pytest_asyncio
from fastmcp import Client

from sandpod_gateway.api.results import ErrorCode
from support.background import LINE, lines
from support.gateway.peers import until
from support.gateway.served import Served, local_gateway

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.needs_userns]

MB = 1_000_000
STEP = timedelta(seconds=1)  # times are told in whole seconds
WAIT_FOR = "import os, time\nwhile not os.path.exists({!r}): time.sleep(0.01)\n"


class Caller(Served):
    async def python(self, code: str, **arguments: Any) -> dict[str, Any]:
        return await self.call("run_python_code", code=code, **arguments)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def caller() -> AsyncIterator[Caller]:
    async with local_gateway("16Mi") as address, Client(f"{address}/mcp") as client:
        yield Caller(client)


def moment(text: str) -> datetime:
    """Return a time that was told; RFC 3339 in UTC, as all are."""
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", text)
    return datetime.fromisoformat(text)


async def context_state(caller: Caller, name: str) -> str:
    [told] = [entry for entry in (await caller.call("list_contexts"))["contexts"] if entry["name"] == name]
    return str(told["state"])


@pytest.mark.claim("run_python_code.duration_ms", "run_python_code.cpu_ms", "run_python_code.max_rss_bytes")
async def test_time_processor_time_and_memory_are_those_of_the_program_and_its_children(caller: Caller) -> None:
    code = "import time\nstart = time.monotonic()\ntime.sleep(1)\nprint(time.monotonic() - start)"
    slept = await caller.python(code)
    assert slept["duration_ms"] >= float(slept["stdout"]) * 1000 >= 1000
    assert 0 < slept["cpu_ms"] < 900, "it slept"
    child = f"held = b'x' * {60 * MB}\nimport time\nwhile time.process_time() < 0.3: pass\nprint(time.process_time())"
    code = f"import subprocess, sys\nheld = b'x' * {50 * MB}\nsubprocess.run([sys.executable, '-c', {child!r}])"
    busy = await caller.python(code)
    assert busy["cpu_ms"] >= float(busy["stdout"]) * 1000 >= 300
    assert 60 * MB <= busy["max_rss_bytes"] < 110 * MB, "the largest process, not all together"


@pytest.mark.claim(
    "run_python_code.sandbox",
    "run_python_code.run_id",
    "run_python_code.outcome",
    "run_python_code.exit_code",
    "run_python_code.signal",
    "run_python_code.context",
)
async def test_end_of_a_run_is_told_by_outcome_exit_code_and_signal(caller: Caller) -> None:
    handle = (await caller.call("create_sandbox"))["sandbox"]
    seen = set()
    for code, outcome, exit_code, signal in (
        ("exit 0", "ok", 0, None),
        ("exit 7", "error", 7, None),
        ("kill -TERM $$", "error", None, "SIGTERM"),
        ("kill -KILL $$", "error", None, "SIGKILL"),
    ):
        told = await caller.call("run_shell_command", command=code, sandbox=handle)
        assert (told["outcome"], told["exit_code"], told["signal"]) == (outcome, exit_code, signal)
        assert (told["sandbox"], told["context"], told["context_state"]) == (handle, None, None)
        read = await caller.call("read_run", run_id=told["run_id"])
        assert (read["sandbox"], read["result"]["outcome"]) == (handle, outcome)
        seen.add(told["run_id"])
    assert len(seen) == 4
    await caller.call("close_sandbox", sandbox=handle)


@pytest.mark.claim(
    "run_python_code.stdout",
    "run_python_code.stdout_bytes",
    "run_python_code.stdout_truncated",
    "run_python_code.stderr",
    "run_python_code.stderr_truncated",
)
@pytest.mark.parametrize(("stream", "other"), [("stdout", "stderr"), ("stderr", "stdout")])
async def test_long_output_is_told_with_head_tail_and_size_of_its_own(caller: Caller, stream: str, other: str) -> None:
    code = f"import sys\nsys.{stream}.write('head' + 'x' * 300_000 + 'tail')\nsys.{other}.write('short')"
    told = await caller.python(code)
    assert (told[stream][:4], told[stream][-4:], len(told[stream]) < 300_000) == ("head", "tail", True)
    assert (told[f"{stream}_bytes"], told[f"{stream}_truncated"]) == (300_008, True)
    assert (told[other], told[f"{other}_bytes"], told[f"{other}_truncated"]) == ("short", 5, False)


@pytest.mark.claim(
    "run_python_code.result",
    "run_python_code.context_state",
    "list_runs.runs.started_at",
    "list_contexts.contexts.name",
    "list_contexts.contexts.started_at",
)
async def test_context_tells_when_it_was_made_and_what_became_of_it(caller: Caller) -> None:
    before = datetime.now(UTC)
    assert (await caller.python("x = 1", context="own"))["context"] == "own"
    after = datetime.now(UTC)
    runs, contexts = (await caller.call("list_runs"))["runs"], (await caller.call("list_contexts"))["contexts"]
    [made] = [entry for entry in contexts if entry["name"] == "own"]
    assert before - STEP <= moment(made["started_at"]) <= after
    assert before - STEP <= moment(runs[-1]["started_at"]) <= after
    assert (runs[-1]["context"], runs[-1]["background"], made["state"]) == ("own", False, "idle")
    kept = await caller.python("x", context=made["name"])
    assert (kept["result"], kept["context_state"]) == ({"text/plain": "1"}, "kept")
    assert (await caller.python("import os; os._exit(3)", context="own"))["context_state"] == "lost"
    assert "NameError" in (await caller.python("x", context="own"))["stderr"]
    pid = (await caller.python("import os; print(os.getpid())", context="own"))["stdout"].strip()
    await caller.call("run_shell_command", command=f"kill -KILL {pid}")
    while (state := await context_state(caller, "own")) == "idle":  # until that is noticed
        pass
    assert state == "lost"
    anew = await caller.python("1", context="own")
    assert (anew["outcome"], anew["context_state"], await context_state(caller, "own")) == ("ok", "lost", "idle")


@pytest.mark.claim(
    "run_python_code.displays",
    "run_python_code.displays.index",
    "run_python_code.displays.mime_type",
    "run_python_code.displays.size",
    "run_python_code.displays.text",
)
async def test_what_is_shown_is_told_in_order_with_its_size(caller: Caller) -> None:
    told = await caller.python(
        "display('h\u00e9', raw=False)\ndisplay({'text/html': '<b>'}, raw=True)", context="shows"
    )
    assert [(shown["index"], shown["mime_type"], shown["size"], shown["text"]) for shown in told["displays"]] == [
        (0, "text/plain", 5, "'h\u00e9'"),
        (1, "text/html", 3, "<b>"),
    ]


@pytest.mark.claim("run_python_code.progress_dropped_bytes")
async def test_output_that_a_client_did_not_take_is_counted_and_still_in_the_result(caller: Caller) -> None:
    taken: list[str] = []
    over = asyncio.Event()

    async def note(_progress: float, _total: float | None, message: str | None) -> None:
        taken.append(message or "")
        await over.wait()

    code = f"import sys\nprint('first', flush=True)\n{WAIT_FOR.format('flow')}print('x' * {4 * MB})"
    async with Client(caller.mcp.transport) as slow:
        running = asyncio.create_task(slow.call_tool("run_python_code", {"code": code}, progress_handler=note))
        await until(lambda: bool(taken))
        await caller.call("write_file", path="flow", text="")
        while (await caller.call("list_runs"))["runs"][-1]["state"] == "running":
            pass
        over.set()
        told = (await running).structured_content
    assert told is not None
    assert told["progress_dropped_bytes"] > 0
    assert sum(map(len, taken)) + told["progress_dropped_bytes"] == told["stdout_bytes"] == 4 * MB + 7


@pytest.mark.claim(
    "create_sandbox.sandbox",
    "create_sandbox.name",
    "create_sandbox.status",
    "create_sandbox.reason",
    "create_sandbox.message",
    "create_sandbox.template",
    "create_sandbox.image",
    "create_sandbox.network",
    "create_sandbox.created_at",
    "create_sandbox.last_activity_at",
    "create_sandbox.expires_at",
    "create_sandbox.age_seconds",
)
async def test_sandbox_tells_what_it_is_and_how_long_it_has_been_used(caller: Caller) -> None:
    before, begun = datetime.now(UTC), time.monotonic()
    made = await caller.call("create_sandbox", name="mine", lifetime={"ttl": 3000, "idle_timeout": 500})
    after, handle = datetime.now(UTC), made["sandbox"]
    assert (made["name"], made["template"], made["network"], made["image"]) == ("mine", "default", "none", None)
    assert (made["status"], made["reason"], made["message"], made["running"]) == ("Ready", None, None, 0)
    assert before - STEP <= moment(made["created_at"]) <= after
    assert moment(made["expires_at"]) - moment(made["last_activity_at"]) == timedelta(seconds=500)
    used = made
    while used["last_activity_at"] == made["last_activity_at"]:  # times are told in whole seconds
        used = await caller.call("list_files", sandbox=handle) and await caller.call("get_sandbox", sandbox=handle)
    assert moment(used["expires_at"]) - moment(made["expires_at"]) == moment(used["last_activity_at"]) - moment(
        made["last_activity_at"]
    )
    assert used["age_seconds"] - made["age_seconds"] <= time.monotonic() - begun
    assert used["age_seconds"] > made["age_seconds"]
    assert moment(used["last_activity_at"]) - moment(used["created_at"]) <= timedelta(seconds=used["age_seconds"] + 1)
    short = await caller.call("create_sandbox", lifetime={"ttl": 500, "idle_timeout": 500})
    await caller.python("1", sandbox=short["sandbox"])
    kept = await caller.call("get_sandbox", sandbox=short["sandbox"])
    assert moment(kept["expires_at"]) - moment(kept["created_at"]) == timedelta(seconds=500), "as long as its ttl"
    for name in (handle, short["sandbox"]):
        await caller.call("close_sandbox", sandbox=name)


@pytest.mark.claim("run_python_code.error", "run_python_code.message")
async def test_sandbox_that_has_ended_tells_why(caller: Caller) -> None:
    told = await caller.call("create_sandbox", lifetime={"ttl": 1})
    while told["status"] == "Ready":
        told = await caller.call("get_sandbox", sandbox=told["sandbox"])
    assert (told["status"], told["reason"], told["message"][-1]) == ("Expired", "TTLExpired", ".")
    refused = await caller.python("1", sandbox=told["sandbox"])
    assert refused["error"] == ErrorCode.SESSION_NOT_FOUND
    assert (refused["message"][-1], refused["next"][-1]) == (".", ".")


@pytest.mark.claim("create_sandbox.running")
async def test_runs_that_calls_wait_for_are_counted_and_the_others_are_listed(caller: Caller) -> None:
    handle = (await caller.call("create_sandbox"))["sandbox"]

    async def running() -> int:
        return int((await caller.call("get_sandbox", sandbox=handle))["running"])

    waiting = asyncio.create_task(caller.python(WAIT_FOR.format("done"), sandbox=handle))
    while await running() == 0:
        pass
    begun = await caller.call("start_run", code="import time; time.sleep(600)", sandbox=handle)
    assert await running() == 1
    runs = {run["run_id"]: run["background"] for run in (await caller.call("list_runs", sandbox=handle))["runs"]}
    assert (runs.pop(begun["run_id"]), list(runs.values())) == (True, [False])
    await caller.call("write_file", path="done", text="", sandbox=handle)
    assert (await waiting)["outcome"] == "ok"
    assert await running() == 0
    await caller.call("close_sandbox", sandbox=handle, force=True)


@pytest.mark.claim(
    "run_python_code.artifacts.path",
    "run_python_code.artifacts.mime_type",
    "list_files.entries.kind",
    "list_files.entries.modified_at",
    "list_files.truncated",
)
async def test_files_are_told_by_what_they_are(caller: Caller) -> None:
    code = "import os\nos.makedirs('kinds/d')\nos.mkfifo('kinds/o')\nos.symlink('d', 'kinds/s')\n"
    await caller.python(f"{code}open('kinds/t.csv', 'w').write('a,b')\nos.utime('kinds/t.csv', (0, 1_000_000_000))")
    entries = {entry.pop("path"): entry for entry in (await caller.call("list_files", path="kinds"))["entries"]}
    assert {path: entry["kind"] for path, entry in entries.items()} == {
        "kinds/d": "directory",
        "kinds/o": "other",
        "kinds/s": "symlink",
        "kinds/t.csv": "file",
    }
    known = {"kind": "file", "size": 3, "modified_at": "2001-09-09T01:46:40Z", "mime_type": "text/csv"}
    assert entries["kinds/t.csv"] == known
    seen = await caller.call("stat_file", path="/workspace/kinds/./t.csv")
    assert seen == {**known, "path": "kinds/t.csv", "sandbox": seen["sandbox"]}
    await caller.python("for i in range(1200): open('kinds/' + 'n' * 240 + str(i), 'w')")
    long = await caller.call("list_files", path="kinds", limit=2000)
    assert (len(long["entries"]) < 1200, long["truncated"]) == (True, True), "not as many as were asked for"
    await caller.call("delete_file", path="kinds", recursive=True)


@pytest.mark.claim(
    "read_file.encoding",
    "read_file.offset",
    "read_file.bytes",
    "read_file.size",
    "read_file.truncated",
    "write_file.sha256",
    "upload_file.size",
    "upload_file.sha256",
    "upload_file.url",
    "upload_file.expires_at",
)
async def test_content_is_told_with_its_place_sizes_and_hash(caller: Caller) -> None:
    data = "h\u00e9llo".encode()
    written = await caller.call("write_file", path="content.txt", text="h\u00e9llo")
    uploaded = await caller.call("upload_file", filename="u.txt", text="h\u00e9llo", overwrite=True)
    for told in (written, uploaded):
        assert (told["size"], told["sha256"]) == (6, hashlib.sha256(data).hexdigest())
    assert (uploaded["url"], uploaded["expires_at"]) == (None, None)
    for offset, limit, content, count, truncated in ((0, 3, "h\u00e9", 3, True), (3, 9, "llo", 3, False)):
        read = await caller.call("read_file", path="content.txt", offset=offset, limit=limit)
        assert (read["content"], read["offset"], read["bytes"]) == (content, offset, count)
        assert (read["size"], read["truncated"], read["encoding"]) == (6, truncated, "utf-8")


@pytest.mark.claim("move_file.source", "move_file.destination")
@pytest.mark.parametrize("root", ["", "/workspace/", "./x/../"])
async def test_paths_are_told_relative_to_the_workspace_however_they_are_given(caller: Caller, root: str) -> None:
    assert (await caller.call("make_directory", path=f"{root}rel"))["path"] == "rel"
    assert (await caller.call("upload_file", filename="a.txt", text="1", path=f"{root}rel"))["path"] == "rel/a.txt"
    assert (await caller.call("upload_file", filename="b.txt", path=f"{root}rel"))["path"] == "rel/b.txt"
    moved = await caller.call("move_file", source=f"{root}rel/a.txt", destination=f"{root}rel/c.txt")
    assert (moved["source"], moved["destination"]) == ("rel/a.txt", "rel/c.txt")
    assert (await caller.call("stat_file", path="rel/c.txt"))["path"] == "rel/c.txt"
    link = await caller.call("create_link", path=f"{root}rel/c.txt")
    read = await caller.call("read_artifact", artifact=f"{root}rel/c.txt")
    assert (link["path"], read["path"]) == ("rel/c.txt", "rel/c.txt")
    async with httpx2.AsyncClient() as http:
        for url in (link["url"], read["url"]):
            assert (await http.get(url)).text == "1"
    assert (await caller.call("delete_file", path=f"{root}rel", recursive=True))["path"] == "rel"


@pytest.mark.claim("create_link.method", "create_link.url", "create_link.expires_at", "fetch_workspace.url")
async def test_links_tell_what_they_allow_and_until_when(caller: Caller) -> None:
    before = datetime.now(UTC)
    get = await caller.call("create_link", path="l.txt", expires=600)
    put = await caller.call("create_link", path="l.txt", method="put", expires=600)
    whole, upload = await caller.call("fetch_workspace"), await caller.call("upload_file", filename="l.txt")
    after = datetime.now(UTC)
    assert (get["method"], put["method"]) == ("get", "put")
    for told in (get, put):
        assert before - STEP <= moment(told["expires_at"]) - timedelta(seconds=600) <= after
    assert min(moment(whole["expires_at"]), moment(upload["expires_at"])) > after
    async with httpx2.AsyncClient() as http:
        assert (await http.put(get["url"], content=b"1")).status_code == 403
        for told in (put, upload):
            assert (await http.put(told["url"], content=b"2")).is_success
        assert (await http.get(get["url"])).content == b"2"
        assert (await http.get(whole["url"])).content.startswith(b"\x1f\x8b")


@pytest.mark.claim("run_python_code.artifacts.url", "read_artifact.content", "read_artifact.truncated")
async def test_artifact_tells_whether_it_goes_on_and_how_the_rest_is_had(caller: Caller) -> None:
    text = lines(0, 200_000)
    code = f"open('long.txt', 'w').write(''.join(f'{{i:0{LINE - 1}}}\\n' for i in range({200_000 // LINE})))"
    assert (await caller.python(code))["outcome"] == "ok"
    read = await caller.call("read_artifact", artifact="long.txt")
    assert (read["encoding"], read["truncated"], read["mime_type"], read["size"]) == (
        "utf-8",
        True,
        "text/plain",
        200_000,
    )
    start = len(read["content"])
    assert read["content"] == text[:start]
    rest = await caller.call("read_file", path=read["path"], offset=start, limit=2**17)
    assert (rest["content"], rest["truncated"]) == (text[start:], False)
    async with httpx2.AsyncClient() as http:
        assert (await http.get(read["url"])).text == text
        head, claims, signature = read["url"].rpartition("=")[2].split(".")
        assert json.loads(base64.urlsafe_b64decode(f"{claims}==="))["exp"] > time.time()
        spoilt = f"{head}.{claims}.{signature[::-1]}"
        assert (await http.get(read["url"].replace(f"{head}.{claims}.{signature}", spoilt))).status_code == 403
