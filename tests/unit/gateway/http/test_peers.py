"""Sessions of older MCP clients with two gateways: at whichever their requests arrive, and when one of them is gone."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final

import httpx2
import pytest
from cryptography import x509

from sandpod_gateway.audit.settings import AuditSettings
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.http.mcp.peers import KEPT_SECONDS, Peers, PeerSettings, place_of
from sandpod_gateway.metrics import Metrics
from sandpod_gateway.settings import AuthSettings, LimitSettings, TlsSettings
from support.cluster.cluster import until as cluster_until
from support.gateway.fake_gateway import keys_file
from support.gateway.peers import ACCEPT, INITIALIZE, PATIENCE, PING, until
from support.gateway.team import ONE, OTHER, Member, team
from support.servers.certificates import make_chain

VERSION: Final = {"mcp-protocol-version": "2025-11-25"}
FOREVER: Final = "import time\nprint('begun', flush=True)\nfor i in range(1000000):\n    time.sleep(0.01)"


def rpc(method: str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


def run(code: str) -> dict[str, Any]:
    return rpc("tools/call", name="run_python_code", arguments={"code": code}, _meta={"progressToken": 1})


@asynccontextmanager
async def begun(
    *members: Member, key: str | None = None, verify: bool = True, source: str | None = None
) -> AsyncIterator[list[httpx2.AsyncClient]]:
    """Begin a session at the first; gives a client of each, all of which are in that session, at that address."""
    headers = {**ACCEPT, **({"x-api-key": key} if key else {})}
    async with AsyncExitStack() as stack:
        transport = httpx2.AsyncHTTPTransport(verify=verify, local_address=source)
        clients = [
            await stack.enter_async_context(
                httpx2.AsyncClient(base_url=each.address, headers=headers, timeout=PATIENCE, transport=transport)
            )
            for each in members
        ]
        answer = await clients[0].post("/mcp", json=INITIALIZE)
        for client in clients:
            client.headers.update({**VERSION, "mcp-session-id": answer.headers["mcp-session-id"]})
        yield clients


async def until_line(answer: httpx2.Response, text: str) -> str:
    async for line in answer.aiter_lines():
        if text in line:
            return line
    raise AssertionError(f"the answer has no {text}")


@pytest.mark.promise("sessions-anywhere")
async def test_requests_of_a_session_are_answered_by_its_gateway_wherever_they_arrive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with team(monkeypatch) as made, AsyncExitStack() as stack:
        one, other = await made.both()
        here, there = await stack.enter_async_context(begun(one, other))
        call = there.stream("POST", "/mcp", json=run(FOREVER))
        answer = await stack.enter_async_context(call)
        await until_line(answer, "begun")  # it is streamed
        assert (one.running(), other.running()) == (1, 0)
        assert answer.headers["mcp-session-id"] == here.headers["mcp-session-id"]
        cancel = rpc("notifications/cancelled", requestId=1)
        del cancel["id"]
        assert (await there.post("/mcp", json=cancel)).status_code == 202
        await until(lambda: one.running() == 0)
        assert (await there.delete("/mcp")).status_code == 200
        for client in (here, there):
            assert (await client.post("/mcp", json=PING)).status_code == 404


async def test_a_client_that_leaves_leaves_the_gateway_of_its_session(monkeypatch: pytest.MonkeyPatch) -> None:
    async with team(monkeypatch) as made:
        one, other = await made.both()
        async with begun(one, other) as (here, there):
            async with there.stream("GET", "/mcp") as stream:
                assert stream.status_code == 200
                assert (await here.get("/mcp")).status_code == 409, "one such stream at a time"
            await until(lambda: other.passed_on("left") == 1)

            async def free() -> bool:
                async with here.stream("GET", "/mcp") as again:
                    return again.status_code == 200

            await cluster_until("another such stream is possible", free, within=PATIENCE)


@pytest.mark.promise("sessions-anywhere")
async def test_a_session_goes_on_when_its_gateway_is_gone_and_when_it_is_there_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with team(monkeypatch) as made:
        one, other = await made.both()
        async with begun(one, other) as (here, there):
            session = here.headers["mcp-session-id"]
            await one.end()  # which the other has not noticed yet
            for _ in range(2):
                answer = await there.post("/mcp", json=run("print(1)"))
                assert "1\\n" in answer.text
                assert answer.headers["mcp-session-id"] == session
            one = await made.start(ONE)
            await other.gateway._peers.refresh()
            for client in (here, there):
                assert (await client.post("/mcp", json=PING)).status_code == 200
            for status in (200, 404):
                assert (await there.delete("/mcp")).status_code == status
                assert (await there.post("/mcp", json=PING)).status_code == 404


async def test_a_session_that_its_client_ends_once_its_gateway_is_gone_stays_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with team(monkeypatch, limits=LimitSettings(max_sessions_per_owner=1)) as made:
        one, other = await made.both()
        async with begun(one, other) as (_, there), begun(other):  # which leaves no place to open it again
            await one.end()
            assert (await there.delete("/mcp")).status_code == 200
            assert (await there.post("/mcp", json=PING)).status_code == 404


async def test_a_cancel_counts_also_if_its_client_does_not_wait_for_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    async with team(monkeypatch) as made, AsyncExitStack() as stack:
        one, other = await made.both()
        here, there = await stack.enter_async_context(begun(one, other))
        answer = await stack.enter_async_context(here.stream("POST", "/mcp", json=run(FOREVER)))
        await until_line(answer, "begun")
        message = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}
        request = there.build_request("POST", "/mcp", json=message)
        raw = b"".join(b"%s: %s\r\n" % each for each in request.headers.raw)
        host, port = other.address.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"POST /mcp HTTP/1.1\r\n" + raw + b"\r\n" + request.content)
        await writer.drain()
        writer.close()
        await until(lambda: one.running() == 0)


async def test_gateways_that_cannot_be_looked_up_any_more_are_believed_for_a_while_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with team(monkeypatch) as made:
        one, _ = await made.both()
        peers, now = one.gateway._peers, time.monotonic()
        made.broken = True
        for passed, known in ((KEPT_SECONDS - 1, {OTHER}), (KEPT_SECONDS + 1, set())):
            peers.clock = lambda passed=passed: now + passed  # type: ignore[misc]
            with pytest.raises(SandpodError, match="can't be found"):
                await peers.refresh()
            assert peers.others == known
        await made.start("127.0.0.4")  # without them


async def test_many_requests_at_once_open_a_session_again_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async with team(monkeypatch) as made:
        one, other = await made.both()
        async with begun(one, other) as (_, there):
            await one.end()
            answers = await asyncio.gather(*(there.post("/mcp", json={**PING, "id": number}) for number in range(10)))
            assert [each.status_code for each in answers] == [200] * 10
            assert (await there.delete("/mcp")).status_code == 200


@pytest.mark.promise("sessions-anywhere")
async def test_a_session_is_opened_again_for_a_caller_with_a_key_and_for_them_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path, (alice, bob) = keys_file(tmp_path, "alice", "bob")
    async with team(monkeypatch, auth=AuthSettings(keys_file=path)) as made:
        one, other = await made.both()
        async with begun(one, other, key=alice) as (here, there):
            for client in (here, there):
                assert (await client.post("/mcp", json=PING, headers={"x-api-key": bob})).status_code == 404
                assert (await client.post("/mcp", json=PING, headers={"x-api-key": "no"})).status_code == 401
            await one.end()
            assert (await there.post("/mcp", json=PING, headers={"x-api-key": "no"})).status_code == 401
            assert (await there.post("/mcp", json=run("open('a', 'w')"))).status_code == 200
            listed = rpc("tools/call", name="list_sandboxes", arguments={})
            for key, count in ((alice, 1), (bob, 0)):
                line = await until_line(await there.post("/mcp", json=listed, headers={"x-api-key": key}), "data: ")
                answer = json.loads(line.removeprefix("data: "))
                assert len(answer["result"]["structuredContent"]["sandboxes"]) == count


async def test_a_call_whose_gateway_ends_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    async with team(monkeypatch) as made:
        one, other = await made.both()
        async with begun(one, other) as (_, there), there.stream("POST", "/mcp", json=run(FOREVER)) as answer:
            lines = answer.aiter_lines()
            async for line in lines:
                if "begun" in line:
                    break
            end = asyncio.create_task(one.end())
            rest = [line async for line in lines]
            await end
    assert any('"id": 1' in line and "gateway that answered this call ended" in line for line in rest), rest


async def test_a_caller_with_too_many_sessions_is_told_so_and_none_is_opened_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with team(monkeypatch, limits=LimitSettings(max_sessions_per_owner=1)) as made:
        one, other = await made.both()
        async with begun(one, other) as (_, there), begun(other) as [own]:
            await one.end()
            answer = await there.post("/mcp", json=PING)
            assert answer.json()["error"]["data"]["error"] == "max_sessions"
            assert (await own.delete("/mcp")).status_code == 200
            assert (await there.post("/mcp", json=PING)).status_code == 200


async def test_the_gateway_of_a_session_knows_whom_a_request_is_from_and_records_it_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def records(member: Member) -> list[tuple[str, str]]:
        path = tmp_path / member.address.rpartition("/")[2]
        found = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        return [(each["event"], each["from"]) for each in found if each["event"] in {"call", "refused"}]

    async with team(monkeypatch) as made:
        logs = [AuditSettings(sink="file", path=tmp_path / f"{host}:{made.port}") for host in (ONE, OTHER)]
        one, other = await made.start(ONE, audit=logs[0]), await made.start(OTHER, audit=logs[1])
        await one.gateway._peers.refresh()
        async with begun(one, other, source="127.0.0.9") as (_, there):
            liar = {"x-forwarded-for": "192.0.2.1", "x-forwarded-proto": "https"}
            assert (await there.post("/mcp", json=run("print(1)"), headers=liar)).status_code == 200
            assert (await there.delete("/mcp")).status_code == 200
            assert (await there.post("/mcp", json=run("print(1)"))).status_code == 404
        await one.end()
        await other.end()
    assert records(one) == [("call", "127.0.0.9")]
    assert records(other) == [("refused", "127.0.0.9")]


@pytest.mark.parametrize("given", ["a", "0" * 32, "0" * 16 + "-" + "0" * 31, "é"])
async def test_an_id_that_no_gateway_gives_is_no_sessions(monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    async with team(monkeypatch) as made:
        one, other = await made.both()
        async with begun(one, other) as clients:
            for client in clients:
                answer = await client.post("/mcp", json=PING, headers=[(b"mcp-session-id", given.encode())])
                assert answer.status_code in {400, 404}, answer.text


@pytest.mark.promise("sessions-anywhere")
@pytest.mark.parametrize("same", [True, False])
async def test_gateways_with_tls_know_each_other_by_their_certificate(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, same: bool
) -> None:
    """Another server at a gateway's address gets nothing, though its certificate is from the same authority."""
    make_chain(tmp_path / "a", x509.IPAddress(ip_address(ONE)), another=tmp_path / "b")
    tls = [TlsSettings(cert=tmp_path / name / "tls.crt", key=tmp_path / name / "tls.key") for name in ("a", "b")]
    async with team(monkeypatch) as made:
        one, other = await made.start(ONE, tls=tls[0]), await made.start(OTHER, tls=tls[0 if same else 1])
        async with begun(one, other, verify=False) as (_, there):
            await until_line(await there.post("/mcp", json=run("print(1)")), "1\\n")
        assert [each.backend.launcher.cells != [] for each in (one, other)] == [same, not same]


def test_gateways_agree_on_who_has_a_session() -> None:
    names, metrics = [f"10.0.0.{number}" for number in range(5)], Metrics()

    def homes(ready: list[str], place: Callable[[int], str]) -> list[set[str]]:
        gateways = [
            Peers(settings=PeerSettings(name="gateways", address=ip_address(own)), metrics=metrics, port=1)
            for own in ready
        ]
        for each in gateways:
            each.others = frozenset(ready) - {each.address}
        return [{each.home(f"session{number}", place(number)) for each in gateways} for number in range(200)]

    there = homes(names, lambda number: place_of(names[number % 5]))
    assert there == [{names[number % 5]} for number in range(200)]
    gone = homes(names, lambda _: place_of("10.0.0.9"))
    assert all(len(each) == 1 for each in gone)
    assert set.union(*gone) == set(names)
