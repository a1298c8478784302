"""Images that were not made for Sandpod: one with Ruby and Python, one with next to nothing. `images/` has them."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from sandpod_api import names
from support.background import read_until
from support.cluster.callers import Caller, Session, kept
from support.cluster.cluster import Cluster


@pytest.fixture(scope="module")
def ruby(alice: Caller) -> Iterator[str]:
    """One sandbox for all tests here: making one takes longer than they do."""
    with kept(alice, template="ruby") as handle:
        yield handle


@pytest.fixture(scope="module")
def busybox(alice: Caller) -> Iterator[str]:
    """As above."""
    with kept(alice, template="busybox") as handle:
        yield handle


@pytest.mark.promise("injected-runner")
async def test_runner_is_brought_locked_down_and_finds_the_network_closed(cluster: Cluster, busybox: str) -> None:
    pod = await cluster.pod_of(busybox)
    [brings], [container] = pod["spec"]["initContainers"], pod["spec"]["containers"]
    assert brings["securityContext"] == container["securityContext"]
    [mount] = [m for m in container["volumeMounts"] if m["name"] == "runner"]
    assert mount["readOnly"]
    conditions = {c["type"]: c["status"] for c in (await cluster.sandbox(busybox))["status"]["conditions"]}
    assert (conditions["NetworkIsolated"], conditions["Ready"]) == ("True", "True")


@pytest.mark.parametrize("template", ["ours", "ruby", "busybox"])
async def test_interpreter_of_what_comes_in_can_be_executed_and_not_read(
    session: Session, sandbox: str, ruby: str, busybox: str, template: str
) -> None:
    place = {"ours": sandbox, "ruby": ruby, "busybox": busybox}[template]
    code = f"f={names.SHIELDED_COMMAND[0]}; chmod 755 $f; [ -x $f ] && ! cat $f > /dev/null && echo shielded"
    reply = await session.call("run_shell_command", command=code, sandbox=place)
    assert reply["stdout"] == "shielded\n", reply


async def test_python_of_the_image_works_as_in_ours(session: Session, ruby: str) -> None:
    code = "import os, sys\nprint(sys.executable, os.getcwd(), os.environ.get('SECRET_OF_IMAGE'), sys.path[-1])"
    reply = await session.python(code, sandbox=ruby)
    assert (reply["outcome"], reply["stderr"]) == ("ok", ""), reply
    executable, cwd, secret, path = reply["stdout"].split()
    assert (cwd, secret) == ("/workspace", "None")
    assert "/opt/sandpod" not in executable + path
    failed = await session.python("def f():\n    raise ValueError('needle')\nf()", sandbox=ruby)
    assert (failed["exit_code"], failed["stderr"].count("line 2, in f")) == (1, 1), failed
    await session.python("x = 20", sandbox=ruby, context="c")
    kept = await session.python("x + 1", sandbox=ruby, context="c")
    assert (kept["result"], kept["context_state"]) == ({"text/plain": "21"}, "kept"), kept
    late = await session.python("print('before')\nimport time; time.sleep(60)", sandbox=ruby, timeout=2)
    assert (late["outcome"], late["stdout"]) == ("timeout", "before\n")
    assert late["cpu_ms"] > 0
    assert late["max_rss_bytes"] > 0


async def test_python_of_the_image_streams(session: Session, ruby: str) -> None:
    waiting = asyncio.Event()

    async def note(text: str) -> None:
        if "first" in text:
            waiting.set()

    # It ends when a file is there, which is written once the first line has been seen.
    code = (
        "import os, time\nprint('first', flush=True)\nwhile not os.path.exists('go'): time.sleep(0.01)\nprint('last')"
    )
    run = asyncio.create_task(session.call("run_python_code", code=code, sandbox=ruby, timeout=60, on_output=note))
    await asyncio.wait_for(waiting.wait(), 60)
    written = await session.call("write_file", sandbox=ruby, path="go", text="")
    assert not written.is_error, written
    assert (await run)["stdout"] == "first\nlast\n"


@pytest.mark.claim("run_shell_command(language)", "start_run(language)")
async def test_language_of_the_template_runs_in_a_call_and_in_the_background(session: Session, ruby: str) -> None:
    code = 'puts "hi #{RUBY_VERSION} #{ENV["GEM_HOME"]} #{__FILE__[-3..]} #{STDIN.read}"\nexit 3'
    reply = await session.call("run_shell_command", command=code, language="ruby", sandbox=ruby, stdin="in")
    assert (reply["exit_code"], reply["outcome"], reply["stderr"]) == (3, "error", ""), reply
    assert (reply["stdout"].split()[0], reply["stdout"].split()[2:]) == ("hi", ["/opt/gems", ".rb", "in"])
    run = await session.call("start_run", code="puts ARGV.inspect", language="ruby", args=["a b", "$x"], sandbox=ruby)
    read = await read_until(session.call, run["run_id"])
    assert read["stdout"] == '["a b", "$x"]\n', read
    listed = {each["run_id"]: each for each in (await session.call("list_runs", sandbox=ruby))["runs"]}
    assert listed[run["run_id"]]["language"] == "ruby"
    strict = await session.call("run_shell_command", command="false\necho no", language="bash", sandbox=ruby)
    assert (strict["exit_code"], strict["stdout"]) == (1, "")
    late = await session.call("run_shell_command", command="sleep", language="ruby", sandbox=ruby, timeout=1)
    assert late["outcome"] == "timeout", late


@pytest.mark.parametrize("language", ["lua", "cobol"])
async def test_language_that_is_not_there_is_refused_with_those_that_are(
    session: Session, ruby: str, language: str
) -> None:
    reply = await session.call("run_shell_command", command="1", language=language, sandbox=ruby)
    assert (reply.error, reply["message"]) == ("unsupported_language", f"This sandbox has no {language}.")
    assert "It has: bash, python, ruby, shell." in reply["next"], reply


@pytest.mark.promise("injected-runner")
@pytest.mark.claim("run_shell_command")
async def test_image_with_next_to_nothing_runs_commands(session: Session, busybox: str) -> None:
    async def shell(command: str, **arguments: Any) -> Any:
        return await session.call("run_shell_command", command=command, sandbox=busybox, **arguments)

    reply = await shell("cat; echo err >&2; id -u; id -G; ls /lib /usr 2>/dev/null; exit 3", stdin="in\n")
    # The group that the image's own files give to its user is not among them.
    assert (reply["exit_code"], reply["stdout"], reply["stderr"]) == (3, "in\n1000\n1000\n", "err\n"), reply
    late = await shell("echo before; sleep 301 & sleep 301", timeout=2)
    assert (late["outcome"], late["stdout"]) == ("timeout", "before\n")
    assert (await shell("ps -o args | grep -c '[s]leep 301'"))["stdout"] == "0\n"
    flood = await shell("yes 0123456789 | head -c 1000000; printf '\\377 needle'")
    assert (flood["stdout_bytes"], flood["stdout_truncated"]) == (1_000_008, True)
    assert flood["stdout"].endswith("\ufffd needle")
    awk = await shell('BEGIN { print "awk", 6 * 7 }', language="awk")
    assert awk["stdout"] == "awk 42\n", awk
    closed = await shell("touch /opt/sandpod/runner/x /bin/x; wget -T 1 -q http://10.96.0.1:443/ && echo open")
    assert closed["stdout"] == ""
    assert closed["stderr"].count("Read-only file system") == 2, closed


async def test_run_in_such_an_image_is_cancelled_in_the_background_and_files_are_served(
    session: Session, busybox: str
) -> None:
    command = "echo $$ > pid; echo begun; sleep 302"
    run = await session.call("start_run", code=command, language="shell", sandbox=busybox, timeout=300)
    await read_until(session.call, run["run_id"], "begun\n")
    assert (await session.call("read_file", sandbox=busybox, path="pid"))["content"].strip().isdecimal()
    stopped = await session.call("stop_run", run_id=run["run_id"])
    assert stopped["result"]["outcome"] == "cancelled"
    left = await session.call("run_shell_command", command="ps -o args | grep -c '[s]leep 302'", sandbox=busybox)
    assert left["stdout"] == "0\n"


async def test_what_such_an_image_can_not_do_is_refused_by_code(session: Session, busybox: str) -> None:
    for tool, arguments in (
        ("run_python_code", {"code": "1"}),
        ("run_python_code", {"code": "1", "context": "c"}),
        ("run_js_code", {"code": "1"}),
        ("start_run", {"code": "1"}),
    ):
        reply = await session.call(tool, sandbox=busybox, **arguments)
        assert reply.error == "unsupported_language", reply
        assert "It has: awk, shell." in reply["next"]
    assert (await session.call("list_contexts", sandbox=busybox))["contexts"] == []


async def test_capabilities_tell_the_languages_of_each_template(session: Session) -> None:
    [content] = await session.client.read_resource("sandpod://capabilities")
    told = json.loads(content.text)  # type: ignore[union-attr]  # it is text
    templates = {each["name"]: each for each in told["templates"]["available"]}
    assert templates["ruby"]["languages"] == ["python", "javascript", "shell", "ruby", "bash", "lua"]
    assert "contexts need python3 or node" in templates["busybox"]["note"]
    assert "note" not in templates["default"]
    assert templates["default"]["languages"] == told["languages"]
