"""A run with an idempotency key is started once, however often it is asked for."""

from typing import Any

import pytest

from sandpod_runner.runs.delivery import MOST
from support.runner.harness import Client, RefusedError, Sandbox

COUNT = "open('count', 'a').write('x'); print(open('count').read())"


@pytest.fixture(autouse=True)
async def no_count(client: Client) -> None:
    await client.run("rm -f count", "shell")


async def known_as(client: Client, code: str, language: str = "python", **fields: Any) -> str:
    """Return the run that was started before with this key."""
    name = await client.start(code, language, **fields)
    frame = await client.frame_of(name)
    assert frame.kind == "known", frame
    assert frame.header["run"] == name
    known: str = frame.header["as"]
    return known


async def refused(client: Client, code: str, language: str = "python", **fields: Any) -> str:
    name = await client.start(code, language, **fields)
    with pytest.raises(RefusedError) as error:
        await client.finish(name)
    assert error.value.header["run"] == name
    return error.value.code


async def test_second_run_with_a_key_starts_nothing_and_has_the_first_ones_outcome(
    client: Client, other: Client
) -> None:
    first = await client.run(COUNT, key="once")
    for stream in (client, other):
        name = await known_as(stream, COUNT, key="once")
        again = await stream.finish(await stream.follow(name))
        assert (again.end, again.out) == (first.end, b"x\n")


async def test_key_of_a_live_run_leads_to_it_also_after_its_stream_was_lost(sandbox: Sandbox, client: Client) -> None:
    gone = await sandbox.connect()
    code = "echo up; read x; echo $x; exit 9"
    first = await gone.start(code, "shell", key="live", stdin=True)
    await gone.until_output(first, b"up\n")
    await gone.close()
    name = await known_as(client, code, "shell", key="live", stdin=True)
    assert name == first
    await client.follow(name, 3)
    await client.send({"t": "stdin", "run": name}, b"heard\n")
    result = await client.finish(name)
    assert (result.out, result.exit_code) == (b"heard\n", 9)


async def test_key_with_other_code_language_or_arguments_is_refused(client: Client) -> None:
    await client.run("true", "shell", key="one", args=["a"])
    assert await refused(client, "false", "shell", key="one", args=["a"]) == "invalid_argument"
    assert await refused(client, "true", "shell", key="one", args=["b"]) == "invalid_argument"
    assert await refused(client, "true", "python", key="one", args=["a"]) == "invalid_argument"
    assert await known_as(client, "true", "shell", key="one", args=["a"])


async def test_run_that_was_refused_does_not_use_its_key_up(client: Client) -> None:
    assert await refused(client, COUNT, key="later", cwd="no/such") == "not_found"
    assert (await client.run(COUNT, key="later")).out == b"x\n"


async def test_run_without_a_key_is_started_each_time(client: Client) -> None:
    assert [(await client.run(COUNT, key=None)).out for _ in range(2)] == [b"x\n", b"xx\n"]


async def test_name_of_a_run_with_a_key_stays_its_own(client: Client) -> None:
    await client.run("true", "shell", run="mine", key="named")
    assert await known_as(client, "true", "shell", run="mine") == "mine"
    assert await known_as(client, "true", "shell", run="mine", key="another") == "mine"


async def test_many_runs_without_a_key_do_not_make_it_forgotten(client: Client) -> None:
    first = await client.run(COUNT, key="old")
    for _ in range(MOST + 1):
        await client.run("true", "shell")
    assert await known_as(client, COUNT, key="old") == first.end["run"]


async def test_key_is_any_text_within_its_limit(client: Client) -> None:
    for key in ("k" * 128, "é" * 64, "\ud800", " "):
        first = await client.run("true", "shell", key=key)
        assert await known_as(client, "true", "shell", key=key) == first.end["run"]


async def test_malformed_key_is_refused(client: Client) -> None:
    for key in ("", "k" * 129, "é" * 65, 7, True, ["k"], {"k": 1}):
        assert await refused(client, "true", "shell", key=key) == "invalid_argument", key
