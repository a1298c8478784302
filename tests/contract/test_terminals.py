"""Terminals over WebSockets, in real sandboxes: what is shown, what is kept for who comes back, and who is refused."""

import asyncio
import json
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from websockets.exceptions import InvalidStatus

from sandpod_gateway.auth.api_keys import make_key
from sandpod_gateway.rest import key_check
from sandpod_gateway.rest.terminal_client import WINDOW
from support.gateway.served import LOCAL, Served, gateway
from support.gateway.terminal import TerminalClient, terminal

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.needs_userns]

VALUE = "s3cr3t/Value+0123456789"
SOURCES = (("TOKEN", "value"), ("LONG", "long"))


async def refused(address: str, **how: Any) -> tuple[int, dict[str, Any]]:
    """Return with what a request for a terminal is refused, and the body."""
    with pytest.raises(InvalidStatus) as found:
        async with terminal(address, **how):
            pass
    body = found.value.response.body or b""
    return found.value.response.status_code, json.loads(body) if body.startswith(b"{") else {}


async def error_of(address: str, **how: Any) -> tuple[str, int]:
    """Return the code of the error that a terminal ends with at once, and that of its WebSocket."""
    async with terminal(address, **how) as client:
        last, code = await client.last()
        assert last is not None
        return last["error"]["error"], code


@pytest.mark.promise("terminal-lossless")
async def test_a_shell_is_used_left_and_gone_on_with(alone: Served, address: str) -> None:
    async with terminal(address, cols=100, rows=30) as shell:
        name = shell.said[0]["terminal"]
        assert shell.said[0]["received"] == 0
        await shell.until(r"\$ ")
        assert await shell.run("stty size; pwd") == "30 100\r\n/workspace"
        await shell.say(resize=[120, 40])
        assert await shell.run("stty size") == "40 120"
        runs = (await alone.http.get("/api/v1/sandboxes/default/runs")).json()["runs"]
        assert [(each["run_id"], each["state"], each["language"]) for each in runs] == [(name, "running", "shell")]
        # Its client goes while output comes.
        shell.acks = False
        await shell.type("stty -echo; for i in $(seq 20000); do echo line $i; done; echo whole\n")
        await shell.until("line 50")
        await shell.socket.close(1001)
    async with terminal(address, terminal=name, received=shell.received) as again:
        assert again.said[0]["received"] > 0
        await again.until("whole\r\n")
        lines = bytes(shell.got + again.got).decode().splitlines()
        assert [each for each in lines if each.startswith("line ")][-20000:] == [f"line {n + 1}" for n in range(20000)]
        async with terminal(address, terminal=name) as taker:
            last, code = await again.last()
            assert (last["error"]["error"] if last else None, code) == ("session_busy", 1008)
            assert 0 < taker.begin <= again.received  # from what was acknowledged last
            assert await taker.run("echo still $((6 * 7))") == "still 42"
            await taker.socket.close(1001)
    assert await error_of(address, terminal=name, received=1) == ("invalid_argument", 1008)
    async with terminal(address, terminal=name) as shell:
        await shell.type("exit 3\n")
        last, code = await shell.last()
        assert (last["exit"]["exit_code"] if last else None, code) == (3, 1000)
    listed = (await alone.http.get(f"/api/v1/runs/{name}")).json()
    assert (listed["state"], listed["result"]["exit_code"]) == ("ended", 3)


@pytest.mark.promise("terminal-bounded")
async def test_a_client_that_does_not_acknowledge_gets_a_window_and_one_that_types_too_much_is_refused(
    alone: Served, address: str
) -> None:
    size = 2**20
    async with terminal(address, command=f"stty raw; echo begun; head -c {size} /dev/zero") as client:
        client.acks = False
        while client.received < WINDOW:
            await client.take()
        # It can still say something, and more than the program reads is not taken.
        assert client.received < WINDOW + 64 * 1024
        await client.say(ack=client.received)
        client.acks = True
        last, code = await client.last()
        assert (last, code) == ({"exit": {"exit_code": 0, "signal": None, "outcome": "ok", "detail": None}}, 1000)
        assert client.received == size + len("begun\r\n") - 1
    async with terminal(address, command="stty raw; echo begun; sleep 600") as client:
        await client.until("begun")
        assert await error_of(address, terminal=client.said[0]["terminal"].replace("term-", "term-0")) == (
            "not_found",
            1008,
        )
        for _ in range(4):
            await client.socket.send(bytes(200 * 1024))
        last, code = await client.last()
        assert (last["error"]["error"] if last else None, code) == ("rate_limited", 1008)
        assert {"taken": 64 * 1024} in client.said
    async with terminal(address) as client:
        assert (await alone.http.delete("/api/v1/sandboxes/default")).status_code == 409  # something is going on in it
        assert (await alone.http.delete("/api/v1/sandboxes/default?force=true")).status_code == 200
        last, _ = await client.last()
        assert last is not None
        # Its end may come before the stream's.
        assert (last["exit"]["outcome"] if "exit" in last else last["error"]["error"]) in {
            "cancelled",
            "session_not_found",
        }


@pytest.mark.promise("audit-recorded", "key-revoked", "key-scopes", "owners-apart", "secret-hidden", "secret-split")
async def test_who_may_not_is_refused_and_secrets_are_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_check, "SECONDS", 0.05)
    path = tmp_path / "keys.yaml"
    made = [make_key(user=user, name="test", days=None, now=datetime.now(UTC)) for user in ("a", "b", "a")]
    entries = [entry.model_dump(mode="json") for _, entry in made]
    entries[2]["read_only"] = True
    path.write_text(yaml.safe_dump({"keys": entries}))
    mine, others, reading = (key for key, _ in made)
    (tmp_path / "value").write_text(VALUE)
    (tmp_path / "long").write_text("s3cr3t" * 500)
    sources = json.dumps([{"name": name, "file": str(tmp_path / file)} for name, file in SOURCES])
    audit = tmp_path / "audit"
    flags = (
        "--auth.keys-file",
        str(path),
        "--local.secrets",
        sources,
        "--audit.sink",
        "file",
        "--audit.path",
        str(audit),
    )
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(AsyncExitStack())
        address = await server.enter_async_context(gateway(*LOCAL, *flags))
        assert (await refused(address))[0] == 401
        status, body = await refused(address, key="sp_wrong")
        assert (status, body.get("error")) == (401, "unauthorized")
        elsewhere = {"Origin": "https://elsewhere.example"}
        assert (await refused(address, key=mine, headers=elsewhere))[0] == 403
        assert await error_of(address, key=reading) == ("forbidden", 1008)
        assert await error_of(address, key=mine, sandbox="no-such") == ("session_not_found", 1008)
        assert await error_of(address, key=mine, cols=0) == ("invalid_argument", 1008)

        shell = await stack.enter_async_context(terminal(address, key=mine))
        name = shell.said[0]["terminal"]
        await shell.until(r"\$ ")
        assert await shell.run("echo $TOKEN; printf %s $TOKEN | base64") == "[secret TOKEN]\r\n[secret TOKEN]="
        await shell.type("s3")  # as a value begins
        await shell.until("s3$")
        await shell.type("\x15")
        for key, sandbox in ((others, "default"), (others, name.partition(".")[0])):
            assert (await error_of(address, key=key, sandbox=sandbox, terminal=name))[0] == "not_found"

        await hides_much(address, mine)
        path.write_text(yaml.safe_dump({"keys": entries[1:]}))
        last, code = await shell.last()
        assert (last["error"]["error"] if last else None, code) == ("unauthorized", 1008)
        path.write_text(yaml.safe_dump({"keys": entries}))
        shell = await until_accepted(stack, address, mine, name, shell)
        path.write_text(yaml.safe_dump({"keys": [entries[0] | {"tools": ["core"]}, *entries[1:]]}))
        last, code = await shell.last()  # what may less is another key
        assert (last["error"]["error"] if last else None, code) == ("unauthorized", 1008)
        back = await until_accepted(stack, address, mine, name, shell)
        assert await back.run("echo goes on") == "goes on"

        ending = asyncio.create_task(server.aclose())
        assert (await back.last())[1] == 1012
        await ending
    records = [json.loads(line) for line in audit.read_text().splitlines()]
    first, *_, last_one = [each for each in records if each["event"] == "terminal" and each.get("run_id") == name]
    assert (first["error"], first["bytes_in"] > 0, first["bytes_out"] > 0) == ("unauthorized", True, True)
    assert "error" not in last_one
    assert VALUE not in audit.read_text()


async def hides_much(address: str, key: str) -> None:
    """What is hidden need not be acknowledged, by a client that does that now and then."""
    command = 'for i in $(seq 500); do printf %s "$LONG"; done'
    async with terminal(address, key=key, command=command) as client:
        client.every = 64 * 1024
        assert (await client.last())[1] == 1000
        assert client.got == b"[secret LONG]" * 500


async def until_accepted(
    stack: AsyncExitStack, address: str, key: str, name: str, shell: TerminalClient
) -> TerminalClient:
    """Go on with a terminal once the key holds again."""
    while True:
        try:
            return await stack.enter_async_context(terminal(address, key=key, terminal=name, received=shell.received))
        except InvalidStatus:
            await asyncio.sleep(0.05)


@pytest.mark.promise("urls-and-hosts")
async def test_what_asks_for_no_terminal_gets_none(alone: Served, address: str) -> None:
    answer = await alone.http.get("/api/v1/sandboxes/default/terminal")
    assert (answer.status_code, answer.json()["error"]) == (426, "invalid_argument")
    assert (await refused(f"{address}/mcp"))[0] == 403
    # No page of a browser reaches a server without keys, by its own name or by another one for this machine.
    for origin in ("https://elsewhere.example", "http://localhost:3000", address.replace("127.0.0.1", "localhost")):
        assert (await refused(address, headers={"Origin": origin}))[0] == 403
    assert await error_of(address, headers={"Origin": address}, cols=0) == ("invalid_argument", 1008)
    port = int(address.rpartition(":")[2])
    assert (await refused("http://elsewhere.example", host="127.0.0.1", port=port))[0] == 421
