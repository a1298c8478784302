"""Programs that last: background runs, contexts, terminals and tools in a cluster's sandboxes."""

import re

import pytest

from support.cluster.callers import Caller, Session
from support.gateway.terminal import terminal


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


async def test_what_programs_import_is_compiled_where_nothing_can_be_written(session: Session, sandbox: str) -> None:
    code = (
        "import importlib.util, pathlib, sys, numpy\n"
        "roots = pathlib.Path(pathlib.__file__).parent, pathlib.Path(numpy.__file__).parent\n"
        "files = [file for root in roots for file in root.glob('*.py')]\n"
        "slow = [file.name for file in files if not pathlib.Path(importlib.util.cache_from_source(file)).exists()]\n"
        "print(len(files) > 100, slow)"
    )
    assert (await session.python(code, sandbox=sandbox))["stdout"] == "True []\n"


async def test_same_idempotency_key_runs_once(session: Session, sandbox: str) -> None:
    code = "open('n', 'a').write('x')\nprint(len(open('n').read()))"
    replies = [await session.python(code, sandbox=sandbox, idempotency_key="k") for _ in range(2)]
    assert {(reply["run_id"], reply["stdout"]) for reply in replies} == {(replies[0]["run_id"], "1\n")}


@pytest.mark.promise("terminal-lossless", "owners-apart")
async def test_terminal_in_a_pod_goes_on_at_whichever_gateway_its_client_comes_back_to(
    proxied: Caller, bob: Caller, sandbox: str
) -> None:
    address, key = proxied.url.removesuffix("/mcp"), proxied.key or ""
    async with terminal(address, sandbox=sandbox, key=key, trust=proxied.trust, cols=90) as shell:
        name = shell.said[0]["terminal"]
        await shell.until(r"\$ ")
        assert re.fullmatch(r"/dev/pts/\d+", await shell.run("tty"))
        assert await shell.run("stty size") == "24 90"
        await shell.type("sh -c 'echo be\"\"gun; exec sleep 600'\n")
        await shell.until("begun\r\n")
        await shell.type("\x03code=$?\n")
        assert await shell.run("echo $code") == "130"
        shell.acks = False
        await shell.type("stty -echo; seq -f 'line %.0f' 20000; echo who''le\n")
        await shell.until("line 50\r\n")
        await shell.socket.close(1001)
    came = shell.seen
    async with terminal(bob.url.removesuffix("/mcp"), sandbox=sandbox, key=bob.key or "", terminal=name) as foreign:
        last, _ = await foreign.last()
        assert last is not None
        assert last["error"]["error"] == "not_found"
    for end, code in (("line 19000\r\n", 1001), ("whole\r\n", 1000)):  # the proxy's gateways take turns
        back = {"terminal": name, "received": len(came)}
        async with terminal(address, sandbox=sandbox, key=key, trust=proxied.trust, **back) as again:
            again.acks = False
            await again.until(end)
            await again.socket.close(code)
        came += again.seen
    assert [int(number) for number in re.findall(rb"line (\d+)\r\n", came)] == [*range(1, 20001)]
