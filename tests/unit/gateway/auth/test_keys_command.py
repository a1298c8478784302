"""`sandpod keys`, on a file."""

import json
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from sandpod_gateway.auth.api_keys import KeyEntry, KeyFile, hash_key
from sandpod_gateway.auth.callers import owner_of
from sandpod_gateway.auth.key_file import change_file, read_keys
from sandpod_gateway.cli import main
from sandpod_gateway.usage.document import Document


class Command:
    """Runs `sandpod keys` with one key file."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.path = path
        self._monkeypatch = monkeypatch
        self._capsys = capsys

    def __call__(self, *arguments: str, code: int = 0) -> str:
        """Run it; return what it prints, or what it says of a failure."""
        self._monkeypatch.setattr("sys.argv", ["sandpod", "keys", *arguments, "--file", str(self.path)])
        with pytest.raises(SystemExit) as ended:
            main.main()
        printed = self._capsys.readouterr()
        assert ended.value.code == code, printed
        return printed.err if code else printed.out

    def json(self, *arguments: str) -> Any:
        return json.loads(self(*arguments, "--output", "json"))

    def create(self, user: str, *arguments: str) -> tuple[str, str]:
        """Return the id and the key."""
        made = self.json("create", "--user", user, *arguments)
        return made["id"], made["key"]


@pytest.fixture
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(tmp_path / "keys.yaml", monkeypatch, capsys)


def test_create_adds_keys_to_a_file_that_only_its_owner_reads(keys: Command) -> None:
    made = [keys.create(user) for user in ("alice", "bob")]
    assert [(entry.id, entry.hash) for entry in read_keys(keys.path).keys] == [
        (id_, hash_key(key)) for id_, key in made
    ]
    assert keys.path.stat().st_mode & 0o077 == 0


def test_create_without_a_place_prints_the_entry(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr("sys.argv", ["sandpod", "keys", "create", "--user", "alice"])
    with pytest.raises(SystemExit) as ended:
        main.main()
    assert ended.value.code == 0
    assert "to put under `keys:` of the key file" in capsys.readouterr().out


def test_keys_have_the_scopes_that_are_named(keys: Command) -> None:
    keys.create("alice", "--tools", "core, files", "--templates", "small,large", "--read-only")
    [entry] = read_keys(keys.path).keys
    assert (entry.tools, entry.templates, entry.read_only) == (["core", "files"], ["small", "large"], True)
    assert keys.json("list")[0]["scopes"] == "tools=core,files templates=small,large read-only"
    for wrong in ("core,fils", "", " , "):
        words = keys("create", "--user", "alice", "--tools", wrong, code=main.EXIT_REFUSED)
        assert "Toolsets are: core, background, sandboxes, files, links, contexts, account, all." in words
    for wrong in ("", "Small", "../x"):
        words = keys("create", "--user", "alice", "--templates", wrong, code=main.EXIT_REFUSED)
        assert "templates are names of SandboxTemplates" in words
    assert len(read_keys(keys.path).keys) == 1


def test_keys_of_a_tenant_and_of_administrators_are_listed_as_such(keys: Command) -> None:
    keys.create("alice", "--tenant", "research", "--admin")
    [entry] = read_keys(keys.path).keys
    caller = entry.caller()
    assert (caller.owner, caller.tenant, caller.role) == (owner_of("research", "alice"), "research", "admin")
    [row] = keys.json("list")
    assert (row["tenant"], row["user"], row["scopes"]) == ("research", "alice", "admin")
    for wrong in ("Research", "a.b", "a:b", ""):
        assert "tenant and templates" in keys("create", "--user", "a", "--tenant", wrong, code=main.EXIT_REFUSED)
    assert len(read_keys(keys.path).keys) == 1


def test_revoke_of_a_user_leaves_the_keys_of_another_tenants_user_of_that_name(keys: Command) -> None:
    research, _ = keys.create("alice", "--tenant", "research")
    default, _ = keys.create("alice")
    assert f"revoked {default} of alice" in keys("revoke", "--user", "alice")
    assert "There is no key of user alice." in keys("revoke", "--user", "alice", code=main.EXIT_REFUSED)
    assert f"revoked {research} of alice" in keys("revoke", "--user", "alice", "--tenant", "research")


@pytest.mark.parametrize("days", ["0", "36501", "9999999999"])
def test_days_that_no_key_is_valid_for_are_refused(keys: Command, days: str) -> None:
    assert "days is 1 to 36500." in keys("create", "--user", "alice", "--days", days, code=main.EXIT_REFUSED)


def test_list_shows_each_key_and_nothing_to_call_with(keys: Command) -> None:
    _, key = keys.create("alice", "--name", "laptop", "--days", "30")
    keys.create("bob")
    printed = keys("list")
    assert "alice" in printed
    assert "laptop" in printed
    assert key not in printed
    assert read_keys(keys.path).keys[0].hash not in printed
    [alice, bob] = keys.json("list")
    assert alice["expires"].startswith(str((datetime.now(UTC) + timedelta(days=30)).year))
    assert (bob["user"], bob["name"], bob["expires"], bob["scopes"]) == ("bob", "default", None, None)


def test_list_says_which_key_has_expired(keys: Command) -> None:
    keys.create("alice", "--days", "1")
    past = datetime.now(UTC) - timedelta(seconds=1)
    change_file(keys.path, lambda all_: KeyFile(keys=[key.model_copy(update={"expires": past}) for key in all_.keys]))
    assert "(expired)" in keys("list")


def test_revoke_removes_keys_by_id_or_all_of_a_user(keys: Command) -> None:
    ids = [keys.create(user)[0] for user in ("alice", "alice", "bob", "bob")]
    assert keys("revoke", ids[0]) == f"revoked {ids[0]} of alice (default)\n"
    assert [entry.id for entry in read_keys(keys.path).keys] == ids[1:]
    keys("revoke", "--user", "bob")
    assert [entry.id for entry in read_keys(keys.path).keys] == ids[1:2]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "Name keys by their ids, or all of a user's by --user."),
        (("0011223344556677", "--user", "alice"), "Name keys by their ids, or all of a user's by --user."),
        (("0011223344556677",), "There is no key 0011223344556677."),
        (("--user", "carol"), "There is no key of user carol."),
    ],
)
def test_revoke_of_what_there_is_not_changes_nothing(keys: Command, arguments: tuple[str, ...], words: str) -> None:
    keys.create("alice")
    before = keys.path.read_bytes()
    assert words in keys("revoke", *arguments, code=main.EXIT_REFUSED)
    assert keys.path.read_bytes() == before


def test_revoke_of_a_key_that_there_is_and_one_that_there_is_not_changes_nothing(keys: Command) -> None:
    known, _ = keys.create("alice")
    assert "There is no key 00." in keys("revoke", known, "00", code=main.EXIT_REFUSED)
    assert len(read_keys(keys.path).keys) == 1


def test_rotate_makes_a_like_key_and_lets_the_old_one_end_after_the_grace(keys: Command) -> None:
    old, _ = keys.create(
        "alice", "--name", "ci", "--tools", "core", "--templates", "small", "--read-only", "--tenant", "a", "--admin"
    )
    made = keys.json("rotate", old, "--grace", "2", "--days", "30")
    ending, new = read_keys(keys.path).keys
    assert ending.expires is not None
    assert timedelta(hours=1.9) < ending.expires - datetime.now(UTC) <= timedelta(hours=2)
    assert new.hash == hash_key(made["key"])
    assert new.expires == new.created + timedelta(days=30)
    same = {"hash": ending.hash, "created": ending.created, "expires": ending.expires}
    assert new.model_copy(update=same) == ending


def test_rotate_keeps_the_end_of_the_old_key_unless_it_is_told_another(keys: Command) -> None:
    old, _ = keys.create("alice", "--days", "90")
    keys("rotate", old)
    ending, new = read_keys(keys.path).keys
    assert ending.expires is not None
    assert ending.expires < datetime.now(UTC) + timedelta(hours=25)
    assert new.expires is not None
    assert abs(new.expires - new.created - timedelta(days=90)) < timedelta(minutes=5)
    keys("rotate", new.id, "--days", "120")
    last = read_keys(keys.path).keys[-1]
    assert last.expires == last.created + timedelta(days=120)
    without_end, _ = keys.create("bob")
    keys("rotate", without_end)
    assert read_keys(keys.path).keys[-1].expires is None


def test_rotate_keeps_whatever_else_a_key_has(keys: Command) -> None:
    # Of each field another value than its default, so that a new field is in here too.
    fields: dict[str, Any] = {
        "name": "ci",
        "user": "alice",
        "hash": hash_key("key"),
        "created": datetime(2026, 1, 1, tzinfo=UTC),
        "expires": datetime(2999, 1, 1, tzinfo=UTC),
        "tools": ["core"],
        "templates": ["small"],
        "read_only": True,
        "tenant": "a",
        "role": "admin",
    }
    assert fields.keys() == KeyEntry.model_fields.keys()
    old = KeyEntry(**fields)
    keys.path.write_bytes(KeyFile(keys=[old]).dump())
    keys("rotate", old.id)
    _, new = read_keys(keys.path).keys
    assert new.hash != old.hash
    assert new.created > old.created
    assert new.model_copy(update={"hash": old.hash, "created": old.created}) == old


def test_rotate_of_an_expired_key_asks_for_an_end(keys: Command) -> None:
    past = datetime(2026, 1, 1, tzinfo=UTC)
    old = KeyEntry(name="ci", user="alice", hash=hash_key("key"), created=past, expires=past)
    keys.path.write_bytes(KeyFile(keys=[old]).dump())
    said = keys("rotate", old.id, code=main.EXIT_REFUSED)
    assert f"The key {old.id} has expired." in said
    assert "for how many days" in said
    assert read_keys(keys.path).keys == [old]
    keys("rotate", old.id, "--days", "1")
    assert read_keys(keys.path).keys[-1].is_valid(datetime.now(UTC))


def test_rotate_refuses_what_there_is_not_and_a_grace_that_is_none(keys: Command) -> None:
    old, _ = keys.create("alice")
    assert "There is no key 00." in keys("rotate", "00", code=main.EXIT_REFUSED)
    assert "grace is 0 to 8760 hours." in keys("rotate", old, "--grace", "-1", code=main.EXIT_REFUSED)
    assert "grace is 0 to 8760 hours." in keys("rotate", old, "--grace", "8761", code=main.EXIT_REFUSED)


def test_file_that_cannot_be_read_or_written_is_said_in_a_sentence(keys: Command) -> None:
    for command in (("list",), ("revoke", "00"), ("rotate", "00")):
        assert "can't be read: No such file or directory." in keys(*command, code=main.EXIT_REFUSED)
    assert not keys.path.exists()
    keys.path.write_text("keys: [oops")
    assert "is not a key file" in keys("create", "--user", "alice", code=main.EXIT_REFUSED)
    keys.path = keys.path.parent / "nowhere" / "keys.yaml"
    assert "can't be written: No such file or directory." in keys("create", "--user", "alice", code=main.EXIT_REFUSED)


def test_keys_that_are_added_at_once_are_all_there(keys: Command) -> None:
    def add(number: int) -> None:
        extra = read_one(number)
        change_file(keys.path, lambda all_: KeyFile(keys=[*all_.keys, *extra.keys]))

    def read_one(number: int) -> KeyFile:
        entry = {"name": "n", "user": f"u{number}", "hash": f"sha256:{number:064x}", "created": "2026-01-01T00:00:00Z"}
        return KeyFile.model_validate({"keys": [entry]})

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(add, range(24)))
    assert {entry.user for entry in read_keys(keys.path).keys} == {f"u{number}" for number in range(24)}


def test_list_says_when_a_key_was_used_last(keys: Command, tmp_path: Path) -> None:
    used, _ = keys.create("alice")
    keys.create("bob")
    document = Document("a", keys={used: 29_900_000})
    (tmp_path / "usage").mkdir()
    (tmp_path / "usage/usage-a.json").write_bytes(document.encode())
    alice, bob = keys.json("list", "--usage", str(tmp_path / "usage"))
    assert (alice["last_used"], bob["last_used"]) == ("2026-11-06T21:20:00Z", None)
    assert "LAST USED" in keys("list")
