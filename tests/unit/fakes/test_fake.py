"""The fake backend's own abilities: faults on demand, a clock, the little Python, streams with back-pressure."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from fakes.backend import FakeBackend
from fakes.memory_stream import stream_pair
from sandpod_api.conditions import Reason
from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.backends.base import ClaimRequest
from sandpod_gateway.backends.factory import create_backend
from sandpod_gateway.errors import SandpodError
from support.gateway.peer import BOUND, talk, until

CLAIM = ClaimRequest(owner="alice")


async def test_claims_are_refused_with_the_code_that_was_set() -> None:
    backend = FakeBackend()
    await backend.start()
    backend.refuse_claims(ErrorCode.IMAGE_PULL_FAILED)
    with pytest.raises(SandpodError) as refused:
        await backend.claim(CLAIM)
    assert refused.value.code == ErrorCode.IMAGE_PULL_FAILED
    assert await backend.list("alice") == []
    backend.refuse_claims(None)
    assert (await backend.claim(CLAIM)).status == "Ready"
    await backend.close()


async def test_claims_wait_at_the_gate() -> None:
    backend = FakeBackend()
    await backend.start()
    backend.launcher.gate.clear()
    claim = asyncio.create_task(backend.claim(CLAIM))
    await asyncio.sleep(0)
    assert not claim.done()
    backend.launcher.gate.set()
    assert (await claim).status == "Ready"
    await backend.close()


async def test_a_cut_stream_ends_and_the_sandbox_lives_on() -> None:
    backend = FakeBackend()
    await backend.start()
    record = await backend.claim(CLAIM)
    async with talk(backend, record.name) as peer:
        await backend.drop_streams(record.name)
        await peer.ended()
    async with talk(backend, record.name) as peer:
        assert (await peer.output("print(1)"))[0] == "1\n"
    await backend.close()


async def test_a_lost_sandbox_says_why() -> None:
    backend = FakeBackend()
    await backend.start()
    record = await backend.claim(CLAIM)
    await backend.lose(record.name, Reason.OUT_OF_MEMORY)
    lost = await backend.get(record.name)
    assert lost is not None
    assert (lost.status, lost.reason) == ("Failed", "OutOfMemory")
    await backend.close()


async def test_time_is_what_the_clock_says() -> None:
    now = [datetime(2030, 1, 1, tzinfo=UTC)]
    backend = FakeBackend(clock=lambda: now[0])
    await backend.start()
    record = await backend.claim(ClaimRequest(owner="alice", ttl=3600))
    now[0] += timedelta(hours=1)
    await backend.claim(CLAIM)  # a claim wakes the sweep, which sees the new time

    async def expired() -> bool:
        found = await backend.get(record.name)
        return found is not None and found.status == "Expired"

    await until("the sandbox has expired", expired)
    await backend.close()


async def test_programs_sleep_by_the_injected_sleep() -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    backend = FakeBackend(sleep=sleep)
    await backend.start()
    record = await backend.claim(CLAIM)
    async with talk(backend, record.name) as peer:
        text, _ = await peer.output("import time\nfor i in range(3):\n    print('tick', i)\n    time.sleep(60)")
    assert text == "tick 0\ntick 1\ntick 2\n"
    assert slept == [60, 60, 60]
    await backend.close()


@pytest.mark.parametrize(
    ("code", "text", "exit_code"),
    [
        ("print('a', 1)", "a 1\n", 0),
        ("x = 2\nprint(x)\nraise SystemExit(4)", "2\n", 4),
        ("exit(5)", "", 5),
        ("print('before')\n1 / 0", "before\n_UnknownError: 1 / 0\n", 1),
        ("print(", "SyntaxError: '(' was never closed (<unknown>, line 1)\n", 1),
    ],
)
async def test_the_little_python_does_what_it_says(code: str, text: str, exit_code: int) -> None:
    backend = FakeBackend()
    await backend.start()
    record = await backend.claim(CLAIM)
    async with talk(backend, record.name) as peer:
        written, end = await peer.output(code)
    assert (written, end.header["exit_code"]) == (text, exit_code)
    await backend.close()


async def test_a_run_over_its_output_limit_is_ended() -> None:
    backend = FakeBackend()
    await backend.start()
    record = await backend.claim(CLAIM)
    async with talk(backend, record.name) as peer:
        _, end = await peer.output("for i in range(1000):\n    print('0123456789')", output_limit=100)
    assert end.header["outcome"] == "output_limit"
    assert end.header["stdout_bytes"] == 110
    await backend.close()


async def ask(peer: Any, op: str, payload: bytes = b"", **fields: Any) -> Any:
    frame = await peer.request({"t": "file", "op": op, **fields}, payload)
    return frame.header.get("code") or frame


async def test_files_are_kept_as_the_protocol_says() -> None:
    backend = FakeBackend()
    await backend.start()
    record = await backend.claim(CLAIM)
    async with talk(backend, record.name) as peer:
        assert (await ask(peer, "write", b"one", path="a/b.txt", last=True)).header["size"] == 3
        assert await ask(peer, "write", b"two", path="a/b.txt", last=True) == "file_exists"
        assert await ask(peer, "write", b"x", path="a", last=True) == "invalid_path"
        assert await ask(peer, "read", path="../etc/passwd") == "invalid_path"
        assert await ask(peer, "read", path="none") == "not_found"
        assert (await ask(peer, "read", path="/workspace/a/b.txt", offset=1, limit=1)).payload == b"n"
        assert (await ask(peer, "stat", path="a")).header["kind"] == "directory"
        entries = (await ask(peer, "list", path=".", recursive=True, limit=10)).header["entries"]
        assert [entry["path"] for entry in entries] == ["a", "a/b.txt"]
        await ask(peer, "move", path="a/b.txt", destination="c.txt")
        assert await ask(peer, "delete", path="none") == "not_found"
        await ask(peer, "delete", path="c.txt")
        assert (await ask(peer, "list", path=".", limit=10)).header["entries"] == []
        assert await ask(peer, "burn", path=".") == "invalid_argument"
    await backend.close()


async def test_a_writer_waits_until_what_was_sent_before_is_read() -> None:
    one, two = stream_pair()
    await one.write(bytes(1_000_000))
    writing = asyncio.create_task(one.write(b"x"))
    await asyncio.sleep(0)
    assert not writing.done()
    assert len(await asyncio.wait_for(two.read(), BOUND)) == 1_000_000
    await asyncio.wait_for(writing, BOUND)
    assert await asyncio.wait_for(two.read(), BOUND) == b"x"


async def test_a_closed_stream_frees_a_writer_that_waits() -> None:
    one, two = stream_pair()
    await one.write(bytes(1_000_000))
    writing = asyncio.create_task(one.write(b"x"))
    await asyncio.sleep(0)
    await two.close()
    with pytest.raises(ConnectionError):
        await writing


def test_the_factory_makes_what_it_was_asked_for() -> None:
    assert [create_backend(kind).kind for kind in ("kubernetes", "local")] == ["kubernetes", "local"]
