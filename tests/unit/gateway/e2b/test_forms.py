"""E2B's forms, one by one: paths, envelopes, multipart bodies, hosts, claims, processes, results."""

import base64
import json
import struct
from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.datastructures import Headers

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.api.run_results import Outcome, Rich, RunResult
from sandpod_gateway.content import Picture
from sandpod_gateway.e2b.control import claim_of
from sandpod_gateway.e2b.envd.connect import Decoder, ending, envelope
from sandpod_gateway.e2b.envd.files import Multipart
from sandpod_gateway.e2b.envd.process_forms import command, end_event, process_id
from sandpod_gateway.e2b.errors import NotHereError, answer, answer_inside, connect_error
from sandpod_gateway.e2b.hosts import addressed
from sandpod_gateway.e2b.paths import folder, inside, outside
from sandpod_gateway.e2b.results import end_events, error_of
from sandpod_gateway.errors import SandpodError


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        *((".", "."), ("", "."), ("~", "."), ("/home/user", "."), ("/workspace/", ".")),
        *(("a/b", "a/b"), ("./a/../b", "b"), ("~/a", "a"), ("/home/user/a", "a"), ("/workspace/a", "a")),
    ],
)
def test_home_and_workspace_are_one_folder(given: str, meant: str) -> None:
    assert inside(given) == meant
    assert outside(meant) == ("/home/user" if meant == "." else f"/home/user/{meant}")
    assert folder(given) == (meant, "")
    assert outside("~/a") == "/home/user/~/a"  # the tools have no other name of the home folder


@pytest.mark.parametrize("path", ["/etc/passwd", "..", "../x", "/home/username", "/home/user/../../tmp", "/workspaces"])
def test_no_other_folder_is_in_it(path: str) -> None:
    with pytest.raises(SandpodError) as refused:
        inside(path)
    assert refused.value.code == "invalid_path"
    assert folder(path)[0] == "."
    with pytest.raises(SandpodError):
        outside(path)


def test_a_stream_is_read_however_it_is_cut() -> None:
    whole = envelope({"a": 1}) + envelope({"b": "ü" * 100}) + ending()
    assert whole[:5] == struct.pack(">BI", 0, 8)
    for size in (1, 7, len(whole)):
        decoder = Decoder()
        pieces = [whole[start : start + size] for start in range(0, len(whole), size)]
        assert [json.loads(each) for piece in pieces for each in decoder.feed(piece)] == [{"a": 1}, {"b": "ü" * 100}]
        assert decoder.rest == 0
    assert ending({"code": "x"})[:1] == b"\2"
    for bad, code in ((struct.pack(">BI", 0, 2**31), "upload_too_large"), (b"\1\0\0\0\1x", "invalid_argument")):
        with pytest.raises(SandpodError) as refused:
            list(Decoder().feed(bad))
        assert refused.value.code == code


BODY = (
    b'--B\r\nContent-Disposition: form-data; name="file"; filename="a b.txt"\r\nContent-Type: text/plain\r\n\r\n'
    b"one\r\n--not\r\n--B\r\ncontent-disposition: form-data; name=file; filename=dir/b\r\n\r\n\r\n--B--\r\n"
)


async def bytes_of(body: bytes, size: int) -> AsyncIterator[bytes]:
    for start in range(0, len(body), size):
        yield body[start : start + size]


@pytest.mark.parametrize("size", [1, 10, 1000])
async def test_files_of_a_multipart_body_come_as_it_does(size: int) -> None:
    found: dict[bytes, bytes] = {}
    name = b""
    async for piece in Multipart(b"B").pieces(bytes_of(BODY, size)):
        if piece.kind == "head":
            name = piece.data
            found[name] = b""
        elif piece.kind == "content":
            found[name] += piece.data
    assert found == {b"a b.txt": b"one\r\n--not", b"dir/b": b""}


@pytest.mark.parametrize("body", [b"", b"nothing", BODY[:-10], b"--B\r\n" + b"X" * 10_000, BODY[:60]])
async def test_a_multipart_body_that_is_not_whole_is_refused(body: bytes) -> None:
    with pytest.raises(SandpodError) as refused:
        _ = [piece async for piece in Multipart(b"B").pieces(bytes_of(body, 100))]
    assert refused.value.code == "invalid_argument"


@pytest.mark.parametrize(
    ("host", "path", "sandbox", "port"),
    [
        ("49983-sbx-1.box.example.com", "/e2b/files", "sbx-1", "49983"),
        ("49999-blue.sbx-1.BOX.example.com:8443", "/e2b/files", "blue.sbx-1", "49999"),
        ("api.box.example.com", "/e2b/files", None, None),
        *((host, "/files", None, None) for host in ("box.example.com", "www.box.example.com", "49983-a.example.com")),
        ("123456-a.box.example.com", "/files", None, None),
    ],
)
def test_a_host_names_a_sandbox(host: str, path: str, sandbox: str | None, port: str | None) -> None:
    sent = [(b"host", host.encode()), (b"e2b-sandbox-id", b"other")] if sandbox else [(b"host", host.encode())]
    scope = addressed({"type": "http", "path": "/files", "raw_path": b"/files", "headers": sent}, "box.example.com")
    headers = Headers(scope=scope)
    assert (scope["path"], headers.get("e2b-sandbox-id"), headers.get("e2b-sandbox-port")) == (path, sandbox, port)


def test_a_claim_is_what_a_client_asks_for() -> None:
    claim = claim_of(
        {"templateID": "base", "timeout": 60, "envVars": {"A": "b"}, "metadata": {"who": "me"}, "secure": True}, "ann"
    )
    assert (claim.template, claim.ttl, claim.idle_timeout, claim.metadata) == (None, 60, 60, (("who", "me"),))
    assert [(each.name, each.value, each.masked) for each in claim.secrets] == [("A", "b", False)]
    claim = claim_of({"templateID": "mine", "autoPause": True}, "ann")
    assert (claim.template, claim.idle_timeout, claim.workspace and claim.workspace.persistent) == ("mine", 300, True)


@pytest.mark.parametrize(
    "body",
    [
        *({"timeout": value} for value in (0, -1, 1.5, "5", True, 10**9)),
        *({"templateID": value} for value in (5, "a/b", "A", "x:y")),
        *({"envVars": value} for value in ("x", {"A": 1}, {"a b": "c"}, {"LD_PRELOAD": "x"})),
        *({"metadata": value} for value in ("x", {"a": 1}, {"a": "x" * 3000})),
        *({"mcp": {"x": {}}}, {"iam": {"tokens": {}}}, {"volumeMounts": [{}]}),
        {"network": {"allowOut": ["1.1.1.1"]}},
    ],
)
def test_a_claim_that_cannot_be_had_is_refused(body: dict[str, Any]) -> None:
    with pytest.raises(SandpodError) as refused:
        claim_of(body, "ann")
    assert refused.value.code == "invalid_argument"


def test_a_command_is_what_a_shell_would_run() -> None:
    assert command("/bin/bash", ["-l", "-c", "echo 'a b'"]) == "echo 'a b'"
    assert command("python3", ["-c", "print('x')"]) == """python3 -c 'print('"'"'x'"'"')'"""
    assert len({process_id(f"sbx.run-{number}") for number in range(1000)}) == 1000
    for program, arguments in (("", []), ("x", "y"), ("x", [1]), (None, [])):
        with pytest.raises(SandpodError):
            command(program, arguments)


def run(outcome: Outcome = Outcome.OK, **fields: Any) -> RunResult:
    return RunResult(sandbox="sbx", run_id="sbx.run", outcome=outcome, **fields)


def test_the_end_of_a_command_says_how_it_ended() -> None:
    assert end_event(run(exit_code=0)) == {"exitCode": 0, "exited": True, "status": "exit status 0"}
    assert end_event(run(Outcome.ERROR, exit_code=3)) == {
        "exitCode": 3,
        "exited": True,
        "status": "exit status 3",
        "error": "exit status 3",
    }
    killed = end_event(run(Outcome.CANCELLED, signal="SIGKILL"))
    assert (killed["exitCode"], killed["exited"], killed["error"]) == (-1, False, "signal: SIGKILL")
    for outcome, code in ((Outcome.TIMEOUT, "deadline_exceeded"), (Outcome.SANDBOX_LOST, "unavailable")):
        with pytest.raises(SandpodError) as refused:
            end_event(run(outcome))
        assert connect_error(refused.value)["code"] == code


def test_what_a_run_showed_comes_before_its_value_and_its_error() -> None:
    shown = [
        Rich(index=0, mime_type="image/png", size=3),
        Rich(index=0, mime_type="text/plain", size=5, text="<Fig>"),
        Rich(index=1, mime_type="application/json", size=7, text='{"a":1}'),
        Rich(index=2, mime_type="image/webp", size=3),
        Rich(index=3, mime_type="image/jpeg", size=3),
    ]
    result = run(displays=shown, result={"text/plain": "'x'", "text/html": "<b>"})
    pictures = [Picture("image/png", b"png"), Picture("image/webp", b"web"), Picture("image/jpeg", b"jpg")]
    assert list(end_events(result, pictures)) == [
        {
            "type": "result",
            "is_main_result": False,
            "png": base64.b64encode(b"png").decode(),
            "text": "<Fig>",
        },
        {"type": "result", "is_main_result": False, "json": {"a": 1}},
        {"type": "result", "is_main_result": False},
        {"type": "result", "is_main_result": False, "jpeg": base64.b64encode(b"jpg").decode()},
        {"type": "result", "is_main_result": True, "text": "x", "html": "<b>"},
    ]
    error = "noise\nTraceback (most recent call last):\n  File\nmod.SomeError: it: broke\n"
    assert error_of(run(Outcome.ERROR, exit_code=1, stderr=error)) == {
        "name": "SomeError",
        "value": "it: broke",
        "traceback": "Traceback (most recent call last):\n  File\nmod.SomeError: it: broke",
    }
    assert error_of(run(Outcome.ERROR, exit_code=2)) == {
        "name": "ExecutionError",
        "value": "exit code 2",
        "traceback": "",
    }
    assert error_of(run(Outcome.ERROR, exit_code=2, stderr="sh: no"))["value"] == "no"  # type: ignore[index]
    assert error_of(run(Outcome.OUT_OF_MEMORY))["name"] == "MemoryError"  # type: ignore[index]
    assert error_of(run()) is None


def test_refusals_have_the_form_that_clients_know() -> None:
    gone = SandpodError(ErrorCode.SESSION_NOT_FOUND, "x.", next_step="")
    assert (answer(gone).status_code, answer_inside(gone).status_code) == (404, 502)
    assert connect_error(gone) == {"code": "unavailable", "message": "The sandbox was not found."}
    busy = SandpodError(ErrorCode.RATE_LIMITED, "Slow.", next_step="", retry_after=3, cause="why")
    said = answer(busy)
    assert (said.status_code, said.headers["retry-after"]) == (429, "3")
    assert json.loads(bytes(said.body)) == {"code": 429, "message": "Slow (why)."}
    assert (answer(NotHereError("No.")).status_code, connect_error(NotHereError("No."))["code"]) == (
        501,
        "unimplemented",
    )
