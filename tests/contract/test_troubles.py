"""What goes wrong in tools of this kind, tried as a caller of this one would meet it: over HTTP, in a local sandbox."""

import asyncio
import base64
import hashlib
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from urllib.parse import unquote

import httpx2
import pytest
import pytest_asyncio

from support.cluster.callers import Caller, Session
from support.gateway.peers import ENVELOPE, HEADERS
from support.gateway.served import Served

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.needs_userns]


@dataclass(frozen=True)
class Place:
    """A server and a connection to it."""

    session: Session
    http: httpx2.AsyncClient


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def place(served: Served, address: str) -> AsyncIterator[Place]:
    async with Caller(f"{address}/mcp", None).connect() as session:
        yield Place(session, served.http)


@pytest.fixture
def session(place: Place) -> Session:
    return place.session


@pytest.mark.promise("utf8-pieces")
@pytest.mark.parametrize("lead", range(4092, 4097))
async def test_text_is_exact_in_pieces_and_result_wherever_characters_are_cut(session: Session, lead: int) -> None:
    code = f'import sys, time; sys.stdout.write("a"*{lead} + "é漢🙂"*5000); sys.stdout.flush(); time.sleep(0.2)'
    reply = await session.python(code)
    assert reply["stdout"] == "a" * lead + "é漢🙂" * 5000
    assert "".join(reply.progress) == reply["stdout"]


@pytest.mark.promise("not-utf8")
async def test_bytes_that_are_no_text_are_shown_as_replaced_and_the_call_is_an_ordinary_one(session: Session) -> None:
    reply = await session.call("run_shell_command", command=r"printf 'ok \324\377 end\n'; exit 3")
    assert (reply["exit_code"], reply["stdout"]) == (3, "ok \ufffd\ufffd end\n")
    assert (await session.python("print(1)"))["stdout"] == "1\n"


@pytest.mark.promise("long-lines")
async def test_very_long_line_is_cut_in_the_middle_and_what_follows_is_seen(session: Session) -> None:
    reply = await session.python('print("x"*5_000_000); print("tail")')
    assert (reply["outcome"], reply["stdout_truncated"], reply["stdout_bytes"]) == ("ok", True, 5_000_006)
    assert reply["stdout"].startswith("xxx")
    assert reply["stdout"].endswith("x\ntail\n")


@pytest.mark.promise("head-and-tail")
async def test_error_after_much_output_is_seen_and_so_is_that_output_was_cut(session: Session) -> None:
    code = 'for i in range(20000): print("noise", i, "." * 20)\nraise ValueError("needle-42")'
    reply = await session.python(code)
    assert (reply["outcome"], reply["exit_code"], reply["stdout_truncated"]) == ("error", 1, True)
    assert reply["stdout"].startswith("noise 0 ")
    assert "noise 19999 " in reply["stdout"]
    assert "left out" in reply["stdout"]
    assert "ValueError: needle-42" in reply["stderr"]


@pytest.mark.promise("streaming")
async def test_caller_that_asked_for_no_progress_gets_none_and_the_whole_result(place: Place) -> None:
    code = "import time\nfor i in range(5): print(i, flush=True); time.sleep(0.2)"
    params = {"name": "run_python_code", "arguments": {"code": code}, "_meta": ENVELOPE}
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    answer = await place.http.post("/mcp", json=call, headers=HEADERS, timeout=60)
    assert answer.status_code == 200
    assert "notifications/" not in answer.text
    assert r"0\n1\n2\n3\n4\n" in answer.text


@pytest.mark.promise("concurrent-runs")
async def test_calls_at_once_in_one_sandbox_do_not_mix(session: Session) -> None:
    code = "import time\nfor i in range(50): print('{}', flush=True); time.sleep(0.01)\nraise SystemExit({})"
    shell = "for i in $(seq 50); do echo C; sleep 0.01; done; exit 4"
    a, b, c = await asyncio.gather(
        session.python(code.format("A", 2)),
        session.python(code.format("B", 3)),
        session.call("run_shell_command", command=shell),
    )
    assert [reply["stdout"] for reply in (a, b, c)] == ["A\n" * 50, "B\n" * 50, "C\n" * 50]
    assert [reply["exit_code"] for reply in (a, b, c)] == [2, 3, 4]
    assert ["".join(reply.progress) for reply in (a, b, c)] == [reply["stdout"] for reply in (a, b, c)]


@pytest.mark.promise("after-timeout")
async def test_call_after_a_timeout_is_served_and_told_what_was_kept(session: Session) -> None:
    late = await session.python("x = 5\nimport time; time.sleep(60)", context="late", timeout=1)
    assert (late["outcome"], late["context_state"]) == ("timeout", "kept")
    assert (await session.python("print(1 + 1)"))["stdout"] == "2\n"
    assert (await session.python("print(x)", context="late"))["stdout"] == "5\n"


@pytest.mark.promise("idle")
async def test_quiet_run_outlives_the_idle_timeout_and_the_sandbox_then_says_that_it_expired(session: Session) -> None:
    handle = await session.create(lifetime={"ttl": 600, "idle_timeout": 3})
    reply = await session.call("run_shell_command", command="sleep 4; echo done", sandbox=handle)
    assert reply["stdout"] == "done\n"
    async with asyncio.timeout(60):
        while (await session.call("get_sandbox", sandbox=handle))["status"] == "Ready":  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.1)
    gone = await session.python("print(1)", sandbox=handle)
    assert gone.error == "session_not_found"
    assert gone["message"] == "The sandbox has expired: it was not used for its idle timeout."


@pytest.mark.promise("uploads")
@pytest.mark.parametrize("size", [17_000, 19_000, 2**20, 2 * 2**20])
async def test_file_that_a_call_takes_is_the_same_inside(session: Session, size: int) -> None:
    data = os.urandom(size)
    await session.call("write_file", path="up.bin", content_base64=base64.b64encode(data).decode(), overwrite=True)
    seen = await session.call("run_shell_command", command="sha256sum < up.bin")
    assert seen["stdout"].split()[0] == hashlib.sha256(data).hexdigest()


@pytest.mark.promise("uploads")
async def test_file_that_is_too_large_for_a_call_is_refused_with_the_limit_and_the_other_way(session: Session) -> None:
    text = base64.b64encode(bytes(2 * 2**20 + 1)).decode()
    refused = await session.call("write_file", path="over.bin", content_base64=text)
    assert refused.error == "upload_too_large"
    assert f"{2 * 2**20} bytes" in refused["message"]
    assert "upload_file" in refused["next"]
    assert (await session.call("run_shell_command", command="ls over.bin"))["exit_code"] == 2


@pytest.mark.promise("uploads")
@pytest.mark.claim("upload_file")
async def test_file_of_20_mib_comes_in_past_the_model(place: Place) -> None:
    data = os.urandom(20 * 2**20)
    put = await place.session.call("upload_file", filename="large.bin")
    assert (await place.http.put(put["url"], content=data, timeout=60)).status_code == 201
    seen = await place.session.call("run_shell_command", command="sha256sum < large.bin; rm large.bin")
    assert seen["stdout"].split()[0] == hashlib.sha256(data).hexdigest()


@pytest.mark.promise("file-names")
@pytest.mark.parametrize("name", ["Q3 ventes \u2013 été (1).csv", "数据 表.csv", "-rf.txt", 'it\'s "q".txt', ".hidden"])
async def test_odd_name_is_one_name_for_tools_code_and_links(place: Place, name: str) -> None:
    session = place.session
    written = await session.call("write_file", path=f"odd/{name}", text="odd", overwrite=True)
    assert written["path"] == f"odd/{name}"
    listed = await session.call("list_files", path="odd")
    assert f"odd/{name}" in [entry["path"] for entry in listed["entries"]]
    assert (await session.call("read_file", path=f"odd/{name}"))["content"] == "odd"
    code = "import os, sys; assert sys.argv[1] in os.listdir('odd'); open('odd/' + sys.argv[1], 'a').write('!')"
    run = await session.python(code, args=[name])
    assert [artifact["path"] for artifact in run["artifacts"]] == [f"odd/{name}"]
    link = await session.call("create_link", path=f"odd/{name}")
    answer = await place.http.get(link["url"])
    assert (answer.status_code, answer.text) == (200, "odd!")
    assert name in unquote(answer.headers["content-disposition"]).replace("\\", "")


@pytest.mark.promise("no-escape")
async def test_links_of_the_file_system_lead_no_tool_out_of_the_workspace(place: Place) -> None:
    session = place.session
    code = 'import os; os.symlink("/etc/passwd","leak.txt"); os.symlink("/","up")'
    made = await session.python(code)
    assert (made["outcome"], made.data.get("artifacts") or []) == ("ok", [])
    for path in ("leak.txt", "up/etc/passwd", "../../etc/passwd", "/proc/self/environ"):
        refused = await session.call("read_file", path=path)
        assert refused.error in {"invalid_path", "not_found"}, path
        link = await session.call("create_link", path=path)
        if link.error is None:
            assert (await place.http.get(link["url"])).status_code in {400, 404}, path
    shown = await session.call("list_artifacts")
    assert not {"leak.txt", "up"} & {artifact["path"] for artifact in shown["artifacts"]}
    await session.call("run_shell_command", command="rm leak.txt up")


@pytest.mark.promise("clean-environment")
async def test_nothing_of_the_gateways_environment_is_seen_by_any_language(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_X", "1")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    own = {"sandbox": await session.create()}
    python = await session.python("import os; print('\\n'.join(sorted(os.environ)))", **own)
    shell = await session.call("run_shell_command", command="env; ls /var/run/secrets 2>&1", **own)
    javascript = await session.call("run_js_code", code="console.log(Object.keys(process.env).join())", **own)
    for reply in (python, shell, javascript):
        assert "HOME" in reply["stdout"]
        for word in ("SECRET", "KEY", "TOKEN", "SERVICE_HOST", "KUBERNETES"):
            assert word not in reply["stdout"].upper().replace("/VAR/RUN/SECRETS", ""), reply["stdout"]
    await session.close(own["sandbox"])


@pytest.mark.promise("stream-client")
async def test_many_calls_at_once_over_several_sandboxes_while_they_are_listed(session: Session) -> None:
    handles = [await session.create() for _ in range(4)]
    listing = asyncio.create_task(_list_for_ever(session))
    codes = [0, 3, 7]
    for _ in range(3):
        calls = [
            session.call("run_shell_command", command=f"exit {code}", sandbox=handle)
            for handle in handles
            for code in codes
        ]
        assert [reply["exit_code"] for reply in await asyncio.gather(*calls)] == codes * len(handles)
    assert not listing.done()
    listing.cancel()
    for handle in handles:
        await session.close(handle)


async def _list_for_ever(session: Session) -> None:
    while True:
        reply = await session.call("list_sandboxes")
        assert not reply.is_error, reply
