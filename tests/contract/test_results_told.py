"""What descriptions of the fields of results say, tried by a client in local sandboxes.

What other tests see by the way is not tried again here.
"""

import asyncio
import re
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import pytest_asyncio
from fastmcp import Client

from sandpod_gateway.api.results import ErrorCode
from support.gateway.peers import until
from support.gateway.served import Served, local_gateway

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.needs_userns]

MB = 1_000_000
LINE = 64
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


def lines(start: int, size: int) -> str:
    """Return what comes at a place of numbered lines."""
    first = start // LINE
    text = "".join(f"{number:0{LINE - 1}}\n" for number in range(first, first + size // LINE + 2))
    return text[start - first * LINE :][:size]


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
    "start_run.sandbox",
    "start_run.state",
    "read_run.stdout",
    "read_run.stderr",
    "read_run.cursor",
    "read_run.result",
    "list_runs.runs.background",
    "list_runs.runs.context",
    "list_runs.runs.outcome",
    "list_contexts.contexts.state",
)
async def test_reading_goes_on_at_its_cursor_and_its_result_has_all_of_the_output(caller: Caller) -> None:
    code = f"import sys\nsys.stderr.write('e')\nsys.stderr.flush()\n{WAIT_FOR.format('go')}print('late')"
    begun = await caller.call("start_run", code=code, context="told")
    first = await caller.call("read_run", run_id=begun["run_id"], wait=20)
    assert (first["stdout"], first["stderr"], first["state"], first["result"]) == ("", "e", "running", None)
    [listed] = [run for run in (await caller.call("list_runs"))["runs"] if run["run_id"] == begun["run_id"]]
    assert (listed["background"], listed["context"], listed["outcome"]) == (True, "told", None)
    contexts = {entry["name"]: entry for entry in (await caller.call("list_contexts"))["contexts"]}
    assert (contexts["told"]["state"], begun["sandbox"]) == ("busy", first["sandbox"])
    await caller.call("write_file", path="go", text="")
    last = await caller.call("read_run", run_id=begun["run_id"], cursor=first["cursor"], wait=20)
    while last["result"] is None:
        last = await caller.call("read_run", run_id=begun["run_id"], cursor=first["cursor"], wait=20)
    result = last["result"]
    assert (last["stdout"], last["stderr"], last["state"]) == ("late\n", "", "ended")
    assert (result["stdout"], result["stderr"], result["outcome"]) == ("late\n", "e", "ok")
    assert (result["stdout_truncated"], result["stderr_truncated"], result["stderr_bytes"]) == (False, False, 1)
    assert (result["context"], result["context_state"]) == ("told", "kept")
    [listed] = [run for run in (await caller.call("list_runs"))["runs"] if run["run_id"] == begun["run_id"]]
    assert (listed["state"], listed["outcome"]) == ("ended", "ok")


@pytest.mark.claim("read_run(until)", "read_run(max_output)", "read_run.result", "read_run.stdout")
async def test_reading_until_the_end_gives_all_that_was_written_and_cuts_its_middle(caller: Caller) -> None:
    code = f"for epoch in range(8): print('epoch', epoch, flush=True)\n{WAIT_FOR.format('end')}print('done')"
    begun = await caller.call("start_run", code=code)
    epochs = "".join(f"epoch {epoch}\n" for epoch in range(8))
    some = await caller.call("read_run", run_id=begun["run_id"], wait=20)
    while some["cursor"] < len(epochs):
        some = await caller.call("read_run", run_id=begun["run_id"], wait=20)
    none = await caller.call("read_run", run_id=begun["run_id"], cursor=some["cursor"], until="end", wait=0.5)
    assert (none["stdout"], none["state"], none["result"]) == ("", "running", None)
    waiting = asyncio.create_task(
        caller.call("read_run", run_id=begun["run_id"], cursor=some["cursor"], until="end", wait=60)
    )
    await caller.call("write_file", path="end", text="")
    last = await waiting
    assert (last["stdout"], last["result"]["stdout"]) == ("done\n", f"{epochs}done\n")
    assert not last["result"]["stdout_truncated"]
    whole = await caller.call("read_run", run_id=begun["run_id"], until="end")
    assert whole["stdout"] == whole["result"]["stdout"] == last["result"]["stdout"]


@pytest.mark.claim("read_run(until)", "read_run(max_output)")
async def test_long_output_of_a_run_is_cut_at_its_end_and_read_on_by_parts(caller: Caller) -> None:
    code = f"import sys\nfor number in range(40_000): print(f'{{number:0{LINE - 1}}}')\nsys.stderr.write('short')"
    begun = await caller.call("start_run", code=code)
    last = await caller.call("read_run", run_id=begun["run_id"], until="end", wait=60, max_output=2000)
    result = last["result"]
    for told in (last, result):
        assert told["stdout"].startswith(lines(0, 900))
        assert told["stdout"].endswith(lines(40_000 * LINE - 900, 900))
        assert (len(told["stdout"]) < 2100, told["stderr"]) == (True, "short")
    assert (result["stdout_truncated"], result["stderr_truncated"]) == (True, False)
    assert f'read_run(run_id="{begun["run_id"]}")' in result["hint"]
    part = await caller.call("read_run", run_id=begun["run_id"], max_output=2000)
    assert (part["stdout"], part["state"], part["result"]) == (lines(0, 2000), "ended", None)
    more = await caller.call("read_run", run_id=begun["run_id"], cursor=part["cursor"])
    assert more["stdout"] == lines(2000, 24_000)


async def test_pieces_of_both_streams_by_turns_are_all_read(caller: Caller) -> None:
    code = "import sys\nfor _ in range(3000):\n    for f in (sys.stdout, sys.stderr): f.write('x'); f.flush()"
    begun = await caller.call("start_run", code=code)
    last = await caller.call("read_run", run_id=begun["run_id"], until="end", wait=60)
    assert (last["stdout"], last["stderr"]) == ("x" * 3000, "x" * 3000)
    cursor, read = 0, dict.fromkeys(("stdout", "stderr"), "")
    while True:
        part = await caller.call("read_run", run_id=begun["run_id"], cursor=cursor)
        cursor, read = part["cursor"], {name: text + part[name] for name, text in read.items()}
        if part["result"] is not None:
            break
    assert read == {"stdout": "x" * 3000, "stderr": "x" * 3000}


@pytest.mark.claim("read_run.dropped_bytes", "stop_run")
async def test_output_that_is_no_longer_kept_is_counted_and_the_end_of_a_stopped_run_is_told(caller: Caller) -> None:
    size = 24 * 2**20
    own = (await caller.call("create_sandbox"))["sandbox"]  # what is kept of so much takes room in the workspace
    code = f"for number in range({size // LINE}):\n    print(f'{{number:0{LINE - 1}}}')\n"
    code += "import sys, time\nsys.stdout.flush()\nopen('written', 'w')\ntime.sleep(600)"
    begun = await caller.call("start_run", code=code, sandbox=own)
    reading = await caller.call("read_run", run_id=begun["run_id"], wait=20)
    while reading["dropped_bytes"] == 0:  # the first bytes are still kept
        reading = await caller.call("read_run", run_id=begun["run_id"])
    start, text = reading["dropped_bytes"], reading["stdout"]
    assert (text, reading["cursor"]) == (lines(start, len(text)), start + len(text))
    while "error" in await caller.call("stat_file", path="written", sandbox=own):
        pass
    stopped = await caller.call("stop_run", run_id=begun["run_id"])
    assert stopped["stdout"].endswith(lines(size - LINE, LINE))
    assert stopped["result"]["stdout"].endswith(lines(size - LINE, LINE))
    assert (stopped["result"]["outcome"], stopped["result"]["stdout_truncated"]) == ("cancelled", True)
    assert stopped["result"]["stdout_bytes"] == size
    await caller.call("close_sandbox", sandbox=own)


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
