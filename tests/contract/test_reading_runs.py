"""Reading background runs: by parts, until their end, and what is no longer kept. Local sandboxes, a real client."""

import asyncio

import pytest

from support.background import LINE, lines
from support.gateway.served import Served

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.needs_userns]

WAIT_FOR = "import os, time\nwhile not os.path.exists({!r}): time.sleep(0.01)\n"


async def test_reading_goes_on_at_its_cursor_and_its_result_has_all_of_the_output(served: Served) -> None:
    code = f"import sys\nsys.stderr.write('e')\nsys.stderr.flush()\n{WAIT_FOR.format('go')}print('late')"
    begun = await served.call("start_run", code=code, context="told")
    first = await served.call("read_run", run_id=begun["run_id"], wait=20)
    assert (first["stdout"], first["stderr"], first["state"], first["result"]) == ("", "e", "running", None)
    [listed] = [run for run in (await served.call("list_runs"))["runs"] if run["run_id"] == begun["run_id"]]
    assert (listed["background"], listed["context"], listed["outcome"]) == (True, "told", None)
    contexts = {entry["name"]: entry for entry in (await served.call("list_contexts"))["contexts"]}
    assert (contexts["told"]["state"], begun["sandbox"]) == ("busy", first["sandbox"])
    await served.call("write_file", path="go", text="")
    last = await served.call("read_run", run_id=begun["run_id"], cursor=first["cursor"], wait=20)
    while last["result"] is None:
        last = await served.call("read_run", run_id=begun["run_id"], cursor=first["cursor"], wait=20)
    result = last["result"]
    assert (last["stdout"], last["stderr"], last["state"]) == ("late\n", "", "ended")
    assert (result["stdout"], result["stderr"], result["outcome"]) == ("late\n", "e", "ok")
    assert (result["stdout_truncated"], result["stderr_truncated"], result["stderr_bytes"]) == (False, False, 1)
    assert (result["context"], result["context_state"]) == ("told", "kept")
    [listed] = [run for run in (await served.call("list_runs"))["runs"] if run["run_id"] == begun["run_id"]]
    assert (listed["state"], listed["outcome"]) == ("ended", "ok")


@pytest.mark.claim("read_run(until)", "read_run(max_output)")
async def test_reading_until_the_end_gives_all_that_was_written_and_cuts_its_middle(served: Served) -> None:
    code = f"for epoch in range(8): print('epoch', epoch, flush=True)\n{WAIT_FOR.format('end')}print('done')"
    begun = await served.call("start_run", code=code)
    epochs = "".join(f"epoch {epoch}\n" for epoch in range(8))
    some = await served.call("read_run", run_id=begun["run_id"], wait=20)
    while some["cursor"] < len(epochs):
        some = await served.call("read_run", run_id=begun["run_id"], wait=20)
    none = await served.call("read_run", run_id=begun["run_id"], cursor=some["cursor"], until="end", wait=0.5)
    assert (none["stdout"], none["state"], none["result"]) == ("", "running", None)
    waiting = asyncio.create_task(
        served.call("read_run", run_id=begun["run_id"], cursor=some["cursor"], until="end", wait=60)
    )
    await served.call("write_file", path="end", text="")
    last = await waiting
    assert (last["stdout"], last["result"]["stdout"]) == ("done\n", f"{epochs}done\n")
    assert not last["result"]["stdout_truncated"]
    whole = await served.call("read_run", run_id=begun["run_id"], until="end")
    assert whole["stdout"] == whole["result"]["stdout"] == last["result"]["stdout"]


@pytest.mark.claim("read_run(until)", "read_run(max_output)")
async def test_long_output_of_a_run_is_cut_at_its_end_and_read_on_by_parts(served: Served) -> None:
    code = f"import sys\nfor number in range(40_000): print(f'{{number:0{LINE - 1}}}')\nsys.stderr.write('short')"
    begun = await served.call("start_run", code=code)
    last = await served.call("read_run", run_id=begun["run_id"], until="end", wait=60, max_output=2000)
    result = last["result"]
    for told in (last, result):
        assert told["stdout"].startswith(lines(0, 900))
        assert told["stdout"].endswith(lines(40_000 * LINE - 900, 900))
        assert (len(told["stdout"]) < 2100, told["stderr"]) == (True, "short")
    assert (result["stdout_truncated"], result["stderr_truncated"]) == (True, False)
    assert f'read_run(run_id="{begun["run_id"]}")' in result["hint"]
    part = await served.call("read_run", run_id=begun["run_id"], max_output=2000)
    assert (part["stdout"], part["state"], part["result"]) == (lines(0, 2000), "ended", None)
    more = await served.call("read_run", run_id=begun["run_id"], cursor=part["cursor"])
    assert more["stdout"] == lines(2000, 24_000)


async def test_pieces_of_both_streams_by_turns_are_all_read(served: Served) -> None:
    code = "import sys\nfor _ in range(3000):\n    for f in (sys.stdout, sys.stderr): f.write('x'); f.flush()"
    begun = await served.call("start_run", code=code)
    last = await served.call("read_run", run_id=begun["run_id"], until="end", wait=60)
    assert (last["stdout"], last["stderr"]) == ("x" * 3000, "x" * 3000)
    cursor, read = 0, dict.fromkeys(("stdout", "stderr"), "")
    while True:
        part = await served.call("read_run", run_id=begun["run_id"], cursor=cursor)
        cursor, read = part["cursor"], {name: text + part[name] for name, text in read.items()}
        if part["result"] is not None:
            break
    assert read == {"stdout": "x" * 3000, "stderr": "x" * 3000}


@pytest.mark.claim("stop_run")
async def test_output_that_is_no_longer_kept_is_counted_and_the_end_of_a_stopped_run_is_told(served: Served) -> None:
    size = 24 * 2**20
    own = (await served.call("create_sandbox"))["sandbox"]  # what is kept of so much takes room in the workspace
    code = f"import time\nprint('\\n'.join(f'{{n:0{LINE - 1}}}' for n in range({size // LINE})), flush=True)\n"
    code += "open('written', 'w')\ntime.sleep(600)"
    begun = await served.call("start_run", code=code, sandbox=own)
    reading = await served.call("read_run", run_id=begun["run_id"], wait=20)
    while reading["dropped_bytes"] == 0:  # the first bytes are still kept
        reading = await served.call("read_run", run_id=begun["run_id"])
    start, text = reading["dropped_bytes"], reading["stdout"]
    assert (text, reading["cursor"]) == (lines(start, len(text)), start + len(text))
    while "error" in await served.call("stat_file", path="written", sandbox=own):
        pass
    stopped = await served.call("stop_run", run_id=begun["run_id"])
    assert stopped["stdout"].endswith(lines(size - LINE, LINE))
    assert stopped["result"]["stdout"].endswith(lines(size - LINE, LINE))
    assert (stopped["result"]["outcome"], stopped["result"]["stdout_truncated"]) == ("cancelled", True)
    assert stopped["result"]["stdout_bytes"] == size
    await served.call("close_sandbox", sandbox=own)
