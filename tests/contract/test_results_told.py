"""What descriptions of the fields of results say, tried by a client in local sandboxes.

What other tests see by the way is not tried again here.
"""

import asyncio
import platform
import time
from datetime import UTC, datetime, timedelta

import pytest
from fastmcp import Client

from sandpod_gateway.api.results import ErrorCode
from support.gateway.peers import until
from support.gateway.results import STEP, moment
from support.gateway.served import Served

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.needs_userns]

MB = 1_000_000
WAIT_FOR = "import os, time\nwhile not os.path.exists({!r}): time.sleep(0.01)\n"


async def context_state(served: Served, name: str) -> str:
    [told] = [entry for entry in (await served.call("list_contexts"))["contexts"] if entry["name"] == name]
    return str(told["state"])


async def test_time_processor_time_and_memory_are_those_of_the_program_and_its_children(served: Served) -> None:
    code = "import time\nstart = time.monotonic()\ntime.sleep(1)\nprint(time.monotonic() - start)"
    slept = await served.python(code)
    assert slept["duration_ms"] >= float(slept["stdout"]) * 1000 >= 1000
    assert 0 < slept["cpu_ms"] < 900, "it slept"
    child = f"held = b'x' * {60 * MB}\nimport time\nwhile time.process_time() < 0.3: pass\nprint(time.process_time())"
    code = f"import subprocess, sys\nheld = b'x' * {50 * MB}\nsubprocess.run([sys.executable, '-c', {child!r}])"
    busy = await served.python(code)
    assert busy["cpu_ms"] >= float(busy["stdout"]) * 1000 >= 300
    assert 60 * MB <= busy["max_rss_bytes"] < 110 * MB, "the largest process, not all together"


async def test_end_of_a_run_is_told_by_outcome_exit_code_and_signal(served: Served) -> None:
    handle = (await served.call("create_sandbox"))["sandbox"]
    seen = set()
    for code, outcome, exit_code, signal in (
        ("exit 0", "ok", 0, None),
        ("exit 7", "error", 7, None),
        ("kill -TERM $$", "error", None, "SIGTERM"),
        ("kill -KILL $$", "error", None, "SIGKILL"),
    ):
        told = await served.shell(code, sandbox=handle)
        assert (told["outcome"], told["exit_code"], told["signal"]) == (outcome, exit_code, signal)
        assert (told["sandbox"], told["context"], told["context_state"]) == (handle, None, None)
        read = await served.call("read_run", run_id=told["run_id"])
        assert (read["sandbox"], read["result"]["outcome"]) == (handle, outcome)
        seen.add(told["run_id"])
    assert len(seen) == 4
    await served.call("close_sandbox", sandbox=handle)


@pytest.mark.parametrize(("stream", "other"), [("stdout", "stderr"), ("stderr", "stdout")])
async def test_long_output_is_told_with_head_tail_and_size_of_its_own(served: Served, stream: str, other: str) -> None:
    code = f"import sys\nsys.{stream}.write('head' + 'x' * 300_000 + 'tail')\nsys.{other}.write('short')"
    told = await served.python(code)
    assert (told[stream][:4], told[stream][-4:], len(told[stream]) < 300_000) == ("head", "tail", True)
    assert (told[f"{stream}_bytes"], told[f"{stream}_truncated"]) == (300_008, True)
    assert (told[other], told[f"{other}_bytes"], told[f"{other}_truncated"]) == ("short", 5, False)


async def test_context_tells_when_it_was_made_and_what_became_of_it(served: Served) -> None:
    before = datetime.now(UTC)
    assert (await served.python("x = 1", context="own"))["context"] == "own"
    after = datetime.now(UTC)
    runs, contexts = (await served.call("list_runs"))["runs"], (await served.call("list_contexts"))["contexts"]
    [made] = [entry for entry in contexts if entry["name"] == "own"]
    assert before - STEP <= moment(made["started_at"]) <= after
    assert before - STEP <= moment(runs[-1]["started_at"]) <= after
    assert (runs[-1]["context"], runs[-1]["background"], made["state"]) == ("own", False, "idle")
    kept = await served.python("x", context=made["name"])
    assert (kept["result"], kept["context_state"]) == ({"text/plain": "1"}, "kept")
    assert (await served.python("import os; os._exit(3)", context="own"))["context_state"] == "lost"
    assert "NameError" in (await served.python("x", context="own"))["stderr"]
    pid = (await served.python("import os; print(os.getpid())", context="own"))["stdout"].strip()
    await served.shell(f"kill -KILL {pid}")
    while (state := await context_state(served, "own")) == "idle":  # until that is noticed
        pass
    assert state == "lost"
    anew = await served.python("1", context="own")
    assert (anew["outcome"], anew["context_state"], await context_state(served, "own")) == ("ok", "lost", "idle")


async def test_what_is_shown_is_told_in_order_with_its_size(served: Served) -> None:
    told = await served.python(
        "display('h\u00e9', raw=False)\ndisplay({'text/html': '<b>'}, raw=True)", context="shows"
    )
    assert [(shown["index"], shown["mime_type"], shown["size"], shown["text"]) for shown in told["displays"]] == [
        (0, "text/plain", 5, "'h\u00e9'"),
        (1, "text/html", 3, "<b>"),
    ]


async def test_output_that_a_client_did_not_take_is_counted_and_still_in_the_result(served: Served) -> None:
    taken: list[str] = []
    over = asyncio.Event()

    async def note(_progress: float, _total: float | None, message: str | None) -> None:
        taken.append(message or "")
        await over.wait()

    code = f"import sys\nprint('first', flush=True)\n{WAIT_FOR.format('flow')}print('x' * {4 * MB})"
    async with Client(served.mcp.transport) as slow:
        running = asyncio.create_task(slow.call_tool("run_python_code", {"code": code}, progress_handler=note))
        await until(lambda: bool(taken))
        await served.call("write_file", path="flow", text="")
        while (await served.call("list_runs"))["runs"][-1]["state"] == "running":
            pass
        over.set()
        told = (await running).structured_content
    assert told is not None
    assert told["progress_dropped_bytes"] > 0
    assert sum(map(len, taken)) + told["progress_dropped_bytes"] == told["stdout_bytes"] == 4 * MB + 7


async def test_sandbox_tells_what_it_is_and_how_long_it_has_been_used(served: Served) -> None:
    before, begun = datetime.now(UTC), time.monotonic()
    made = await served.call("create_sandbox", name="mine", lifetime={"ttl": 3000, "idle_timeout": 500})
    after, handle = datetime.now(UTC), made["sandbox"]
    assert (made["name"], made["template"], made["network"], made["image"]) == (
        "mine",
        "default",
        "none",
        f"local, Python {platform.python_version()}",
    )
    assert (made["status"], made["reason"], made["message"], made["running"]) == ("Ready", None, None, 0)
    assert before - STEP <= moment(made["created_at"]) <= after
    assert moment(made["expires_at"]) - moment(made["last_activity_at"]) == timedelta(seconds=500)
    used = made
    while used["last_activity_at"] == made["last_activity_at"]:  # times are told in whole seconds
        used = await served.call("list_files", sandbox=handle) and await served.call("get_sandbox", sandbox=handle)
    assert moment(used["expires_at"]) - moment(made["expires_at"]) == moment(used["last_activity_at"]) - moment(
        made["last_activity_at"]
    )
    assert used["age_seconds"] - made["age_seconds"] <= time.monotonic() - begun
    assert used["age_seconds"] > made["age_seconds"]
    assert moment(used["last_activity_at"]) - moment(used["created_at"]) <= timedelta(seconds=used["age_seconds"] + 1)
    short = await served.call("create_sandbox", lifetime={"ttl": 500, "idle_timeout": 500})
    await served.python("1", sandbox=short["sandbox"])
    kept = await served.call("get_sandbox", sandbox=short["sandbox"])
    assert moment(kept["expires_at"]) - moment(kept["created_at"]) == timedelta(seconds=500), "as long as its ttl"
    for name in (handle, short["sandbox"]):
        await served.call("close_sandbox", sandbox=name)


async def test_sandbox_that_has_ended_tells_why(served: Served) -> None:
    told = await served.call("create_sandbox", lifetime={"ttl": 1})
    while told["status"] == "Ready":
        told = await served.call("get_sandbox", sandbox=told["sandbox"])
    assert (told["status"], told["reason"], told["message"][-1]) == ("Expired", "TTLExpired", ".")
    refused = await served.python("1", sandbox=told["sandbox"])
    assert refused["error"] == ErrorCode.SESSION_NOT_FOUND
    assert (refused["message"][-1], refused["next"][-1]) == (".", ".")


async def test_runs_that_calls_wait_for_are_counted_and_the_others_are_listed(served: Served) -> None:
    handle = (await served.call("create_sandbox"))["sandbox"]

    async def running() -> int:
        return int((await served.call("get_sandbox", sandbox=handle))["running"])

    waiting = asyncio.create_task(served.python(WAIT_FOR.format("done"), sandbox=handle))
    while await running() == 0:
        pass
    begun = await served.call("start_run", code="import time; time.sleep(600)", sandbox=handle)
    assert await running() == 1
    runs = {run["run_id"]: run["background"] for run in (await served.call("list_runs", sandbox=handle))["runs"]}
    assert (runs.pop(begun["run_id"]), list(runs.values())) == (True, [False])
    await served.call("write_file", path="done", text="", sandbox=handle)
    assert (await waiting)["outcome"] == "ok"
    assert await running() == 0
    await served.call("close_sandbox", sandbox=handle, force=True)
