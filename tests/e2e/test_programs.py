"""Programs that last: background runs, contexts and pictures in a cluster's sandboxes."""

import contextlib
from typing import Any

import pytest

from support.background import read_until
from support.cluster.callers import Caller, Session
from support.cluster.cluster import Cluster, until

TICKS = "import time\nfor i in range(3000):\n    print('tick', i, flush=True)\n    time.sleep(0.2)\n"


@pytest.mark.claim("instructions", "start_run")
async def test_background_run_outlives_its_gateway_and_is_found_again(alice: Caller, cluster: Cluster) -> None:
    async with alice.connect() as before:
        sandbox = await before.create(name="lasting")
        run = await before.call("start_run", code=TICKS, sandbox=sandbox, timeout=900)
        first = await read_until(before.call, run["run_id"], "tick 0\n")
        gateways = await cluster.component_pods("gateway")
        await cluster.kubectl("delete", "pod", *gateways, "-n", cluster.namespace, "--force", "--grace-period=0")
    await cluster.rollout("gateway")

    async def read_on() -> Any:
        with contextlib.suppress(Exception):
            async with alice.connect() as after:
                reply = await after.call("read_run", run_id=run["run_id"], cursor=first["cursor"], wait=10)
                return reply if reply.error != "backend_unavailable" else None
        return None

    later = await until("a new gateway reads on", read_on, within=60)
    assert later["state"] == "running", later
    assert later["stdout"].startswith("t"), later
    async with alice.connect() as after:
        stopped = await after.call("stop_run", run_id=run["run_id"])
        assert stopped["result"]["outcome"] == "cancelled", stopped
        annotations = (await cluster.sandbox(sandbox))["metadata"]["annotations"]
        assert annotations["sandpod.dev/busy-until"] > annotations["sandpod.dev/last-activity"]
        await after.close(sandbox)


async def test_someone_elses_run_can_not_be_told_from_none(session: Session, sandbox: str, bob: Caller) -> None:
    run = await session.call("start_run", code="print(1)", sandbox=sandbox)
    async with bob.connect() as other:
        for tool in ("read_run", "stop_run"):
            seen = await other.call(tool, run_id=run["run_id"])
            absent = await other.call(tool, run_id="sbx-none.run-none")
            assert (seen.data, seen.error) == (absent.data, "not_found")


async def test_context_keeps_variables_and_tells_the_last_value(session: Session, sandbox: str) -> None:
    await session.python("import pandas as pd\ntable = pd.DataFrame({'a': [1, 2]})", context="c", sandbox=sandbox)
    reply = await session.python("table", context="c", sandbox=sandbox)
    assert "<table" in reply["result"]["text/html"], reply
    late = await session.python("import time; time.sleep(60)", context="c", sandbox=sandbox, timeout=1)
    assert (late["outcome"], late["context_state"]) == ("timeout", "kept")
    assert (await session.python("print(len(table))", context="c", sandbox=sandbox))["stdout"] == "2\n"


async def test_each_figure_comes_back_once_as_an_image(session: Session, sandbox: str) -> None:
    code = "import matplotlib.pyplot as plt\nfor i in (1, 2):\n    plt.figure(); plt.plot([i, 2 * i])\nplt.show()"
    answer = await session.client.call_tool("run_python_code", {"code": code, "sandbox": sandbox})
    kinds = [part.type for part in answer.content]
    assert kinds == ["text", "image", "image"]
    assert answer.structured_content is not None
    assert (answer.structured_content["outcome"], answer.structured_content["stderr"]) == ("ok", "")


async def test_figure_has_glyphs_for_other_scripts_than_latin(session: Session, sandbox: str) -> None:
    code = "import matplotlib.pyplot as plt\nplt.title('販売 销售 판매')\nplt.plot([1, 2])\nplt.show()"
    reply = await session.python(code, sandbox=sandbox)
    assert (reply["outcome"], reply["stderr"]) == ("ok", "")


async def test_small_tools_that_everybody_expects_are_in_the_image(session: Session, sandbox: str) -> None:
    command = (
        "set -e; mkdir repo; cd repo; git init -q .; echo '{\"a\": 1}' > a.json; jq -c . a.json; file -b a.json\n"
        "zip -q a.zip a.json; unzip -p a.zip; sqlite3 :memory: 'select 6 * 7'\n"
        "git add a.json; git -c user.name=a -c user.email=a@b commit -qm first; git log --format=%s\n"
        "echo 'def test(): assert True' > test_a.py; pytest -q -p no:cacheprovider"
    )
    reply = await session.call("run_shell_command", command=command, sandbox=sandbox)
    lines = reply["stdout"].splitlines()
    assert lines[:5] == ['{"a":1}', "JSON text data", '{"a": 1}', "42", "first"], reply
    assert "1 passed" in lines[-1], reply


async def test_same_idempotency_key_runs_once(session: Session, sandbox: str) -> None:
    code = "open('n', 'a').write('x')\nprint(len(open('n').read()))"
    replies = [await session.python(code, sandbox=sandbox, idempotency_key="k") for _ in range(2)]
    assert {(reply["run_id"], reply["stdout"]) for reply in replies} == {(replies[0]["run_id"], "1\n")}
