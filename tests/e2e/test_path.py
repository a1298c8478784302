"""The whole path: a plain MCP client, the gateway, a locked-down pod, and back."""

from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest

from support.cluster.callers import Caller, Era, Session
from support.cluster.cluster import Cluster, forwarded

ERAS: list[Era] = ["auto", "legacy"]


@pytest.mark.parametrize("era", ERAS)
async def test_hello_comes_back_in_each_language_and_protocol_era(alice: Caller, sandbox: str, era: Era) -> None:
    async with alice.connect(era) as session:
        python = await session.python('print("hello")', sandbox=sandbox)
        javascript = await session.call("run_js_code", code='console.log("hello")', sandbox=sandbox)
        shell = await session.call("run_shell_command", command="echo hello", sandbox=sandbox)
    for reply in (python, javascript, shell):
        assert (reply["outcome"], reply["exit_code"], reply["stdout"]) == ("ok", 0, "hello\n"), reply


async def test_tools_have_typed_inputs_and_outputs(session: Session) -> None:
    tools = {tool.name: tool for tool in await session.client.list_tools()}
    expected = {
        *("run_python_code", "run_js_code", "run_shell_command", "create_sandbox", "list_sandboxes", "get_sandbox"),
        *("close_sandbox", "write_file", "read_file", "list_files", "upload_file", "stat_file", "make_directory"),
        *("move_file", "delete_file", "start_run", "read_run", "stop_run", "list_runs", "list_contexts"),
    }
    assert expected <= tools.keys()
    for name in expected:
        schema = tools[name].input_schema
        assert schema["type"] == "object"
        assert all(field.get("description") for field in schema.get("properties", {}).values()), name
        assert tools[name].output_schema, name


async def test_program_gets_stdin_arguments_and_environment(session: Session, sandbox: str) -> None:
    code = "import os, sys\nprint(sys.argv[1:], os.environ['MY_VAR'], sys.stdin.read())"
    reply = await session.python(code, sandbox=sandbox, stdin="ünï", args=["a b", "--c"], env={"MY_VAR": "v"})
    assert reply["stdout"] == "['a b', '--c'] v ünï\n"


async def test_failed_run_keeps_both_streams_and_its_exit_code(session: Session, sandbox: str) -> None:
    code = "import sys\nprint('out')\nprint('err', file=sys.stderr)\nsys.exit(4)"
    reply = await session.python(code, sandbox=sandbox)
    assert (reply["outcome"], reply["exit_code"]) == ("error", 4)
    assert (reply["stdout"], reply["stderr"]) == ("out\n", "err\n")


async def test_timeout_ends_the_program_and_says_so(session: Session, sandbox: str) -> None:
    code = "print('before', flush=True)\nwhile True: pass"
    reply = await session.python(code, sandbox=sandbox, timeout=2)
    assert (reply["outcome"], reply["stdout"]) == ("timeout", "before\n")
    assert reply["exit_code"] != 0


async def test_libraries_are_there_without_any_network(session: Session, sandbox: str) -> None:
    code = "import numpy, pandas, matplotlib\nprint(numpy.arange(4).sum(), len(pandas.DataFrame({'a': [1, 2]})))"
    assert (await session.python(code, sandbox=sandbox))["stdout"] == "6 2\n"


async def test_files_written_by_tools_and_by_code_are_the_same_files(session: Session, sandbox: str) -> None:
    written = await session.call("write_file", path="data/in.txt", text="héllo\n", sandbox=sandbox)
    assert written["size"] == len("héllo\n".encode())
    code = "open('out.txt', 'w').write(open('data/in.txt').read().upper())"
    assert (await session.python(code, sandbox=sandbox))["outcome"] == "ok"
    assert (await session.call("read_file", path="out.txt", sandbox=sandbox))["content"] == "HÉLLO\n"
    listing = await session.call("list_files", path=".", recursive=True, sandbox=sandbox)
    assert {"data/in.txt", "out.txt"} <= {entry["path"] for entry in listing["entries"]}


async def test_default_sandbox_keeps_files_between_calls_and_connections_and_is_its_callers(
    alice: Caller, bob: Caller
) -> None:
    async with alice.connect() as first:
        one = await first.python("open('kept.txt', 'w').write('1')")
    async with bob.connect() as other:
        theirs = await other.python("print(1)")
        await other.close(theirs["sandbox"])
    async with alice.connect("legacy") as second:
        two = await second.python("print(open('kept.txt').read())")
        await second.close(two["sandbox"])
    assert (one["sandbox"], two["stdout"]) == (two["sandbox"], "1\n")
    assert theirs["sandbox"] != one["sandbox"]


async def test_fresh_sandbox_is_used_once_and_gone(session: Session, cluster: Cluster) -> None:
    reply = await session.python("open('f', 'w').write('1')\nprint('once')", fresh=True)
    assert reply["stdout"] == "once\n"
    assert reply["sandbox"] not in await cluster.claimed("alice")


BAD_CALLS: list[tuple[str, dict[str, Any], str]] = [
    ("run_python_code", {"code": "x" * 2_000_000}, "code_too_large"),
    ("run_python_code", {"code": "print('a\0b')"}, "invalid_content"),
    ("run_python_code", {"code": "1", "sandbox": "no-such-sandbox"}, "session_not_found"),
    ("run_python_code", {"code": "1", "sandbox": "../../etc"}, "session_not_found"),
    ("read_file", {"path": "../../etc/passwd"}, "invalid_path"),
    ("create_sandbox", {"template": "no-such-template"}, "invalid_argument"),
    ("create_sandbox", {"template": "Not A Name"}, "invalid_argument"),
]


@pytest.mark.parametrize(("tool", "arguments", "code"), BAD_CALLS, ids=lambda value: str(value)[:40])
async def test_bad_call_gets_a_code_a_sentence_and_a_next_step(
    session: Session, sandbox: str, tool: str, arguments: dict[str, Any], code: str
) -> None:
    place = {} if tool == "create_sandbox" else {"sandbox": sandbox}
    reply = await session.call(tool, **(place | arguments))
    assert reply.error == code, reply
    assert reply["message"]
    assert reply["next"]
    assert (await session.python("print(1)", sandbox=sandbox))["stdout"] == "1\n"


@pytest.mark.promise("not-utf8")
async def test_broken_utf8_is_replaced_and_counted_in_bytes(session: Session, sandbox: str) -> None:
    reply = await session.python(r"import os; os.write(1, b'a\xff\xc3\xa9b')", sandbox=sandbox)
    assert (reply["stdout"], reply["stdout_bytes"]) == ("a\ufffdéb", 5)


async def test_link_made_by_one_gateway_works_at_all_of_them_without_a_key(
    session: Session, sandbox: str, cluster: Cluster
) -> None:
    await session.call("write_file", path="out/t.csv", text="a,b\n", sandbox=sandbox)
    link = urlsplit((await session.call("create_link", path="out/t.csv", sandbox=sandbox))["url"])
    pods = await cluster.component_pods("gateway")
    assert len(pods) > 1
    for pod in pods:
        with forwarded(cluster.namespace, f"pod/{pod}", 8000) as port:
            async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:
                answer = await http.get(f"{link.path}?{link.query}")
                assert (answer.status_code, answer.text) == (200, "a,b\n")
                assert (await http.get(link.path)).status_code == 403


async def test_artifacts_of_a_run_are_told_with_links(session: Session, sandbox: str) -> None:
    run = await session.python("open('t.csv', 'w').write('a,b')", sandbox=sandbox)
    assert [(artifact["path"], artifact["size"]) for artifact in run["artifacts"]] == [("t.csv", 3)]
    async with httpx2.AsyncClient() as http:
        assert (await http.get(run["artifacts"][0]["url"])).text == "a,b"
