"""Calls of the MCP tools, over the fake backend: what is the gateway's own doing."""

import asyncio
import contextlib
import itertools
from typing import Any

import pytest

from fakes.runner import FakeRunner
from sandpod_api.conditions import Reason
from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.settings import LimitSettings
from support.gateway.fake_gateway import ERAS, Caller, Place
from support.gateway.peers import until

pytestmark = ERAS
FOREVER = "import time\nprint('begun')\nfor i in range(1000000):\n    time.sleep(0.01)"


async def test_a_run_tells_its_output_exit_code_and_sandbox(alice: Caller) -> None:
    result = await alice.python("import sys\nprint('hello')\nsys.exit(3)")
    assert (result.outcome, result.exit_code, result.stdout, result.stderr) == ("error", 3, "hello\n", "")
    assert result.stdout_bytes == 6
    assert (await alice.call("get_sandbox", sandbox=result.sandbox))["status"] == "Ready"


async def test_calls_without_a_sandbox_share_the_default_one(alice: Caller) -> None:
    first = await alice.python("print(1)")
    await alice.call("write_file", path="kept.txt", text="kept")
    content = await alice.call("read_file", path="kept.txt")
    assert (content["content"], content["sandbox"]) == ("kept", first.sandbox)
    assert len((await alice.call("list_sandboxes"))["sandboxes"]) == 1


@pytest.mark.claim("run_python_code(fresh)")
async def test_a_fresh_sandbox_is_gone_after_the_run(alice: Caller, place: Place) -> None:
    result = await alice.python("print(1)", fresh=True)
    assert await place.backend.get(result.sandbox) is None
    assert (await alice.call("list_sandboxes"))["sandboxes"] == []


async def test_a_fresh_sandbox_ends_by_itself_when_its_gateway_dies(alice: Caller, place: Place) -> None:
    task = asyncio.create_task(alice.python(FOREVER, fresh=True, timeout=60))
    await until(lambda: len(place.backend.launcher.cells) == 1)
    [record] = await place.backend.list("alice")
    assert (record.ttl, record.idle_timeout) == (180, 120)
    await alice.call("close_sandbox", sandbox=record.name, force=True)
    assert (await task).outcome == "cancelled"


async def test_fresh_and_a_handle_exclude_each_other(alice: Caller) -> None:
    answer = await alice.call("run_python_code", code="1", sandbox="sbx-a", fresh=True)
    assert answer["error"] == ErrorCode.INVALID_ARGUMENT


@pytest.mark.parametrize("context", ["x" * 129, "a\nb", "\ud800"])
async def test_a_contexts_name_is_checked_whoever_takes_it(alice: Caller, context: str) -> None:
    for tool in ("run_python_code", "run_js_code", "start_run"):
        answer = await alice.call(tool, code="1", context=context)
        assert answer["error"] in {ErrorCode.INVALID_ARGUMENT, ErrorCode.INVALID_CONTENT}, tool
    assert (await alice.call("list_sandboxes"))["sandboxes"] == []


async def test_output_is_streamed_in_order_while_the_program_runs(alice: Caller) -> None:
    got: list[tuple[float, float | None, str | None]] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        got.append((progress, total, message))

    code = "import time\nfor i in range(5):\n    print(i)\n    time.sleep(0.06)"
    result = await alice.client.call_tool("run_python_code", {"code": code}, progress_handler=note)
    assert result.structured_content is not None
    assert result.structured_content["stdout"] == "0\n1\n2\n3\n4\n" == "".join(message or "" for _, _, message in got)
    assert [number for number, _, _ in got] == list(range(1, len(got) + 1))
    assert len(got) >= 3


async def test_cancelling_a_call_ends_the_program_and_the_sandbox_stays_usable(alice: Caller, place: Place) -> None:
    sandbox = (await alice.python("print(1)")).sandbox
    runner = place.backend.runner(sandbox)
    task = asyncio.create_task(alice.call("run_python_code", code=FOREVER))
    await until(lambda: live(runner) == 1)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    await until(lambda: live(runner) == 0)
    await until(lambda: place.metric("sandpod_runs_total", language="python", outcome="cancelled") == 1)
    assert (await alice.python("print(2)")).stdout == "2\n"


def live(runner: FakeRunner) -> int:
    return len(runner.runs)


@pytest.mark.claim("close_sandbox(force)")
async def test_closing_a_sandbox_with_a_run_needs_force(alice: Caller, place: Place) -> None:
    sandbox = (await alice.python("print(1)")).sandbox
    task = asyncio.create_task(alice.python(FOREVER))
    await until(lambda: live(place.backend.runner(sandbox)) == 1)
    assert (await alice.call("close_sandbox", sandbox=sandbox))["error"] == ErrorCode.SESSION_BUSY
    assert (await alice.call("close_sandbox", sandbox=sandbox, force=True))["closed"]
    result = await task
    assert (result.outcome, result.stdout) == ("cancelled", "begun\n")
    assert (await alice.call("run_python_code", code="1", sandbox=sandbox))["error"] == ErrorCode.SESSION_NOT_FOUND


async def test_a_sandbox_lost_in_a_run_is_told_with_the_output_so_far(alice: Caller, place: Place) -> None:
    sandbox = (await alice.python("print(1)")).sandbox
    task = asyncio.create_task(alice.python(FOREVER, sandbox=sandbox))
    await until(lambda: live(place.backend.runner(sandbox)) == 1)
    await place.backend.lose(sandbox, Reason.EVICTED)
    result = await task
    assert (result.outcome, result.exit_code, result.stdout) == ("sandbox_lost", None, "begun\n")
    assert "get_sandbox" in (result.hint or "")
    assert (await alice.call("get_sandbox", sandbox=sandbox))["status"] == "Failed", "so its files are lost"
    later = await alice.call("run_python_code", code="1", sandbox=sandbox)
    assert later["error"] == ErrorCode.SANDBOX_LOST
    assert (await alice.python("print(2)")).stdout == "2\n", "the default sandbox is replaced"


async def test_a_cut_stream_is_opened_again(alice: Caller, place: Place) -> None:
    sandbox = (await alice.python("print(1)")).sandbox
    await place.backend.drop_streams(sandbox)
    assert (await alice.python("print(2)", sandbox=sandbox)).stdout == "2\n"


async def test_a_handle_that_names_nothing_is_refused_alike_by_all_tools(alice: Caller) -> None:
    handles = ("no-such", "../default", "a b", "x" * 300, "a\0b", "用户", "$(id)", "-x")
    tools: dict[str, dict[str, Any]] = {
        "run_python_code": {"code": "1"},
        "run_js_code": {"code": "1"},
        "run_shell_command": {"command": "true"},
        "get_sandbox": {},
        "close_sandbox": {},
        "list_files": {},
        "read_file": {"path": "a"},
        "write_file": {"path": "a", "text": "b"},
        "upload_file": {"filename": "a", "text": "b"},
        "stat_file": {"path": "a"},
        "make_directory": {"path": "a"},
        "move_file": {"source": "a", "destination": "b"},
        "delete_file": {"path": "a"},
    }
    for handle, (tool, arguments) in itertools.product(handles, tools.items()):
        answer = await alice.call(tool, sandbox=handle, **arguments)
        assert answer["error"] == ErrorCode.SESSION_NOT_FOUND, (tool, handle)


@pytest.mark.claim("instructions")
async def test_someone_elses_sandbox_can_not_be_told_from_none(alice: Caller, place: Place) -> None:
    sandbox = (await alice.python("print(1)")).sandbox
    await alice.call("write_file", path="private.txt", text="mine")
    async with place.connect("bob") as bob:
        for tool, arguments in (
            ("run_python_code", {"code": "1"}),
            ("get_sandbox", {}),
            ("list_files", {}),
            ("read_file", {"path": "private.txt"}),
            ("write_file", {"path": "private.txt", "text": "his"}),
            ("upload_file", {"filename": "private.txt", "text": "his"}),
            ("stat_file", {"path": "private.txt"}),
            ("make_directory", {"path": "private"}),
            ("move_file", {"source": "private.txt", "destination": "his.txt"}),
            ("delete_file", {"path": "private.txt"}),
            ("close_sandbox", {"force": True}),
        ):
            seen = await bob.call(tool, sandbox=sandbox, **arguments)
            assert seen == await bob.call(tool, sandbox="sbx-none", **arguments)
            assert seen["error"] == ErrorCode.SESSION_NOT_FOUND
        assert (await bob.call("list_sandboxes"))["sandboxes"] == []
    assert (await alice.call("read_file", path="private.txt"))["content"] == "mine"


@pytest.mark.promise("object-names")
@pytest.mark.claim("create_sandbox(name)")
async def test_a_name_gives_the_same_sandbox_again_and_others_another(alice: Caller) -> None:
    first = await alice.call("create_sandbox", name="Case")
    assert (await alice.call("create_sandbox", name="Case"))["sandbox"] == first["sandbox"]
    names = ("case", "用户", "n" * 80, "My_Session.1", "7c9e6679-7425-40de-944b-e07fc1f90ae7")
    others = [(await alice.call("create_sandbox", name=name))["sandbox"] for name in names]
    unnamed = [(await alice.call("create_sandbox"))["sandbox"] for _ in range(2)]
    assert len({first["sandbox"], *others, *unnamed}) == 8


@pytest.mark.promise("object-names")
@pytest.mark.claim("instructions", "create_sandbox(name)")
async def test_a_bad_wish_for_a_sandbox_is_refused(alice: Caller) -> None:
    wishes: list[tuple[dict[str, Any], ErrorCode]] = [
        ({"name": "n" * 129}, ErrorCode.INVALID_SESSION_ID),
        ({"name": "a\nb"}, ErrorCode.INVALID_SESSION_ID),
        ({"template": "../x"}, ErrorCode.INVALID_ARGUMENT),
        ({"template": "no-such-template"}, ErrorCode.INVALID_ARGUMENT),
        ({"network": "no-such-profile"}, ErrorCode.INVALID_ARGUMENT),
        ({"lifetime": {"ttl": 0}}, ErrorCode.INVALID_ARGUMENT),
        ({"lifetime": "soon"}, ErrorCode.INVALID_ARGUMENT),
        ({"lifetime": {"ttl": 10**9}}, ErrorCode.INVALID_ARGUMENT),
        ({"colour": "red"}, ErrorCode.INVALID_ARGUMENT),
    ]
    for arguments, code in wishes:
        answer = await alice.call("create_sandbox", **arguments)
        assert answer["error"] == code, arguments
        assert answer["message"]
        assert answer["next"]
    assert (await alice.call("list_sandboxes"))["sandboxes"] == []


async def test_a_refused_claim_is_told_and_counted(alice: Caller, place: Place) -> None:
    place.backend.refuse_claims(ErrorCode.POOL_EXHAUSTED)
    assert (await alice.call("run_python_code", code="1"))["error"] == ErrorCode.POOL_EXHAUSTED
    assert place.metric("sandpod_refusals_total", code="pool_exhausted") == 1
    assert place.metric("sandpod_claims_total", how="refused", code="pool_exhausted") == 1


async def test_files_keep_bytes_and_offer_parts(alice: Caller) -> None:
    written = await alice.call("write_file", path="d/r.bin", content_base64="AAECAwQFBgcICQ==")
    assert written["size"] == 10
    part = await alice.call("read_file", path="d/r.bin", offset=2, limit=3)
    assert (part["content"], part["encoding"], part["bytes"], part["truncated"]) == ("AgME", "base64", 3, True)
    listed = await alice.call("list_files", recursive=True)
    assert {entry["path"] for entry in listed["entries"]} == {"d", "d/r.bin"}


async def test_a_bad_file_is_refused(alice: Caller) -> None:
    files: list[tuple[dict[str, Any], ErrorCode]] = [
        ({"path": "a", "text": "x", "content_base64": "eA=="}, ErrorCode.INVALID_ARGUMENT),
        ({"path": "a"}, ErrorCode.INVALID_ARGUMENT),
        ({"path": "a", "content_base64": "a*bc"}, ErrorCode.INVALID_CONTENT),
        ({"path": "", "text": "x"}, ErrorCode.INVALID_PATH),
        ({"path": "a\0b", "text": "x"}, ErrorCode.INVALID_PATH),
        ({"path": "big", "text": "x" * (2 * 2**20 + 1)}, ErrorCode.UPLOAD_TOO_LARGE),
    ]
    for arguments, code in files:
        assert (await alice.call("write_file", **arguments))["error"] == code, arguments["path"]


async def test_a_result_stays_below_what_clients_take(alice: Caller) -> None:
    result = await alice.client.call_tool("run_python_code", {"code": f"print('{chr(1) * 200_000}')"})
    assert result.structured_content is not None
    assert result.structured_content["stdout_truncated"]
    assert len(str(result.content[0].model_dump_json())) < 2**20


async def test_runs_are_counted_by_language_and_outcome(alice: Caller, place: Place) -> None:
    await alice.python("print(1)")
    await alice.python("import sys\nsys.exit(1)")
    for outcome in ("ok", "error"):
        assert place.metric("sandpod_runs_total", language="python", outcome=outcome) == 1
    assert place.metric("sandpod_run_seconds_count", language="python") == 2
    assert place.metric("sandpod_output_bytes_total", stream="stdout") == 2
    assert place.metric("sandpod_open_streams") == 1


async def test_each_tool_describes_itself_and_its_arguments(alice: Caller) -> None:
    for tool in await alice.client.list_tools():
        assert tool.description
        assert tool.output_schema
        assert tool.annotations is not None
        for name, schema in tool.input_schema["properties"].items():
            # What stdin, args and env are every model knows, and pays for each word.
            assert schema.get("description") or name in {"stdin", "args", "env"}, f"{tool.name}: {name}"


@pytest.mark.claim("run_python_code(max_output)")
async def test_output_is_cut_to_what_a_model_can_take_and_the_hint_says_where_the_rest_is(alice: Caller) -> None:
    lines = "\n".join(["0123456789"] * 100)
    code = f"for i in range(90):\n    print({lines!r})"
    cut = await alice.python(code)
    assert cut.stdout_truncated
    assert len(cut.stdout) < LimitSettings().output_chars + 100
    assert cut.hint is not None
    assert f'read_run(run_id="{cut.run_id}")' in cut.hint
    few, many = await alice.python(code, max_output=200), await alice.python(code, max_output=100_000)
    assert len(few.stdout) < 300
    assert (len(many.stdout), many.stdout_truncated, many.hint) == (99_000, False, None)


async def test_a_sandbox_is_found_by_its_name_and_the_default_one_by_that_word(alice: Caller, place: Place) -> None:
    made = (await alice.call("create_sandbox", name="second"))["sandbox"]
    assert (await alice.python("print(1)", sandbox="second")).sandbox == made
    default = (await alice.python("print(1)")).sandbox
    assert {(await alice.python("print(1)", sandbox=word)).sandbox for word in ("", "default")} == {default}
    async with place.connect("bob") as bob:
        assert (await bob.call("get_sandbox", sandbox="second"))["error"] == ErrorCode.SESSION_NOT_FOUND


async def test_a_default_sandbox_that_takes_anothers_place_says_so_once(alice: Caller, place: Place) -> None:
    first = (await alice.python("print(1)")).sandbox
    await place.backend.lose(first)
    again = await alice.python("print(2)")
    assert "previous default sandbox is gone" in (again.hint or "")
    assert (await alice.python("print(3)")).hint is None
