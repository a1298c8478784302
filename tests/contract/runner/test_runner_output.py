"""What programs write arrives: all of it, in order, at once, counted, and never more than may be."""

import asyncio

import pytest

from sandpod_runner.protocol.messages import OUT_PIECE
from support.runner.harness import Client, Sandbox

TEXT = "é漢🙂" * 5000


@pytest.mark.promise("utf8-pieces")
async def test_characters_that_straddle_pieces_come_back_exactly_and_so_do_bytes_that_are_none(client: Client) -> None:
    for lead in range(4092, 4097):
        result = await client.run(f'import sys; sys.stdout.write("a"*{lead} + "é漢🙂"*5000)')
        assert result.out.decode() == "a" * lead + TEXT
        assert result.end["stdout_bytes"] == len(result.out)
    result = await client.run(r"printf 'ok \324\377 end\n'; exit 3", "shell")
    assert (result.exit_code, result.out) == (3, b"ok \xd4\xff end\n")


@pytest.mark.promise("long-lines")
async def test_one_very_long_line_arrives_whole(client: Client) -> None:
    result = await client.run('print("x"*5_000_000); print("tail")')
    assert result.out == b"x" * 5_000_000 + b"\ntail\n"
    assert result.end["stdout_bytes"] == 5_000_006


async def test_pieces_are_numbered_without_gaps_and_small(client: Client) -> None:
    result = await client.run('for i in range(2000): print("noise", i)\nraise ValueError("needle-42")')
    expected = 0
    for frame in result.frames:
        if frame.header.get("stream") == "stdout":
            assert frame.header["offset"] == expected
            assert len(frame.payload) <= OUT_PIECE
            expected += len(frame.payload)
    assert expected == len(result.out) == result.end["stdout_bytes"]
    assert b"noise 1999\n" in result.out
    assert b"needle-42" in result.err


@pytest.mark.promise("endless-output")
@pytest.mark.everywhere
async def test_endless_output_ends_at_the_limit_and_is_counted(client: Client) -> None:
    result = await client.run('while True: print("y"*200)', output_limit=300_000)
    assert result.outcome == "output_limit"
    assert len(result.out) == result.end["stdout_bytes"] == 300_000
    assert "300000 bytes" in result.end["detail"]
    assert (await client.run("print(1)")).out == b"1\n"


async def test_output_limit_counts_both_streams_and_a_run_at_the_limit_is_ok(client: Client) -> None:
    code = "import sys; sys.stdout.write('o'*60); sys.stderr.write('e'*40)"
    assert (await client.run(code, output_limit=100)).outcome == "ok"
    over = await client.run(code, output_limit=99)
    assert over.outcome == "output_limit"
    assert over.end["stdout_bytes"] + over.end["stderr_bytes"] == 99


@pytest.mark.promise("output-at-timeout")
async def test_what_was_printed_before_the_timeout_is_kept(client: Client) -> None:
    programs = [
        ('print("before"); import time; time.sleep(999)', "python"),
        ('print("before", end=""); import time; time.sleep(999)', "python"),
        ('import sys; sys.stdout.buffer.write(b"before"); import time; time.sleep(999)', "python"),
        ('console.log("before"); setTimeout(() => {}, 999000)', "javascript"),
        ("python3 -c 'import time; print(\"before\"); time.sleep(999)' | cat", "shell"),
    ]
    results = await asyncio.gather(*(client.run(code, language, timeout=3) for code, language in programs))
    assert [(result.outcome, result.out.strip()) for result in results] == [("timeout", b"before")] * len(programs)


@pytest.mark.promise("streaming")
async def test_output_arrives_while_the_program_goes_on(client: Client) -> None:
    read = "for (let i = 0; i < 3; i++) { console.log(i); require('fs').readSync(0, Buffer.alloc(9)) }"
    for code, language in (
        ("for i in range(3): print(i); input()", "python"),
        ("for i in 0 1 2; do echo $i; read x; done", "shell"),
        (read, "javascript"),
    ):
        name = await client.start(code, language, stdin=True)
        for number in range(3):
            # The program waits for input after each line: what is seen here was not held back until its end.
            assert await client.until_output(name, b"\n") == b"%d\n" % number
            await client.send({"t": "stdin", "run": name}, b"go\n")
        assert (await client.finish(name)).outcome == "ok"


@pytest.mark.everywhere
async def test_slow_reader_stops_the_program_and_not_other_streams(sandbox: Sandbox, client: Client) -> None:
    slow = await sandbox.connect()
    slow.hold(held=True)
    name = await slow.start("import sys\nfor i in range(60): sys.stdout.write('z' * 100_000)\nprint('end')")
    other = await asyncio.gather(*(client.run("print(1)") for _ in range(5)))
    assert [result.out for result in other] == [b"1\n"] * 5
    slow.hold(held=False)
    result = await slow.finish(name)
    assert result.outcome == "ok"
    assert len(result.out) == 6_000_004
    await slow.close()


async def test_cancel_reaches_a_run_whose_output_nobody_reads(sandbox: Sandbox, client: Client) -> None:
    slow = await sandbox.connect()
    slow.hold(held=True)
    name = await slow.start("while True: print('z' * 100_000)", run="unread", output_limit=10**9)
    await client.run("print(1)")
    await slow.send({"t": "cancel", "run": name})
    slow.hold(held=False)
    assert (await slow.finish(name)).outcome == "cancelled"
    await slow.close()


@pytest.mark.promise("concurrent-runs")
async def test_runs_at_the_same_time_do_not_mix(client: Client) -> None:
    code = "import time\nfor i in range(20):\n    print('{}')\n    time.sleep(0.01)"
    a, b, c = await asyncio.gather(
        client.run(code.format("A")),
        client.run(code.format("B")),
        client.run("for i in $(seq 20); do echo C; sleep 0.01; done; exit 4", "shell"),
    )
    assert [a.out, b.out, c.out] == [b"A\n" * 20, b"B\n" * 20, b"C\n" * 20]
    assert [a.exit_code, b.exit_code, c.exit_code] == [0, 0, 4]


@pytest.mark.everywhere
async def test_streams_are_kept_apart_and_both_survive_a_failure(client: Client) -> None:
    result = await client.run('import sys\nprint("o")\nprint("e", file=sys.stderr)\nraise SystemExit(4)')
    assert (result.outcome, result.exit_code, result.out, result.err) == ("error", 4, b"o\n", b"e\n")
