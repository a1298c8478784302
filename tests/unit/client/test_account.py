"""`sandpod keys`, `usage`, `audit` and `doctor` at a server, and how they are told apart from those on files."""

import argparse
import csv
import io
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from fakes.backend import FakeBackend
from sandpod import local_server
from sandpod.cli import main as client_main
from sandpod.cli.account import usage
from sandpod_api.conditions import Condition, ConditionStatus
from sandpod_gateway.app import Gateway
from sandpod_gateway.audit.settings import AuditSettings
from sandpod_gateway.auth.api_keys import KeyFile, make_key
from sandpod_gateway.auth.key_file import read_keys
from sandpod_gateway.backends.base import SandboxRecord, TemplateInfo
from sandpod_gateway.cli import audit as server_audit
from sandpod_gateway.cli import keys as server_keys
from sandpod_gateway.cli import usage as server_usage
from sandpod_gateway.settings import AuthSettings, Settings
from support.command_line import Done, client
from support.gateway.server import listening

USERS: dict[str, dict[str, Any]] = {
    "ann": {},
    "=bob\x1b[2J": {},
    "carol": {"tenant": "b"},
    "root": {"role": "admin"},
}


class Cluster(FakeBackend):
    """Says that its sandboxes are pods, some with a kernel of their own."""

    kind = "kubernetes"

    async def templates(self, owner: str) -> tuple[TemplateInfo, ...]:
        del owner
        return TemplateInfo(name="default"), TemplateInfo(name="own", runtime_class="gvisor", networks=("none", "web"))

    async def list(self, owner: str) -> list[SandboxRecord]:
        states: dict[str, ConditionStatus] = {"NetworkIsolated": "True", "KernelIsolated": "False", "Ready": "True"}
        conditions = tuple(
            Condition(type=kind, status=status, reason="Probed", message="So it is.") for kind, status in states.items()
        )
        return [replace(each, conditions=conditions) for each in await super().list(owner)]


class Place:
    """A server with keys of several users, and the command line of each of them."""

    def __init__(self, address: str, file: Path, keys: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
        self.address, self.file, self.keys = address, file, keys
        self._monkeypatch = monkeypatch

    async def run(self, who: str, *command: str) -> Done:
        self._monkeypatch.setenv("SANDPOD_KEY", self.keys[who])
        return await client(*command)

    async def json(self, who: str, *command: str) -> Any:
        done = await self.run(who, *command, "--json")
        assert done.code == 0, done.err
        return json.loads(done.out)

    async def refused(self, who: str, *command: str) -> str:
        """Return the one sentence of a refusal."""
        done = await self.run(who, *command)
        [sentence] = [
            line for line in done.err.splitlines() if line.startswith("sandpod: ")
        ]  # the server logs there, too
        assert (done.code, done.out) == (2, "")
        return sentence


@pytest.fixture(autouse=True)
def nothing_chosen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("SANDPOD_URL", "SANDPOD_KEY", "SANDPOD_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SANDPOD_PROFILES", str(tmp_path / "none"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


@pytest_asyncio.fixture
async def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Place]:
    made = {user: make_key(user=user, name="k", days=None, now=datetime.now(UTC), **of) for user, of in USERS.items()}
    path = tmp_path / "keys.yaml"
    path.write_bytes(KeyFile(keys=[entry for _, entry in made.values()]).dump())
    audit = AuditSettings(sink="file", path=tmp_path / "audit.jsonl", required=True)
    settings = Settings(auth=AuthSettings(keys_file=path, change_keys=True), audit=audit)
    async with listening(Gateway(settings, Cluster()), settings) as address:
        monkeypatch.setenv("SANDPOD_URL", address)
        yield Place(address, path, {user: key for user, (key, _) in made.items()}, monkeypatch)


async def test_keys_are_made_seen_rotated_and_revoked_at_a_server(here: Place) -> None:
    own = "--name", "job", "--days", "3", "--tools", "core, account", "--templates", "default", "--read-only"
    done = await here.run("ann", "keys", "create", *own)
    key, titles, row = done.out.splitlines()
    assert (done.code, here.address in done.err, key in done.err) == (0, True, False)
    assert titles.split("  ")[0] == "ID"
    assert ("tools=core,account templates=default read-only" in row, " ann " in row) == (True, True)
    job = {each["name"]: each for each in await here.json("ann", "keys", "list", "--output", "json")}["job"]
    assert (job["name"], job["tools"], job["read_only"], job["expired"]) == ("job", ["core", "account"], True, False)
    assert "more rights" in await here.refused("ann", "keys", "create", "--name", "x", "--admin")
    assert "tools.0 is wrong" in await here.refused("ann", "keys", "create", "--name", "x", "--tools", "all-of-it")
    for_carol = "--user", "carol", "--tenant", "b", "--name", "more"
    assert (await here.json("root", "keys", "create", *for_carol))["tenant"] == "b"
    assert (await here.json("root", "keys", "create", "--name", "second", "--admin"))["role"] == "admin"
    shown = (await here.run("root", "keys", "list")).out
    assert shown.replace("\n", "").isprintable()
    assert [line.split()[1] for line in shown.splitlines() if " carol " in line] == ["b", "b"]

    made = await here.json("ann", "keys", "rotate", job["key_id"], "--grace", "1")
    assert (made["user"], made["tools"], made["key_id"] != job["key_id"]) == ("ann", job["tools"], True)
    assert "no key" in await here.refused("ann", "keys", "rotate", "0" * 16)
    assert "nothing at this address" in await here.refused("ann", "keys", "revoke", "../sandboxes")
    assert "Name keys" in await here.refused("ann", "keys", "revoke")
    # A user of the same name in a tenant is another one.
    assert "There are some in b: --tenant" in await here.refused("root", "keys", "revoke", "--user", "carol")
    done = await here.run("root", "keys", "revoke", "--user", "carol", "--tenant", "b")
    assert [line.split()[0] for line in done.out.splitlines()] == ["revoked"] * 2
    assert "no key of the user carol in the tenant b" in await here.refused(
        "root", "keys", "revoke", "--user", "carol", "--tenant", "b"
    )
    # The key that revokes all of its user's comes last, wherever it stands.
    assert len(await here.json("root", "keys", "list")) == 6
    done = await here.run("root", "keys", "revoke", "--user", "root")
    assert (done.code, len(done.out.splitlines())) == (0, 2)
    assert {entry.user for entry in read_keys(here.file).keys} == {"ann", "=bob\x1b[2J"}
    assert "sandpod" in await here.refused("root", "keys", "list")


async def test_a_pool_is_scaled_by_administrators_alone(here: Place) -> None:
    titles, row = (await here.run("root", "pools", "default", "7")).out.splitlines()
    assert titles.split()[:3] == ["POOL", "TEMPLATE", "REPLICAS"]
    assert row.split()[:3] == ["default", "default", "7"]
    [pool] = await here.json("root", "pools", "default", "3", "--tenant", "b")
    assert (pool["pool"], pool["replicas"]) == ("default", 3)
    assert [each["replicas"] for each in await here.json("root", "pools")] == [7]
    assert [each["replicas"] for each in await here.json("root", "pools", "--tenant", "b")] == [3]
    assert "administrators" in await here.refused("ann", "pools", "default", "9")
    assert "no pool" in await here.refused("root", "pools", "none", "1")
    assert "replicas" in await here.refused("root", "pools", "default")
    assert "replicas" in await here.refused("root", "pools", "default", "10001")
    assert (await here.run("root", "pools", "default", "many")).code == 2
    assert [each["replicas"] for each in await here.json("root", "pools")] == [7]


async def test_usage_and_audit_records_are_shown_as_table_json_and_csv(
    here: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    hostile = "=bob\x1b[2J"
    for who in USERS:
        assert await here.json(who, "ps") == []
    rows = await here.json("root", "usage")
    users = [(hostile, ""), ("ann", ""), ("root", ""), ("carol", "b")]
    assert [(each["user"], each["tenant"]) for each in rows] == users
    assert (await here.json("root", "usage", "--user", "ann"))[0]["calls"] == rows[1]["calls"] > 0
    assert [each["user"] for each in await here.json("ann", "usage", "--output", "json")] == ["ann"]
    assert {each["tenant"] for each in await here.json("root", "usage", "--by", "tenant")} == {"", "b"}
    titles, *table = (await here.run("root", "usage", "--by", "key", "--tenant", "b")).out.splitlines()
    assert titles.split()[:4] == ["DAY", "TENANT", "USER", "KEY"]
    assert [line.split()[1:4] for line in table] == [["b", "carol", "k"]]
    assert len(table[0]) == len(titles)  # the last amount ends below its title
    assert (await here.run("root", "usage", "--since", "2999-01-01")).out.splitlines() == [
        (await here.run("ann", "usage", "--since", "2999-01-01")).out.rstrip()
    ]
    monkeypatch.setattr(usage, "_LIMIT", 1)  # a page for each row
    text = (await here.run("root", "usage", "--output", "csv")).out
    found = list(csv.DictReader(io.StringIO(text)))
    assert [each["user"] for each in found] == [f"'{hostile}", "ann", "root", "carol"]
    assert (await here.json("root", "usage", "--output", "csv"))[0] == rows[0]  # --json is the stronger
    assert "since is a day" in await here.refused("ann", "usage", "--since", "monday")
    assert "administrators" in await here.refused("ann", "usage", "--by", "tenant")

    records = await here.json("root", "audit")
    assert {"user:ann", "tenant:b:user:carol"} < {each.get("user") for each in records}
    assert records == sorted(records, key=lambda each: each["time"], reverse=True)
    assert {each["user"] for each in await here.json("ann", "audit")} == {"user:ann"}
    calls = await here.json("root", "audit", "--user", "carol", "--event", "call", "--limit", "1")
    assert [(each["user"], each["event"]) for each in calls] == [("tenant:b:user:carol", "call")]
    shown = (await here.run("root", "audit")).out
    assert shown.replace("\n", "").isprintable()
    assert shown.splitlines()[0].split() == ["TIME", "USER", "EVENT", "WHAT", "SANDBOX", "OUTCOME"]
    assert "list_sandboxes" in shown
    assert "limit" in await here.refused("ann", "audit", "--limit", "0")


async def test_the_doctor_says_what_a_server_isolates_with_and_where_to_prove_it(
    here: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandpod.cli.doctor.entry_points", lambda **_: ())  # nothing of this machine
    made = await here.run("ann", "run", "--json", "-c", "print(1)")
    assert made.code == 0, made.err
    done = await here.run("ann", "doctor", "--json")
    found = {each["what"]: (each["ok"], each["found"]) for each in json.loads(done.out)}
    assert found["isolation there"] == (True, "Sandboxes are pods of a cluster.")
    assert found["template default"] == (True, "the kernel is shared; network profiles: none")
    own = "a kernel of its own (RuntimeClass gvisor); network profiles: none, web"
    assert found["template own"] == (True, own)
    assert "`sandpod verify --backend kubernetes`" in found["proof"][1]
    # What was probed from inside a sandbox is told where there is one, and what is open is wrong.
    sandbox = json.loads(made.out)["sandbox"]
    assert found[f"NetworkIsolated in {sandbox}"] == (True, "Probed: So it is.")
    assert found[f"KernelIsolated in {sandbox}"] == (False, "Probed: So it is.")
    assert (done.code, f"Ready in {sandbox}" in found) == (1, False)
    # Who has none learns the rest, and who may not ask learns that.
    assert (await here.run("root", "doctor")).code == 0
    few = await here.json("ann", "keys", "create", "--name", "few", "--tools", "sandboxes")
    here.keys["few"] = few["key"]
    done = await here.run("few", "doctor")
    assert (done.code, "The server does not say: " in done.out) == (1, True)


async def test_files_and_clusters_are_the_server_programs_whatever_server_is_chosen(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = str(tmp_path / "keys.yaml")
    monkeypatch.setattr("sandpod.api.pause", lambda _: 0.0)
    # Nobody answers there: nothing is asked.
    for url in (None, "http://127.0.0.1:1"):
        if url is not None:
            monkeypatch.setenv("SANDPOD_URL", url)
        made = json.loads((await client("keys", "create", "--user", "ann", "--file", file, "--json")).out)
        assert made["entry"]["user"] == "ann"
        [row] = json.loads((await client("keys", "list", "--file", file, "--json")).out)
        assert json.loads((await client("keys", "list", f"--fil={file}", "--output", "json")).out) == [row]
        assert "entry, to put under" in (await client("keys", "create", "--user", "bob", "--print")).out
        assert json.loads((await client("usage", "--directory", str(tmp_path), "--json")).out) == []
        assert "no audit records" in (await client("audit", "verify", file)).err
        assert (
            json.loads((await client("keys", "revoke", "--file", file, "--json", row["id"])).out)[0]["id"] == row["id"]
        )
        wrong = await client("keys", "list", "--file", file, "--local")
        assert (wrong.code, "unrecognized arguments: --local" in wrong.err) == (2, True)
    asking: list[tuple[str, ...]] = [("keys", "list"), ("keys", "revoke", "x"), ("usage",), ("audit",)]
    for command in (*asking, ("keys", "create", "--user", "ann")):
        done = await client(*command)
        assert (done.code, "can't be reached" in done.err) == (2, True)
    monkeypatch.delenv("SANDPOD_URL")
    for command in asking:
        done = await client(*command)
        assert (done.code, "No server is chosen" in done.err, done.err.count("\n")) == (2, True, 1)
    assert "entry, to put under" in (await client("keys", "create", "--user", "bob")).out  # as ever
    monkeypatch.setattr("sandpod.cli.account.keys.is_installed", lambda: False)
    assert "No server is chosen" in (await client("keys", "create", "--user", "bob")).err
    assert local_server.is_installed()


def test_each_argument_of_the_server_program_leads_to_it() -> None:
    theirs = argparse.ArgumentParser()
    commands = theirs.add_subparsers()
    for command in (server_keys, server_usage, server_audit):
        command.add_parser(commands)
    known = _options(client_main.parser())
    wanted = _options(theirs)
    assert {name: options - known[name] for name, options in wanted.items() if options - known[name]} == {}
    assert len(wanted["keys create"]) > 10


def _options(parser: argparse.ArgumentParser, name: str = "") -> dict[str, set[str]]:
    """Return the options of each command with their choices, by its words."""
    found: dict[str, set[str]] = {name: set()}
    for action in parser._actions:
        found[name] |= {" ".join((option, *sorted(action.choices or ()))) for option in action.option_strings}
        if isinstance(action, argparse._SubParsersAction):
            for word, each in action.choices.items():
                found |= _options(each, f"{name} {word}".strip())
    return found
