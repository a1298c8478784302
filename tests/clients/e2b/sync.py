"""E2B's Python client as its quick starts use it. Only E2B_API_URL, E2B_SANDBOX_URL and E2B_API_KEY are not E2B's."""

import io
import os
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from e2b import (
    AuthenticationException,
    CommandExitException,
    FileNotFoundException,
    InvalidArgumentException,
    PtySize,
    SandboxException,
    SandboxNotFoundException,
    SandboxNotRunningException,
    SandboxQuery,
    TimeoutException,
)
from e2b.sandbox.filesystem.filesystem import FileType
from e2b.sandbox.filesystem.watch_handle import FilesystemEventType
from e2b_code_interpreter import Sandbox


def raised(kind: type[Exception], function: Callable[..., Any], *args: Any, **kwargs: Any) -> str:
    """Return the text of the error that a call raises, which is of exactly that kind."""
    try:
        found = function(*args, **kwargs)
    except Exception as error:  # noqa: BLE001 - of any kind
        assert type(error) is kind, repr(error)  # noqa: PT017 - this is no test of pytest's
        return str(error)
    raise AssertionError(f"{function} returned {found}")


def sandboxes(sandbox: Sandbox) -> None:
    """What manages sandboxes."""
    again = Sandbox.connect(sandbox.sandbox_id)
    assert again.is_running()
    info = sandbox.get_info()
    assert (info.sandbox_id, info.metadata, info.state.value) == (sandbox.sandbox_id, {"user": "42"}, "running")
    assert 295 <= (info.end_at - info.started_at).total_seconds() <= 305
    sandbox.set_timeout(3000)
    assert (sandbox.get_info().end_at - info.end_at).total_seconds() > 2000
    other = Sandbox.create()
    pages = Sandbox.list(limit=1)
    found = []
    while pages.has_next:
        found += pages.next_items()
    assert {each.sandbox_id for each in found} == {sandbox.sandbox_id, other.sandbox_id}
    [mine] = Sandbox.list(query=SandboxQuery(metadata={"user": "42"})).next_items()
    assert mine.sandbox_id == sandbox.sandbox_id
    assert (other.kill(), other.kill(), other.is_running()) == (True, False, False)
    [metrics] = sandbox.get_metrics()
    assert 0 < metrics.mem_used < metrics.mem_total
    assert "not persistent" in raised(SandboxException, sandbox.pause)
    assert "501" in raised(SandboxException, sandbox.create_snapshot)
    raised(SandboxNotFoundException, Sandbox.connect, "none")
    raised(AuthenticationException, Sandbox.create, api_key="wrong")
    raised(SandboxException, Sandbox.create, "no-such-template")


def code(sandbox: Sandbox) -> None:
    """Code, what comes of it, and contexts."""
    sandbox.run_code("x = 1")
    execution = sandbox.run_code("x += 1; x")
    assert (execution.text, execution.results[0].is_main_result) == ("2", True)
    out: list[tuple[str, bool]] = []
    errors: list[str] = []
    results: list[Any] = []
    execution = sandbox.run_code(
        "import os, sys\nprint('hello', os.environ['NAME'], os.environ['MORE'])\nprint('oh', file=sys.stderr)\n'text'",
        envs={"MORE": "more"},
        on_stdout=lambda message: out.append((message.line, message.error)),
        on_stderr=lambda message: errors.append(message.line),
        on_result=results.append,
    )
    assert (out, errors, execution.text) == ([("hello world more\n", False)], ["oh\n"], "text")
    assert [each.text for each in results] == ["text"]
    failure = sandbox.run_code("def f():\n    return 1 / 0\nf()").error
    assert (failure.name, failure.value) == ("ZeroDivisionError", "division by zero")
    assert "in f" in failure.traceback
    rich = sandbox.run_code(
        "import matplotlib.pyplot as plt, pandas as pd\nplt.plot([1, 2])\nplt.show()\npd.DataFrame({'a': [7]})"
    )
    picture, table = rich.results
    assert picture.png.startswith("iVBORw0K")
    assert "<table" in table.html
    assert "7" in table.text
    assert sandbox.run_code("const a = 20; a + 1", language="js").text == "21"
    assert sandbox.run_code("echo $((6 * 7))", language="bash").logs.stdout == ["42\n"]
    assert "ruby" in raised(SandboxException, sandbox.run_code, "puts 1", language="ruby")
    raised(TimeoutException, sandbox.run_code, "while True: pass", timeout=0.5)
    assert sandbox.run_code("x").text == "2"  # what was left is stopped, and the variables are kept

    context = sandbox.create_code_context(cwd="/home/user/data")
    assert sandbox.run_code("x = 5; import os; os.path.basename(os.getcwd())", context=context).text == "data"
    assert {each.id for each in sandbox.list_code_contexts()} >= {"default", context.id}
    sandbox.restart_code_context(context)
    assert sandbox.run_code("x", context=context).error.name == "NameError"
    sandbox.remove_code_context(context)
    assert context.id not in {each.id for each in sandbox.list_code_contexts()}


def files(sandbox: Sandbox) -> None:
    """Files and folders."""
    assert sandbox.files.write("/home/user/data/a.txt", "hello").path == "/home/user/data/a.txt"
    assert sandbox.files.read("data/a.txt") == "hello"
    assert sandbox.run_code("open('/home/user/data/a.txt').read()").text == "hello"
    data = bytes(range(256)) * 8000
    written = sandbox.files.write_files([{"path": "b.bin", "data": data}, {"path": "sub/c d.txt", "data": "ü"}])
    assert [each.path for each in written] == ["/home/user/b.bin", "/home/user/sub/c d.txt"]
    assert bytes(sandbox.files.read("b.bin", format="bytes")) == data
    sandbox.files.write("s.bin", io.BytesIO(data))
    assert b"".join(sandbox.files.read("s.bin", format="stream")) == data
    assert sandbox.files.write("data/z.bin", data, gzip=True).name == "z.bin"
    assert bytes(sandbox.files.read("data/z.bin", format="bytes", gzip=True)) == data
    sandbox.files.remove("data/z.bin")
    assert [each.name for each in sandbox.files.list("/home/user")] == ["b.bin", "data", "s.bin", "sub"]
    deep = {each.path: each.type for each in sandbox.files.list(".", depth=2)}
    assert deep["/home/user/sub/c d.txt"] is FileType.FILE
    assert deep["/home/user/data"] is FileType.DIR
    assert (sandbox.files.make_dir("data"), sandbox.files.make_dir("new/er")) == (False, True)
    assert sandbox.files.rename("data/a.txt", "new/b.txt").path == "/home/user/new/b.txt"
    assert (sandbox.files.get_info("new/b.txt").size, sandbox.files.exists("data/a.txt")) == (5, False)
    watch = sandbox.files.watch_dir("new", recursive=True)
    sandbox.files.write("new/er/w.txt", "1")
    sandbox.files.remove("new/b.txt")
    events = {(event.type, event.name) for event in watch.get_new_events()}
    assert events >= {(FilesystemEventType.WRITE, "er/w.txt"), (FilesystemEventType.REMOVE, "b.txt")}
    assert watch.get_new_events() == []
    watch.stop()
    sandbox.files.remove("new")
    # Where a host's name says which sandbox is meant, these addresses are used as they are.
    headers = {"E2b-Sandbox-Id": sandbox.sandbox_id, "Content-Type": "application/octet-stream"}
    ways: list[tuple[Callable[..., str], bytes | None]] = [
        (sandbox.upload_url, b"signed"),
        (sandbox.download_url, None),
    ]
    for made, body in ways:
        query = urlsplit(made("signed.txt", use_signature_expiration=600)).query
        request = Request(f"{os.environ['E2B_SANDBOX_URL']}/files?{query}", body, headers)  # noqa: S310 - http
        with urlopen(request, timeout=60) as answer:  # noqa: S310 - as above
            came = answer.read()
    assert (came, sandbox.files.read("signed.txt")) == (b"signed", "signed")
    sandbox.files.remove("signed.txt")
    raised(FileNotFoundException, sandbox.files.read, "none")
    raised(FileNotFoundException, sandbox.files.list, "none")
    raised(InvalidArgumentException, sandbox.files.read, "/etc/passwd")


def commands(sandbox: Sandbox) -> None:
    """Commands, awaited or not."""
    out: list[str] = []
    result = sandbox.commands.run("echo $NAME; echo oh >&2", on_stdout=out.append, cwd="/home/user/data")
    assert (result.exit_code, result.stdout, result.stderr, out) == (0, "world\n", "oh\n", ["world\n"])
    assert "code 3" in raised(CommandExitException, sandbox.commands.run, "exit 3")
    raised(TimeoutException, sandbox.commands.run, "sleep 60", timeout=0.5)
    assert "user" in raised(InvalidArgumentException, sandbox.commands.run, "id", user="root")
    assert sandbox.commands.run("pwd", cwd="/tmp").stdout == "/tmp\n"

    cat = sandbox.commands.run("cat; echo end", background=True, stdin=True)
    assert cat.pid in {each.pid for each in sandbox.commands.list()}
    sandbox.commands.send_stdin(cat.pid, "one\n")
    sandbox.commands.stream_input(cat.pid, iter(["two\n", "three\n"]))
    other = sandbox.commands.connect(cat.pid)
    cat.close_stdin()
    assert (cat.wait().stdout, other.wait().stdout) == ("one\ntwo\nthree\nend\n",) * 2
    sleeping = sandbox.commands.run("sleep 600", background=True)
    assert (sleeping.kill(), sandbox.commands.kill(sleeping.pid)) == (True, False)
    assert sleeping.pid not in {each.pid for each in sandbox.commands.list()}
    raised(CommandExitException, sleeping.wait)


def terminals(sandbox: Sandbox) -> None:
    """Terminals, of any size, left and gone on with."""
    shown = bytearray()
    pty = sandbox.pty.create(PtySize(rows=30, cols=100), cwd="/home/user/sub", envs={"MINE": "it is"})
    sandbox.pty.send_stdin(pty.pid, b'stty size; echo $MINE ${PWD##*/}; echo ne""xt\n')
    for _, _, data in pty:
        shown += data or b""
        if b"next" in shown:
            break
    assert b"30 100" in shown
    assert b"it is sub" in shown
    assert pty.pid in {each.pid for each in sandbox.commands.list()}
    pty.disconnect()
    sandbox.pty.resize(pty.pid, PtySize(rows=40, cols=120))
    again = sandbox.pty.connect(pty.pid)
    sandbox.pty.stream_input(pty.pid, iter(["stty size;", "exit 3\n"]))
    rest = bytearray()
    assert "code 3" in raised(CommandExitException, again.wait, on_pty=rest.extend)
    assert b"40 120" in rest
    other = sandbox.pty.create(PtySize(rows=1, cols=1), cwd="/tmp")
    raised(InvalidArgumentException, sandbox.commands.send_stdin, other.pid, "x")
    assert (sandbox.pty.kill(other.pid), sandbox.pty.kill(other.pid)) == (True, False)
    raised(CommandExitException, other.wait)


def main() -> None:
    sandbox = Sandbox.create(timeout=300, metadata={"user": "42"}, envs={"NAME": "world"})
    sandboxes(sandbox)
    files(sandbox)
    code(sandbox)
    commands(sandbox)
    terminals(sandbox)
    assert sandbox.kill()
    for function in (lambda: sandbox.commands.run("ls"), lambda: sandbox.files.read("a")):
        raised(SandboxNotRunningException, function)
    raised(TimeoutException, sandbox.run_code, "1")
    raised(SandboxNotFoundException, sandbox.get_info)


if __name__ == "__main__":
    main()
