"""One suite for all backends: what `base.py` promises, each by the id that `obligations.py` gives it."""

import asyncio
import sys
import uuid
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import NamedTuple

import pytest
import pytest_asyncio

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.auth.callers import owner_of
from sandpod_gateway.backends.base import Backend, ClaimRequest, SandboxRecord
from sandpod_gateway.errors import SandpodError
from support.gateway.backends import Case
from support.gateway.peer import BOUND, Peer, talk, until
from support.obligations import OBLIGATIONS, keeps

pytestmark = pytest.mark.asyncio(loop_scope="session")

MALFORMED = ("", "nope", "..", "../../etc", "-o", "--all", "a\0b", "sbx-\n", "ü" * 300, "sbx-aaaaaaaaaa", "a=b,c")


async def ended(backend: Backend, name: str) -> SandboxRecord:
    """Return the sandbox's record once it says that it has ended."""

    async def look() -> SandboxRecord | None:
        record = await backend.get(name)
        assert record is not None, "the record of a sandbox that ended by itself must stay"
        return record if record.status != "Ready" else None

    return await until("the sandbox has ended", look, within=6 * BOUND)


class Kept(NamedTuple):
    """Sandboxes that tests leave as they were. A cluster takes seconds to make each.

    Attributes:
        owner: Whose they are.
        one: One that has a session of that name.
        two: One without a session.
        three: Another one without a session.
    """

    owner: str
    one: SandboxRecord
    two: SandboxRecord
    three: SandboxRecord


class Short(NamedTuple):
    """Sandboxes whose lifetimes pass while other tests run.

    Attributes:
        by_ttl: One that is over soon, and has a session.
        idle: One that is not used.
        stream_of_idle: A stream of that one.
        used: What one that is used says once its first idle timeout has passed.
        busy: One that has a background run.
    """

    by_ttl: SandboxRecord
    idle: SandboxRecord
    stream_of_idle: Peer
    used: asyncio.Task[SandboxRecord]
    busy: SandboxRecord


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def short(common: Backend, case: Case) -> AsyncIterator[Short]:
    """The sandboxes that end, or do not, by the time: started first, and looked at last."""
    owner = owner_of(case.tenant, f"short-{uuid.uuid4().hex[:12]}")
    await case.is_quick()
    of_ttl = ClaimRequest(owner=owner, session="one", ttl=case.short, idle_timeout=case.short)
    of_idle = ClaimRequest(owner=owner, ttl=600, idle_timeout=case.short)
    by_ttl, idle = await asyncio.gather(common.claim(of_ttl), common.claim(of_idle))
    async with talk(common, idle.name) as stream:
        await case.is_quick()
        longer = ClaimRequest(owner=owner, ttl=600, idle_timeout=2 * case.short)
        used, busy = await asyncio.gather(common.claim(longer), common.claim(longer))
        await common.keep_busy(busy.name, 300)
        await common.keep_busy(busy.name, 1)
        await common.touch(busy.name)

        async def outlived() -> SandboxRecord | None:
            await common.touch(used.name)
            return await common.get(used.name) if is_past(used) else None

        use = asyncio.create_task(until("the first idle timeout has passed", outlived, within=2 * BOUND))
        yield Short(by_ttl, idle, stream, use, busy)
        use.cancel()
    for record in await common.list(owner):
        await common.delete(record.name)


def is_past(record: SandboxRecord) -> bool:
    return record.expires is not None and datetime.now(UTC) > record.expires


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def kept(common: Backend, case: Case, short: Short) -> AsyncIterator[Kept]:  # noqa: ARG001 - time is to pass
    """Sandboxes for all tests of this module that leave them as they were."""
    owner = owner_of(case.tenant, f"kept-{uuid.uuid4().hex[:12]}")
    requests = [ClaimRequest(owner=owner, session="one"), ClaimRequest(owner=owner), ClaimRequest(owner=owner)]
    yield Kept(owner, *[await common.claim(request) for request in requests])
    for record in await common.list(owner):
        await common.delete(record.name)


async def gone(backend: Backend, name: str) -> None:
    async def look() -> bool:
        return await backend.get(name) is None

    await until("the sandbox is gone", look)


def codes(results: list[SandboxRecord | BaseException]) -> list[ErrorCode]:
    return [result.code for result in results if isinstance(result, SandpodError)]


@pytest.mark.claim("create_sandbox")
@keeps("claim:ready")
async def test_a_claim_returns_a_ready_record_with_all_that_was_asked_for(backend: Backend, owner: str) -> None:
    record = await backend.claim(ClaimRequest(owner=owner, session="one", ttl=600, idle_timeout=60))
    assert (record.owner, record.session, record.network, record.status) == (owner, "one", "none", "Ready")
    assert (record.ttl, record.idle_timeout) == (600, 60)
    assert record.expires is not None
    assert record.created <= datetime.now(UTC) < record.expires
    assert await backend.get(record.name) == record


@keeps("claim:session")
async def test_a_second_claim_of_a_session_returns_the_same_sandbox(backend: Backend, kept: Kept) -> None:
    assert (await backend.claim(ClaimRequest(owner=kept.owner, session="one"))).name == kept.one.name
    assert len(await backend.list(kept.owner)) == 3


@keeps("claim:session-race")
async def test_claims_of_one_session_that_race_return_one_sandbox(backend: Backend, owner: str) -> None:
    request = ClaimRequest(owner=owner, session="one")
    records = await asyncio.gather(*(backend.claim(request) for _ in range(5)))
    assert len({record.name for record in records}) == 1
    assert len(await backend.list(owner)) == 1


@keeps("claim:no-session")
async def test_claims_without_a_session_each_make_a_sandbox(kept: Kept) -> None:
    assert len({kept.one.name, kept.two.name, kept.three.name}) == 3


@keeps("claim:owner")
async def test_another_owner_gets_another_sandbox_for_the_same_session(
    backend: Backend, kept: Kept, owner: str
) -> None:
    assert (await backend.claim(ClaimRequest(owner=owner, session="one"))).name != kept.one.name


@keeps("claim:arguments")
@pytest.mark.parametrize("field", ["template", "network"])
async def test_a_claim_of_what_there_is_not_is_refused_and_leaves_nothing(
    backend: Backend, owner: str, field: str
) -> None:
    with pytest.raises(SandpodError) as refused:
        await backend.claim(ClaimRequest(owner=owner, **{field: "no-such"}))  # type: ignore[arg-type]
    assert refused.value.code == ErrorCode.INVALID_ARGUMENT
    assert "no-such" in refused.value.message or "none" in refused.value.message
    assert refused.value.next_step
    assert await backend.list(owner) == []


@pytest.mark.claim("run_python_code(cold_start)", "create_sandbox(cold_start)")
@keeps("claim:warm-only")
async def test_a_claim_may_rule_a_cold_start_out(backend: Backend, owner: str) -> None:
    request = ClaimRequest(owner=owner, cold_start=False)
    taken = 0
    refused = None
    while refused is None and taken < 8:  # a pool refills, but not as fast as it is emptied
        try:
            await backend.claim(request)
            taken += 1
        except SandpodError as error:
            refused = error
    assert refused is not None
    assert refused.code == ErrorCode.POOL_EXHAUSTED
    assert "cold_start" in refused.next_step
    assert len(await backend.list(owner)) == taken
    assert (await backend.claim(ClaimRequest(owner=owner, cold_start=True))).status == "Ready"


@keeps("claim:no-cold-start")
async def test_a_cold_start_that_the_server_does_not_make_is_refused(warm_only: Backend, owner: str) -> None:
    with pytest.raises(SandpodError) as refused:
        await warm_only.claim(ClaimRequest(owner=owner, cold_start=True))
    assert refused.value.code == ErrorCode.INVALID_ARGUMENT
    assert refused.value.next_step
    assert await warm_only.list(owner) == []


@pytest.mark.promise("sessions-bounded")
@keeps("claim:limit")
async def test_a_claim_over_the_limit_is_refused_until_a_sandbox_is_closed(narrow: Backend, owner: str) -> None:
    first = await narrow.claim(ClaimRequest(owner=owner))
    await narrow.claim(ClaimRequest(owner=owner))
    with pytest.raises(SandpodError) as refused:
        await narrow.claim(ClaimRequest(owner=owner))
    assert refused.value.code == ErrorCode.MAX_SESSIONS
    await narrow.delete(first.name)
    await gone(narrow, first.name)
    assert (await narrow.claim(ClaimRequest(owner=owner))).status == "Ready"


@keeps("claim:limit-race")
async def test_claims_that_race_do_not_pass_the_limit(narrow: Backend, owner: str) -> None:
    claims = (narrow.claim(ClaimRequest(owner=owner)) for _ in range(4))
    results = await asyncio.gather(*claims, return_exceptions=True)
    assert codes(results) == [ErrorCode.MAX_SESSIONS] * 2
    assert len(await narrow.list(owner)) == 2


@keeps("names:unknown")
async def test_a_name_that_is_unknown_or_malformed_does_not_exist(backend: Backend, kept: Kept) -> None:
    for name in MALFORMED:
        assert await backend.get(name) is None
        await backend.delete(name)
        await backend.touch(name)
        await backend.keep_busy(name, 60)
        with pytest.raises(SandpodError) as refused:
            await backend.open_stream(name)
        assert refused.value.code == ErrorCode.SESSION_NOT_FOUND
    assert len(await backend.list(kept.owner)) == 3


@keeps("list:owner")
async def test_a_list_has_the_owners_sandboxes_only_oldest_first(backend: Backend, kept: Kept, owner: str) -> None:
    await backend.claim(ClaimRequest(owner=owner))
    listed = await backend.list(kept.owner)
    assert {record.name for record in listed} == {kept.one.name, kept.two.name, kept.three.name}
    assert listed == sorted(listed, key=lambda record: record.created)


@keeps("delete:gone")
async def test_a_deleted_sandbox_is_gone_and_can_be_deleted_again(backend: Backend, owner: str) -> None:
    record = await backend.claim(ClaimRequest(owner=owner))
    await backend.delete(record.name)
    await gone(backend, record.name)
    await backend.delete(record.name)
    assert await backend.list(owner) == []
    with pytest.raises(SandpodError) as refused:
        await backend.open_stream(record.name)
    assert refused.value.code == ErrorCode.SESSION_NOT_FOUND


@keeps("delete:session")
async def test_a_session_can_be_claimed_anew_after_a_delete(backend: Backend, owner: str) -> None:
    first = await backend.claim(ClaimRequest(owner=owner, session="one"))
    await backend.delete(first.name)
    await gone(backend, first.name)
    second = await backend.claim(ClaimRequest(owner=owner, session="one"))
    assert second.name != first.name


@pytest.mark.claim("close_sandbox")
@keeps("delete:stream")
async def test_deleting_a_sandbox_ends_its_streams_and_runs(backend: Backend, owner: str) -> None:
    record = await backend.claim(ClaimRequest(owner=owner))
    async with talk(backend, record.name) as peer:
        await peer.start("import time\nprint('up', flush=True)\ntime.sleep(60)")
        await peer.line()
        await backend.delete(record.name)
        await peer.ended()


@keeps("lost:record")
async def test_a_sandbox_whose_runner_ends_is_failed_and_can_be_replaced(
    backend: Backend, owner: str, case: Case
) -> None:
    record = await backend.claim(ClaimRequest(owner=owner, session="one"))
    await case.break_sandbox(backend, record.name)
    over = await ended(backend, record.name)
    assert over.status == "Failed"
    assert over.reason in {"PodFailed", "NodeLost", "OutOfMemory"}
    assert over.message
    with pytest.raises(SandpodError) as refused:
        await backend.open_stream(record.name)
    assert refused.value.code == ErrorCode.SANDBOX_LOST
    assert (await backend.claim(ClaimRequest(owner=owner, session="one"))).name != record.name


@keeps("stream:hello")
async def test_the_runner_says_hello_on_a_stream(backend: Backend, kept: Kept) -> None:
    stream = await backend.open_stream(kept.one.name)
    hello = await Peer(stream).hello()
    assert hello.header["version"] == 1
    assert "python" in hello.header["languages"]
    assert hello.header["runs"] == []
    await stream.close()


@keeps("stream:run")
async def test_a_programs_output_and_end_come_over_the_stream(backend: Backend, kept: Kept) -> None:
    async with talk(backend, kept.one.name) as peer:
        text, end = await peer.output("print('hello')")
        assert text == "hello\n"
        assert (end.header["outcome"], end.header["exit_code"], end.header["stdout_bytes"]) == ("ok", 0, 6)
        text, end = await peer.output("import sys\nprint('bad', file=sys.stderr)\nsys.exit(3)")
        assert text == "bad\n"
        assert (end.header["outcome"], end.header["exit_code"], end.header["stderr_bytes"]) == ("error", 3, 4)


@keeps("stream:pieces")
async def test_output_comes_while_the_program_runs(backend: Backend, kept: Kept) -> None:
    async with talk(backend, kept.one.name) as peer:
        run = await peer.start("for i in range(3):\n    print(i, flush=True)\n    input()", stdin=True)
        for number in range(3):
            assert await peer.line() == f"{number}\n"
            await peer.send({"t": "stdin", "run": run, "eof": False}, b"go on\n")
        assert (await peer.receive("end")).header["outcome"] == "ok"


@keeps("stream:cancel")
async def test_a_run_can_be_cancelled(backend: Backend, kept: Kept) -> None:
    async with talk(backend, kept.one.name) as peer:
        run = await peer.start("import time\nprint('up', flush=True)\ntime.sleep(60)")
        await peer.line()
        await peer.send({"t": "cancel", "run": run})
        assert (await peer.receive("end")).header["outcome"] == "cancelled"
        assert (await peer.request({"t": "ping"})).header["runs"] == []


@keeps("stream:timeout")
async def test_a_run_ends_at_its_timeout(backend: Backend, kept: Kept) -> None:
    async with talk(backend, kept.one.name) as peer:
        _, end = await peer.output("import time\ntime.sleep(60)", timeout=0.5)
        assert end.header["outcome"] == "timeout"


@keeps("stream:two")
async def test_a_sandbox_has_several_streams_at_once(backend: Backend, kept: Kept) -> None:
    async with talk(backend, kept.one.name) as one, talk(backend, kept.one.name) as two:
        assert (await one.output("print(1)"))[0] == "1\n"
        assert (await two.output("print(2)"))[0] == "2\n"
        assert (await one.request({"t": "ping"})).kind == "pong"


@keeps("stream:again")
async def test_after_a_stream_was_closed_another_finds_the_files(backend: Backend, kept: Kept) -> None:
    async with talk(backend, kept.one.name) as peer:
        written = await peer.request({"t": "file", "op": "write", "path": "a.txt", "last": True}, b"kept")
        assert written.header["size"] == 4
    async with talk(backend, kept.one.name) as peer:
        read = await peer.request({"t": "file", "op": "read", "path": "a.txt", "offset": 0, "limit": 100})
        assert read.payload == b"kept"


@keeps("stream:close")
async def test_closing_a_stream_wakes_its_reader_and_refuses_writes(backend: Backend, kept: Kept) -> None:
    stream = await backend.open_stream(kept.one.name)
    await Peer(stream).hello()
    reading = asyncio.create_task(stream.read())
    await asyncio.sleep(0)
    await stream.close()
    assert await asyncio.wait_for(reading, BOUND) == b""
    with pytest.raises(ConnectionError):
        await stream.write(b"more")
    await stream.close()


@pytest.mark.claim("create_sandbox")
@keeps("files:apart")
async def test_a_sandbox_does_not_see_anothers_files(backend: Backend, kept: Kept) -> None:
    async with talk(backend, kept.two.name) as one, talk(backend, kept.three.name) as two:
        await one.request({"t": "file", "op": "write", "path": "secret.txt", "last": True}, b"mine")
        listing = await two.request({"t": "file", "op": "list", "path": ".", "recursive": True, "limit": 10})
        assert listing.header["entries"] == []


@keeps("state:check")
async def test_a_started_backend_says_that_it_works(backend: Backend, case: Case) -> None:
    await backend.check()
    assert backend.kind == case.kind
    assert all(count >= 0 for count in backend.warm().values())


@pytest.mark.claim("create_sandbox(template)")
@keeps("state:templates")
async def test_a_started_backend_tells_the_templates_that_claims_may_name(backend: Backend, kept: Kept) -> None:
    templates = {template.name: template for template in await backend.templates(kept.owner)}
    assert templates[kept.one.template].networks[0] == kept.one.network
    assert not templates[kept.one.template].foreign


@pytest.mark.claim("create_sandbox(lifetime)", "create_sandbox(lifetime.ttl)")
@keeps("expiry:ttl")
async def test_a_sandbox_ends_after_its_ttl_and_says_so(backend: Backend, short: Short) -> None:
    over = await ended(backend, short.by_ttl.name)
    assert (over.status, over.reason) == ("Expired", "TTLExpired")
    with pytest.raises(SandpodError) as refused:
        await backend.open_stream(over.name)
    assert refused.value.code in {ErrorCode.SANDBOX_LOST, ErrorCode.SESSION_NOT_FOUND}
    again = ClaimRequest(owner=over.owner, session=short.by_ttl.session)
    assert (await backend.claim(again)).name != over.name


@pytest.mark.promise("sessions-bounded")
@pytest.mark.claim("create_sandbox(lifetime.idle_timeout)")
@keeps("expiry:idle")
async def test_a_sandbox_that_is_not_used_ends_after_its_idle_timeout(backend: Backend, short: Short) -> None:
    over = await ended(backend, short.idle.name)
    assert (over.status, over.reason) == ("Expired", "IdleTimeout")
    assert over.message
    await short.stream_of_idle.ended()


@pytest.mark.claim("create_sandbox(lifetime.idle_timeout)")
@keeps("expiry:touch")
async def test_a_sandbox_that_is_used_outlives_its_idle_timeout(short: Short) -> None:
    assert (await short.used).status == "Ready"


@pytest.mark.promise("idle")
@keeps("expiry:busy")
async def test_a_sandbox_with_a_background_run_is_not_idle_until_the_runs_timeout(
    backend: Backend, short: Short
) -> None:
    async def outlived() -> SandboxRecord | None:
        return await backend.get(short.busy.name) if is_past(short.busy) else None

    still = await until("the first idle timeout has passed", outlived, within=2 * BOUND)
    assert still.status == "Ready"


@keeps("expiry:changed")
async def test_a_lifetime_can_be_changed_while_the_sandbox_lives(backend: Backend, kept: Kept) -> None:
    changed = await backend.set_lifetime(kept.three.name, ttl=3000, idle_timeout=2000)
    for record in (changed, await backend.get(kept.three.name)):
        assert record is not None
        assert (record.name, record.ttl, record.idle_timeout) == (kept.three.name, 3000, 2000)
    with pytest.raises(SandpodError) as refused:
        await backend.set_lifetime("no-such-sandbox", ttl=60, idle_timeout=60)
    assert refused.value.code == ErrorCode.SESSION_NOT_FOUND


async def test_every_obligation_has_a_test_and_every_test_has_one() -> None:
    tests = [value for name, value in vars(sys.modules[__name__]).items() if name.startswith("test_")]
    kept = [mark.args[0] for test in tests for mark in getattr(test, "pytestmark", []) if mark.name == "obligation"]
    assert sorted(kept) == sorted(OBLIGATIONS)
    assert len(kept) == len(tests) - 1
