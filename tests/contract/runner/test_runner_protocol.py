"""What a stream may say, and what becomes of one that says something else."""

import asyncio
import hashlib
from pathlib import Path
from typing import Any, get_args

import pytest

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.api.run_results import Outcome
from sandpod_runner.output.stdio_pipes import MAX_WAITING_INPUT
from sandpod_runner.protocol import errors
from sandpod_runner.protocol import messages as protocol
from sandpod_runner.protocol.frames import encode
from sandpod_runner.runs import request
from support.runner.harness import Client, RefusedError, Runner, running


async def test_hello_says_what_the_sandbox_is(runner: Runner, client: Client) -> None:
    assert client.hello["version"] == protocol.VERSION
    assert set(client.hello["languages"]) == set(protocol.LANGUAGES)
    assert all(isinstance(version, str) and version for version in client.hello["languages"].values())
    assert client.hello["workspace"] == str(runner.workspace)
    assert client.hello["runs"] == []


def test_codes_and_outcomes_are_those_of_the_api() -> None:
    assert set(get_args(errors.Code)) <= {code.value for code in ErrorCode}
    assert set(get_args(request.Outcome)) == {outcome.value for outcome in Outcome}


WRONG: dict[str, dict[str, list[Any]]] = {
    "invalid_argument": {
        "run": ["", "a b", "x" * 65, 7, None],
        "args": ["a", [1], ["a\0b"], ["x" * 130_000], ["\ud800"]],
        "env": [[], {"": "x"}, {"A=B": "x"}, {"A": 1}, {"A": "\0"}],
        "stdin": ["yes"],
        "detached": [1],
        "timeout": [0, -1, "1", True, float("inf")],
        "output_limit": [0, 1.5],
        "cwd": [5],
    },
    "unsupported_language": {"language": ["cobol", None, ["python"]]},
    "not_found": {"cwd": ["no/such"]},
    "invalid_path": {"cwd": ["../..", "/etc", "a\0b"]},
}
SENSELESS: list[dict[str, Any]] = [
    {},
    {"t": 1},
    {"t": "nosuch"},
    {"t": "cancel"},
    {"t": "cancel", "run": {"a": 1}},
    {"t": "stdin", "run": 5},
    {"t": "stdin", "run": "x", "eof": "no"},
    {"t": "follow"},
    {"t": "follow", "run": ["x"]},
    {"t": "tail"},
    {"t": "tail", "run": "x"},
    {"t": "tail", "id": "x", "run": "x"},
    {"t": "tail", "id": 1},
    {"t": "list"},
    {"t": "list", "id": 1.5},
    {"t": "usage"},
    {"t": "ping"},
    {"t": "ping", "id": "x"},
    {"t": "file"},
    {"t": "file", "id": True, "op": "stat", "path": "x"},
    {"t": "file", "id": 1, "op": ["x"]},
    {"t": "file", "id": 1, "op": "nosuch", "path": "x"},
    {"t": "file", "id": 1, "op": "read", "path": {"a": 1}},
    {"t": "file", "id": 1, "op": "list", "path": ".", "limit": "many"},
    {"t": "file", "id": 1, "op": "list", "path": ".", "recursive": 1},
    {"t": "hello", "version": protocol.VERSION},
]


async def error_of(client: Client, header: dict[str, Any], payload: bytes = b"") -> str:
    """Return the code with which a frame is refused by a stream that goes on."""
    await client.send(header, payload)
    frame = await client.reply()
    assert frame.kind == "error", header
    assert (await client.ask("ping")).header["runs"] == []
    code: str = frame.header["code"]
    return code


async def test_malformed_run_is_refused_and_the_stream_goes_on(client: Client) -> None:
    for code, fields in WRONG.items():
        for field, wrong in ((field, value) for field, values in fields.items() for value in values):
            header = {"t": "run", "run": "bad", "language": "python", field: wrong}
            assert await error_of(client, header, b"print(1)") == code, (field, wrong)
    assert (await client.run("print(1)")).out == b"1\n"


async def test_frame_that_makes_no_sense_gets_an_error_and_the_stream_goes_on(client: Client) -> None:
    for header in SENSELESS:
        assert await error_of(client, header) in get_args(errors.Code)


async def test_garbage_ends_its_own_stream_and_no_other(runner: Runner, client: Client) -> None:
    for garbage in (b"\xff" * 64, b"GET / HTTP/1.1\r\n\r\n", b"\0\0\0\x02\0\0\0\0[]"):
        bad = await runner.connect()
        await bad.send_raw(garbage)
        frame = await bad.reply()
        assert frame.kind == "error"
        assert await bad.next() is None
        await bad.close()
    assert (await client.run("print(1)")).out == b"1\n"


async def test_stream_that_does_not_begin_with_hello_is_closed(runner: Runner) -> None:
    for first in ({"t": "ping", "id": 1}, {"t": "hello", "version": 99}, {"t": "hello"}):
        client = await runner.connect(greet=False)
        await client.send(first)
        frames = [await client.next() for _ in range(3)]
        assert [frame and frame.kind for frame in frames] == ["hello", "error", None]
        await client.close()


async def test_a_run_that_is_sent_again_is_known_and_not_started_again(runner: Runner, client: Client) -> None:
    code = "echo begun >> count; read x; cat count"
    name = await client.start(code, "shell", stdin=True, run="twice")
    await client.frame_of(name)
    other = await runner.connect()
    again = {"t": "run", "run": name, "language": "shell", "stdin": True}
    await other.send(again, code.encode())
    frame = await other.reply()
    assert (frame.kind, frame.header["run"], frame.header["as"]) == ("known", name, name)
    await client.send({"t": "stdin", "run": name, "eof": True})
    assert (await client.finish(name)).out == b"begun\n"
    await other.send(again, code.encode())
    frame = await other.reply()
    assert frame.kind == "known"
    followed = await other.finish(await other.follow(name))
    assert (followed.out, followed.outcome) == (b"begun\n", "ok")
    await other.close()


async def test_input_that_comes_twice_is_given_once_and_a_gap_in_it_ends_the_run(client: Client) -> None:
    name = await client.start("cat", "shell", stdin=True)
    for offset, part in ((0, b"abc"), (0, b"abc"), (1, b"bcd"), (4, b"e")):
        await client.send({"t": "stdin", "run": name, "offset": offset}, part)
    await client.send({"t": "stdin", "run": name, "offset": 5, "eof": True})
    assert (await client.finish(name)).out == b"abcde"
    name = await client.start("cat", "shell", stdin=True)
    await client.send({"t": "stdin", "run": name, "offset": 1}, b"b")
    ended = await client.finish(name)
    assert (ended.outcome, "input was lost" in ended.end["detail"]) == ("error", True)


async def test_frames_of_a_run_go_to_the_stream_that_started_it(runner: Runner, client: Client) -> None:
    other = await runner.connect()
    assert (await client.run("print('mine')")).out == b"mine\n"
    assert (await other.ask("ping")).kind == "pong"
    await other.close()


@pytest.mark.promise("top-level-await")
async def test_ping_is_answered_while_programs_use_all_processors(client: Client) -> None:
    names = [await client.start("while :; do :; done", "shell", timeout=999) for _ in range(8)]
    pong = await client.ask("ping")
    assert pong.kind == "pong"
    assert set(names) <= set(pong.header["runs"])
    for name in names:
        await client.send({"t": "cancel", "run": name})
    assert {(await client.finish(name)).outcome for name in names} == {"cancelled"}


@pytest.mark.promise("input")
@pytest.mark.claim("run_python_code(stdin)")
async def test_input_arrives_whole_and_then_ends_and_without_any_it_is_at_its_end(client: Client) -> None:
    data = bytes(range(256)) * 8000
    result = await client.run(
        "import hashlib, sys; print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest())", input=data
    )
    assert result.out.decode().strip() == hashlib.sha256(data).hexdigest()
    assert (await client.run("cat", "shell", input=b"a\nb")).out == b"a\nb"
    assert (await client.run('cat; read x; echo "got:$x"', "shell")).out == b"got:\n"


async def test_input_that_is_never_read_ends_the_run_and_not_the_runner(client: Client) -> None:
    name = await client.start("sleep 999", "shell", stdin=True)
    piece = bytes(1024 * 1024)
    for _ in range(MAX_WAITING_INPUT // len(piece) + 2):
        await client.send({"t": "stdin", "run": name}, piece)
    result = await client.finish(name)
    assert result.outcome == "error"
    assert "input" in result.end["detail"]
    assert (await client.run("print(1)")).out == b"1\n"


async def test_program_that_closes_its_input_goes_on(client: Client) -> None:
    result = await client.run("exec 0<&-; echo on", "shell", input=bytes(500_000))
    assert (result.outcome, result.out) == ("ok", b"on\n")


async def test_shell_command_with_a_nul_byte_is_refused_and_a_long_one_runs(client: Client) -> None:
    with pytest.raises(RefusedError) as refused:
        await client.run(b"echo a\0b", "shell")
    assert refused.value.code == "invalid_content"
    long = "\n".join([": " + "x" * 1000] * 200 + ['echo "end $1"'])
    assert (await client.run(long, "shell", args=["of it"])).out == b"end of it\n"


async def test_shell_has_arguments_environment_and_working_directory(client: Client) -> None:
    await client.file("mkdir", path="sub dir")
    result = await client.run(
        'basename "$PWD"; echo "$MY_VAR|$1|$#"', "shell", cwd="sub dir", env={"MY_VAR": "v"}, args=["a b", "c"]
    )
    assert result.out == b"sub dir\nv|a b|2\n"


async def test_frames_may_come_in_any_pieces(client: Client) -> None:
    data = encode({"t": "ping", "id": 1}) + encode({"t": "ping", "id": 2})
    for index in range(len(data)):
        await client.send_raw(data[index : index + 1])
    for number in (1, 2):
        frame = await client.reply()
        assert frame.header["id"] == number


async def test_replies_wait_for_a_slow_reader_and_hold_up_nobody_else(runner: Runner, client: Client) -> None:
    (runner.workspace / "large").write_bytes(bytes(1024 * 1024))
    greedy = await runner.connect()
    greedy.hold(held=True)
    for number in range(40):
        await greedy.send({"t": "file", "id": number, "op": "read", "path": "large"})
    assert (await client.ask("ping")).kind == "pong"
    greedy.hold(held=False)
    for number in range(40):
        reply = await greedy.reply()
        assert (reply.header["id"], len(reply.payload)) == (number, 1024 * 1024)
    await greedy.close()


async def test_malformed_setting_is_told_in_one_sentence(tmp_path: Path) -> None:
    with running(tmp_path, SANDPOD_PROCESSES="many") as runner:
        assert await asyncio.to_thread(runner.process.wait, 10) == 2
