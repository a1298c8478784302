"""A run whose stream is lost goes on, and another stream takes it over where the lost one stopped."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from sandpod_runner.runs.delivery import WINDOW
from support.gateway.peer import until
from support.runner.harness import Client, RefusedError, Result, Sandbox, running

STEPS = "for i in 1 2 3; do echo step $i; echo note $i >&2; read x; done; exit 5"
LARGE = "import sys\nprint('ready')\ninput()\nfor i in range(50): sys.stdout.write('%05d' % i * 20_000)"
TAIL = "".join(f"{number:05d}" * 20_000 for number in range(50)).encode()
READY = len(b"ready\n")


async def listing(client: Client, folder: str) -> bytes:
    return (await client.run(f"ls -A {folder}", "shell")).out


async def is_empty(client: Client, folder: str) -> bool:
    return not await listing(client, folder)


def without_gaps(result: Result, stdout: int) -> bool:
    for frame in result.frames:
        if frame.header.get("stream") == "stdout":
            if frame.header["offset"] != stdout:
                return False
            stdout += len(frame.payload)
    return bool(stdout == result.end["stdout_bytes"])


async def test_stream_that_follows_gets_the_rest_and_the_end_and_the_old_one_nothing_more(
    client: Client, other: Client
) -> None:
    name = await client.start(STEPS, "shell", stdin=True)
    assert await client.until_output(name, b"step 1\n") == b"step 1\n"
    await other.follow(name, len(b"step 1\n"))
    for _ in range(3):
        await other.send({"t": "stdin", "run": name}, b"go\n")
    result = await other.finish(name)
    assert (result.out, result.err) == (b"step 2\nstep 3\n", b"note 1\nnote 2\nnote 3\n")
    assert (result.outcome, result.exit_code, result.end["stdout_bytes"]) == ("error", 5, 21)
    await client.ask("ping")
    assert b"".join(frame.payload for frame in client.came_of(name)) in {b"", b"note 1\n"}


async def test_run_whose_stream_was_lost_waits_and_nothing_of_its_output_is_missing(sandbox: Sandbox) -> None:
    gone, client = await sandbox.connect(), await sandbox.connect()
    await gone.send({"t": "file", "id": 1, "op": "write", "path": "half/part", "last": False}, b"half")
    name = await gone.start(LARGE, stdin=True)
    await gone.until_output(name, b"ready\n")
    await until("an unfinished file", lambda: listing(client, "half"))
    await gone.close()
    # What is sent before the runner knows of the loss is lost with the stream, and so is the file that is not finished.
    await until("the end of the stream", lambda: is_empty(client, "half"))
    await client.send({"t": "stdin", "run": name}, b"\n")
    # It has begun to write, with nobody there to take it, and far more than is kept.
    await client.ask("tail", run=name, cursor=READY, wait=15)
    await client.follow(name, READY)
    result = await client.finish(name)
    assert (result.outcome, result.out) == ("ok", TAIL)
    assert without_gaps(result, READY)
    await client.close()


@pytest.mark.everywhere
async def test_stream_that_is_lost_at_full_speed_loses_nothing_of_a_run_whose_output_is_acknowledged(
    client: Client, sandbox: Sandbox
) -> None:
    count = 20
    code = f"import sys\nfor i in range({count}): sys.stdout.write('%05d' % i * 50_000)"
    expected = b"".join(b"%05d" % i * 50_000 for i in range(count))
    got = b""

    async def read(stream: Client, name: str, until: int) -> None:
        nonlocal got
        while len(got) < until:
            frame = await stream.frame_of(name)
            if frame.kind == "out":
                assert frame.header["offset"] == len(got), "something is missing"
                got += frame.payload
                await stream.send({"t": "ack", "run": name, "stdout": len(got), "stderr": 0})

    # Each stream is closed with all that is on its way in it.
    gone = await sandbox.connect()
    name = await gone.start(code, acks=True)
    for part in range(1, 4):
        await read(gone, name, part * len(expected) // 4)
        await gone.close()
        gone = await sandbox.connect()
        await gone.follow(name, len(got), acks=True)
    await read(gone, name, len(expected))
    assert got == expected
    assert (await gone.finish(name)).end["stdout_bytes"] == len(expected)
    await gone.close()
    await client.ask("ping")


async def test_program_waits_for_an_owner_that_acknowledges_nothing(client: Client) -> None:
    name = await client.start("import sys\nfor i in range(100): sys.stdout.write('x' * 100_000)", acks=True)
    seen = 0
    while seen < WINDOW // 2:
        frame = await client.frame_of(name)
        seen += len(frame.payload)
    tail = await client.ask("tail", run=name, cursor=seen, wait=0.5)
    assert tail.header["state"] == "live"
    assert seen + sum(size for _, size in tail.header["pieces"]) < 2 * WINDOW, "it was not stopped"
    await client.send({"t": "cancel", "run": name})
    assert (await client.finish(name)).outcome == "cancelled"


async def test_run_that_is_followed_within_the_grace_outlives_it(tmp_path: Path) -> None:
    with running(
        tmp_path,
        prelude="from sandpod_runner.protocol import messages as protocol; protocol.ORPHAN_GRACE = 1.0",
    ) as runner:
        gone, client = await runner.connect(), await runner.connect()
        names = [await gone.start("echo up; read x; echo down", "shell", stdin=True) for _ in range(2)]
        for name in names:
            await gone.until_output(name, b"up\n")
        await gone.close()
        await client.follow(names[0], 3)
        # Both had the same grace: when it is over for the one, it is for the other.
        assert (await client.until_ended(names[1]))["outcome"] == "cancelled"
        await client.send({"t": "stdin", "run": names[0]}, b"\n")
        result = await client.finish(names[0])
        assert (result.outcome, result.out) == ("ok", b"down\n")
        await client.close()


async def test_slow_follower_stops_the_program_and_not_other_streams(sandbox: Sandbox, client: Client) -> None:
    gone, slow = await sandbox.connect(), await sandbox.connect()
    name = await gone.start(LARGE, stdin=True)
    await gone.until_output(name, b"ready\n")
    slow.hold(held=True)
    await slow.follow(name)
    await slow.send({"t": "stdin", "run": name}, b"\n")
    results = await asyncio.gather(*(client.run("print(1)") for _ in range(5)))
    assert [result.out for result in results] == [b"1\n"] * 5
    slow.hold(held=False)
    result = await slow.finish(name)
    assert (result.outcome, result.out) == ("ok", b"ready\n" + TAIL)
    for each in (gone, slow):
        await each.close()


async def test_output_that_is_no_longer_kept_shows_as_a_gap_in_the_offsets(client: Client, other: Client) -> None:
    name = await client.start(LARGE, stdin=True)
    await client.send({"t": "stdin", "run": name}, b"\n")
    await client.finish(name)
    result = await other.finish(await other.follow(name))
    first = next(frame for frame in result.frames if frame.kind == "out").header["offset"]
    assert 0 < first == result.end["stdout_bytes"] - len(result.out)
    assert TAIL.endswith(result.out)
    assert without_gaps(result, first)


async def test_ended_run_tells_its_output_and_its_end_to_each_that_asks(client: Client, other: Client) -> None:
    first = await client.run("import sys\nprint('o' * 100_000)\nprint('e', file=sys.stderr)\nsys.exit(3)")
    name = first.end["run"]
    for stream in (other, client, other):
        again = await stream.finish(await stream.follow(name, 99_999, 0))
        assert (again.end, again.out, again.err) == (first.end, b"o\n", b"e\n")
        await stream.ask("ping")
        assert stream.came_of(name) == []


async def test_end_that_nobody_was_there_for_waits(sandbox: Sandbox, client: Client) -> None:
    gone = await sandbox.connect()
    name = await gone.start("echo up; read x; echo down; kill -9 $$", "shell", stdin=True)
    await gone.until_output(name, b"up\n")
    await gone.close()
    await client.send({"t": "stdin", "run": name, "eof": True})
    end = await client.until_ended(name)
    result = await client.finish(await client.follow(name, 3))
    assert (result.out, result.end["signal"]) == (b"down\n", "SIGKILL")
    assert {"t": "end", **end} == result.end


async def test_follower_that_does_not_read_holds_up_nobody_and_gets_all_of_an_ended_run(
    sandbox: Sandbox, client: Client
) -> None:
    name = await client.start("import sys\nsys.stdout.write('z' * 8_000_000)", detached=True)
    await client.until_ended(name)
    slow = await sandbox.connect()
    slow.hold(held=True)
    await slow.follow(name)
    assert name not in (await client.ask("ping")).header["runs"]
    assert (await client.run("print(1)")).out == b"1\n"
    slow.hold(held=False)
    result = await slow.finish(name)
    assert (len(result.out), result.out.strip(b"z"), result.outcome) == (8_000_000, b"", "ok")
    await slow.close()


async def test_unknown_run_can_not_be_followed(client: Client) -> None:
    with pytest.raises(RefusedError) as refused:
        await client.finish(await client.follow("no-such-run"))
    assert (refused.value.code, refused.value.header["run"]) == ("not_found", "no-such-run")


async def test_follow_that_makes_no_sense_is_refused_and_changes_nothing(client: Client, other: Client) -> None:
    name = await client.start("echo up; read x", "shell", stdin=True)
    await client.until_output(name, b"up\n")
    bad: dict[str, list[Any]] = {"stdout": [-1, "1", 4], "stderr": [True, 1.5, 2**70]}
    for field, wrong in ((field, wrong) for field, each in bad.items() for wrong in each):
        await other.send({"t": "follow", "run": name, field: wrong})
        frame = await other.reply()
        assert (frame.kind, frame.header["run"], frame.header["code"]) == ("error", name, "invalid_argument"), wrong
    await client.send({"t": "stdin", "run": name}, b"\n")
    assert (await client.finish(name)).outcome == "ok"
