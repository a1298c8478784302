"""Detached runs go on whatever becomes of streams and readers, and their output is read with a cursor."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from sandpod_runner.output.output_log import FILE_SIZE
from sandpod_runner.protocol.messages import HIDDEN
from sandpod_runner.runs.delivery import MOST
from sandpod_runner.server.connection import MAX_TAILS
from support.runner.harness import PATIENCE, Client, RefusedError, Runner, Sandbox, running

MIB = 1024 * 1024
KEPT = 17 * MIB
"""Bytes of a detached run's output that can be kept at most: in memory and in its file."""
LOUD = "import sys\nb = b'%064d' % 7 * 1024\nfor _ in range({}): sys.stdout.buffer.write(b)\nprint('last')"
"""Writes so many pieces of 64 KiB."""


async def begun(sandbox: Sandbox, code: str, language: str = "shell", **fields: Any) -> str:
    """Start a detached run whose stream is gone when this returns."""
    gone = await sandbox.connect()
    name = await gone.start(code, language, detached=True, **fields)
    await gone.frame_of(name)
    await gone.close()
    return name


async def read_all(client: Client, name: str) -> tuple[int, dict[str, bytes], dict[str, Any]]:
    """Return how much of a run is lost, what is left of each stream, and its end."""
    cursor = dropped = 0
    streams = {"stdout": b"", "stderr": b""}
    while True:
        reply = await client.ask("tail", run=name, cursor=cursor, wait=PATIENCE, limit=MIB)
        fields, at = reply.header, 0
        for stream, size in fields["pieces"]:
            streams[stream] += reply.payload[at : at + size]
            at += size
        assert at == len(reply.payload) <= MIB
        assert fields["cursor"] == cursor + fields["dropped"] + at
        cursor = fields["cursor"]
        dropped += fields["dropped"]
        if fields["state"] == "ended" and cursor == fields["end"]["stdout_bytes"] + fields["end"]["stderr_bytes"]:
            return dropped, streams, fields["end"]


@pytest.mark.everywhere
async def test_detached_run_survives_its_stream_and_is_read_with_a_cursor(sandbox: Sandbox, client: Client) -> None:
    name = await begun(sandbox, "echo one; echo two >&2; read x; echo three; exit 7", stdin=True)
    reply = await client.ask("tail", run=name, wait=PATIENCE)
    assert (reply.header["state"], reply.header["end"], reply.header["dropped"]) == ("live", None, 0)
    await client.send({"t": "stdin", "run": name, "eof": True})
    dropped, streams, end = await read_all(client, name)
    assert (dropped, streams) == (0, {"stdout": b"one\nthree\n", "stderr": b"two\n"})
    assert (end["run"], end["outcome"], end["exit_code"]) == (name, "error", 7)
    again = await client.ask("tail", run=name, cursor=14, wait=PATIENCE)
    assert (again.header["pieces"], again.header["cursor"], again.header["end"]) == ([], 14, end)


@pytest.mark.claim("read_run")
async def test_tail_takes_no_more_than_its_limit_and_goes_on_at_its_cursor(client: Client) -> None:
    name = (await client.run("echo 0123456789")).end["run"]
    await client.run("printf 0123456789; printf abc >&2", "shell", run="both")
    seen, cursor = [], 0
    while cursor < 13:
        reply = await client.ask("tail", run="both", cursor=cursor, limit=4)
        seen.append((reply.payload, reply.header["pieces"]))
        cursor = reply.header["cursor"]
    assert b"".join(data for data, _ in seen).translate(None, b"abc") == b"0123456789"
    assert all(len(data) <= 4 for data, _ in seen)
    assert (await client.ask("tail", run=name, cursor=0)).header["state"] == "ended"


@pytest.mark.claim("read_run(wait)")
async def test_tail_waits_for_output_and_for_the_end(client: Client, other: Client) -> None:
    name = await client.start("read x; echo heard; read x", "shell", stdin=True, detached=True)
    await client.frame_of(name)
    for cursor, state, output in ((0, "live", b"heard\n"), (6, "ended", b"")):
        waiting = asyncio.create_task(other.ask("tail", run=name, cursor=cursor, wait=PATIENCE))
        await client.send({"t": "stdin", "run": name}, b"\n")
        reply = await waiting
        assert (reply.header["state"], reply.payload) == (state, output)
    assert reply.header["end"]["outcome"] == "ok"


async def test_tail_that_waited_gathers_the_pieces_of_a_line_and_the_end_behind_it(tmp_path: Path) -> None:
    with running(
        tmp_path, prelude=f"from sandpod_runner.server import connection; connection.SETTLE = {2 * PATIENCE}"
    ) as runner:
        client = await runner.connect()
        name = await client.start("read x; printf n; printf ' 3'; printf '\\n'", "shell", stdin=True, detached=True)
        waiting = asyncio.create_task(client.ask("tail", run=name, wait=PATIENCE))
        await client.send({"t": "stdin", "run": name}, b"\n")
        reply = await waiting
        assert (reply.header["state"], reply.payload) == ("ended", b"n 3\n")
        await client.close()


@pytest.mark.claim("read_run(wait)")
async def test_tail_whose_wait_is_over_says_that_there_is_nothing_new(client: Client) -> None:
    name = await client.start("read x", "shell", stdin=True)
    for wait in (0, 0.05):
        reply = await client.ask("tail", run=name, wait=wait)
        assert (reply.header["state"], reply.header["cursor"], reply.payload) == ("live", 0, b"")
    await client.send({"t": "stdin", "run": name}, b"\n")
    await client.finish(name)


async def test_tails_that_wait_are_bounded_and_end_with_their_stream(sandbox: Sandbox, client: Client) -> None:
    many = await sandbox.connect()
    name = await client.start("read x", "shell", stdin=True)
    await client.frame_of(name)  # Streams are read side by side: to another one it may not be known before.
    for number in range(MAX_TAILS + 1):
        await many.send({"t": "tail", "id": number, "run": name, "wait": 30})
    frame = await many.reply()
    assert (frame.header["id"], frame.header["code"]) == (MAX_TAILS, "session_busy")
    await many.close()
    await client.send({"t": "stdin", "run": name}, b"\n")
    assert (await client.finish(name)).outcome == "ok"


async def test_tail_that_makes_no_sense_is_refused(client: Client) -> None:
    name = (await client.run("echo up", "shell")).end["run"]
    bad: dict[str, list[Any]] = {
        "run": [5],
        "cursor": [-1, 4, "0", 2**80],
        "wait": [-1, True, float("nan"), "1"],
        "limit": [0, 1.5],
    }
    for field, wrong in (("run", "no-such-run"), *((field, wrong) for field, each in bad.items() for wrong in each)):
        with pytest.raises(RefusedError) as refused:
            await client.ask("tail", **{"run": name, field: wrong})
        assert refused.value.code == ("not_found" if wrong == "no-such-run" else "invalid_argument"), (field, wrong)


async def test_run_with_much_output_and_no_reader_ends_costs_no_memory_and_its_newest_output_is_kept(
    tmp_path: Path,
) -> None:
    with running(tmp_path) as runner:
        client = await runner.connect()
        await client.run("print(1)")
        before = peak_memory(runner)
        name = await begun(runner, LOUD.format(40 * 16), "python", output_limit=10**9)
        end = await client.until_ended(name)
        assert (end["outcome"], end["stdout_bytes"]) == ("ok", 40 * MIB + 5)
        (file,) = (runner.workspace / HIDDEN).iterdir()
        assert MIB < file.stat().st_size <= FILE_SIZE
        dropped, streams, _ = await read_all(client, name)
        assert len(streams["stdout"]) == end["stdout_bytes"] - dropped
        assert KEPT - MIB < len(streams["stdout"]) <= KEPT
        assert streams["stdout"].endswith(b"%064dlast\n" % 7)
        assert peak_memory(runner) - before < 8 * MIB
        await client.close()
    assert list(runner.workspace.iterdir()) == []


async def test_detached_run_is_not_stopped_by_a_reader_that_does_not_read(sandbox: Sandbox, client: Client) -> None:
    # Far more than can be on its way to a pod's reader beside what is kept.
    slow = await sandbox.connect()
    name = await client.start(f"input()\n{LOUD.format(30 * 16)}", detached=True, stdin=True)
    await client.frame_of(name)
    await slow.follow(name)
    slow.hold(held=True)
    await client.send({"t": "stdin", "run": name}, b"\n")
    assert (await client.until_ended(name))["stdout_bytes"] == 30 * MIB + 5
    slow.hold(held=False)
    result = await slow.finish(name)
    assert result.end["stdout_bytes"] > len(result.out)
    assert result.out.endswith(b"last\n")
    await slow.close()


async def test_full_disk_drops_output_and_the_run_goes_on(tmp_path: Path) -> None:
    # A file of the runner's can't become larger than this: to it the disk is full.
    full = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))"
    with running(tmp_path, prelude=full) as runner:
        client = await runner.connect()
        name = await begun(runner, LOUD.format(4 * 16), "python")
        await client.until_ended(name)
        dropped, streams, end = await read_all(client, name)
        assert (end["outcome"], end["stdout_bytes"]) == ("ok", 4 * MIB + 5)
        assert 2 * MIB < dropped < 4 * MIB
        assert streams["stdout"].endswith(b"%064dlast\n" % 7)
        await client.close()


async def test_folder_of_the_logs_is_not_shown_and_can_not_be_used(runner: Runner, client: Client) -> None:
    name = await begun(runner, LOUD.format(2 * 16), "python")
    await client.until_ended(name)
    assert (runner.workspace / HIDDEN).is_dir()
    (runner.workspace / "way").symlink_to(runner.workspace / HIDDEN)
    (runner.workspace / "self").symlink_to(runner.workspace)
    for path in (".", "self"):
        listing = await client.file("list", path=path, recursive=True)
        assert not [entry for entry in listing.header["entries"] if HIDDEN in entry["path"]]
    file = next((runner.workspace / HIDDEN).iterdir()).name
    inside = f"{HIDDEN}/{file}"
    for op, fields in (
        ("read", {"path": inside}),
        ("read", {"path": f"way/{file}"}),
        ("read", {"path": f"self/{inside}"}),
        ("read", {"path": f"./x/../{inside}"}),
        ("read", {"path": f"{runner.workspace}/{inside}"}),
        ("list", {"path": HIDDEN}),
        ("list", {"path": "way"}),
        ("stat", {"path": HIDDEN}),
        ("write", {"path": inside, "last": True, "overwrite": True}),
        ("write", {"path": "way/new", "last": True}),
        ("mkdir", {"path": f"{HIDDEN}/new"}),
        ("delete", {"path": HIDDEN, "recursive": True}),
        ("delete", {"path": f"way/{file}"}),
        ("move", {"path": HIDDEN, "destination": "taken"}),
        ("move", {"path": "self", "destination": f"{HIDDEN}/self"}),
    ):
        assert await client.refused(op, **fields) == "invalid_path", (op, fields)
    with pytest.raises(RefusedError) as refused:
        await client.run("true", "shell", cwd="way")
    assert refused.value.code == "invalid_path"
    assert await read_all(client, name)


async def test_live_detached_runs_are_named_to_each_stream(sandbox: Sandbox, client: Client) -> None:
    name = await begun(sandbox, "read x", stdin=True)
    fresh = await sandbox.connect()
    assert name in fresh.hello["runs"]
    assert name in (await fresh.ask("ping")).header["runs"]
    await fresh.close()
    await client.send({"t": "cancel", "run": name})
    assert (await client.until_ended(name))["outcome"] == "cancelled"


@pytest.mark.claim("list_runs")
async def test_list_tells_live_and_ended_runs_apart(sandbox: Sandbox, client: Client) -> None:
    name = await begun(sandbox, "read x", stdin=True)
    ended = (await client.run("raise SystemExit(1)")).end["run"]
    reply = (await client.ask("list")).header
    rows = {row["run"]: row for row in reply["runs"]}
    started = [row["started"] for row in reply["runs"]]
    assert started == sorted(started)
    assert {"language": "shell", "detached": True, "context": None, "state": "live", "outcome": None}.items() <= rows[
        name
    ].items()
    assert {"language": "python", "detached": False, "state": "ended", "outcome": "error"}.items() <= rows[
        ended
    ].items()
    await client.send({"t": "cancel", "run": name})
    await client.until_ended(name)


async def test_remembered_runs_are_bounded_and_ordinary_ones_do_not_push_detached_ones_out(
    sandbox: Sandbox, client: Client
) -> None:
    name = await begun(sandbox, "echo kept")
    await client.until_ended(name)
    first = (await client.run("true", "shell")).end["run"]
    for _ in range(MOST):
        await client.run("true", "shell")
    runs = [row["run"] for row in (await client.ask("list")).header["runs"]]
    assert name in runs
    assert first not in runs
    with pytest.raises(RefusedError) as refused:
        await client.ask("tail", run=first)
    assert refused.value.code == "not_found"
    assert (await client.ask("tail", run=name)).payload == b"kept\n"


def peak_memory(runner: Runner) -> int:
    """Return the most memory that the runner's own process has had, bytes."""
    lines = Path(f"/proc/{runner.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) * 1024
