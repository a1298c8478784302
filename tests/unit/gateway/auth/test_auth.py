import asyncio
import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml

from sandpod_gateway import cli
from sandpod_gateway.app import every
from sandpod_gateway.auth.api_keys import KeyFile, KeyVerifier, hash_key, make_key, read_keys
from sandpod_gateway.errors import StartError
from sandpod_gateway.metrics import Metrics

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def write(path: Path, *entries: object) -> None:
    data = {"keys": [entry.model_dump(mode="json") for entry in entries]}  # type: ignore[attr-defined]
    path.write_text(yaml.safe_dump(data))
    os.utime(path, ns=(path.stat().st_mtime_ns + 10**9, path.stat().st_mtime_ns + 10**9))


def test_a_key_is_stored_only_as_its_hash() -> None:
    key, entry = make_key(user="alice", name="laptop", days=30, now=NOW)
    assert key not in entry.model_dump_json()
    assert entry.hash == hash_key(key)
    assert entry.expires == NOW + timedelta(days=30)
    assert key != make_key(user="alice", name="laptop", days=30, now=NOW)[0]


async def test_a_key_tells_its_user_and_others_tell_nothing(tmp_path: Path) -> None:
    key, entry = make_key(user="alice", name="laptop", days=None, now=NOW)
    write(tmp_path / "keys.yaml", entry)
    verifier = KeyVerifier(tmp_path / "keys.yaml")
    token = await verifier.verify_token(key)
    assert token is not None
    assert token.subject == "alice"
    assert key not in repr(token)
    for wrong in ("", "sandpod_", key[:-1], key + "x", entry.hash, "x" * 10_000, "\ud800"):
        assert await verifier.verify_token(wrong) is None


async def test_an_expired_key_is_no_key(tmp_path: Path) -> None:
    key, entry = make_key(user="alice", name="old", days=1, now=datetime.now(UTC) - timedelta(days=2))
    write(tmp_path / "keys.yaml", entry)
    assert await KeyVerifier(tmp_path / "keys.yaml").verify_token(key) is None


async def test_keys_come_and_go_without_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    first, entry = make_key(user="alice", name="a", days=None, now=NOW)
    write(path, entry)
    verifier = KeyVerifier(path)
    second, other = make_key(user="bob", name="b", days=None, now=NOW)
    write(path, other)
    verifier.reload()
    assert await verifier.verify_token(first) is None
    assert await verifier.verify_token(second) is not None


async def test_a_file_that_went_bad_locks_nobody_out(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    key, entry = make_key(user="alice", name="a", days=None, now=NOW)
    write(path, entry)
    verifier = KeyVerifier(path)
    for text in ("keys: [oops", "keys: [{created: 2026-13-45}]", "keys: !!bool x", "a: 0001-01-01T00:00:00+14:00"):
        path.write_text(text)
        for _ in range(2):  # it is tried again, and complained of again, until it is mended
            with pytest.raises(StartError):
                verifier.reload()
        assert await verifier.verify_token(key) is not None
    write(path)
    verifier.reload()
    assert await verifier.verify_token(key) is None


async def test_round_that_fails_is_counted_and_does_not_end_the_work() -> None:
    failures = Metrics().background_failures
    rounds: list[int] = []
    done = asyncio.Event()

    async def work() -> None:
        rounds.append(1)
        if len(rounds) == 4:
            done.set()
        if len(rounds) < 3:
            raise ValueError

    task = asyncio.create_task(every(0, work, task="api_keys", failures=failures))
    await done.wait()
    task.cancel()
    assert failures.labels("api_keys")._value.get() == 2


async def test_without_a_key_file_everyone_is_refused_until_there_is_one(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    verifier = KeyVerifier(path)
    key, entry = make_key(user="alice", name="a", days=None, now=NOW)
    assert await verifier.verify_token(key) is None
    write(path, entry)
    verifier.reload()
    assert await verifier.verify_token(key) is not None
    path.unlink()
    verifier.reload()
    assert await verifier.verify_token(key) is None


@pytest.mark.parametrize("text", ["keys: [oops", "keys: [{name: x}]", "[]", "other: 1", "keys: [{name: a, hash: b}]"])
def test_what_is_no_key_file_is_refused_without_its_content(tmp_path: Path, text: str) -> None:
    (tmp_path / "keys.yaml").write_text(text)
    with pytest.raises(StartError, match="is not a key file"):
        read_keys(tmp_path / "keys.yaml")


def test_an_empty_key_file_has_no_keys(tmp_path: Path) -> None:
    (tmp_path / "keys.yaml").write_text("")
    assert read_keys(tmp_path / "keys.yaml") == KeyFile()


def test_command_adds_keys_to_a_file_that_only_its_owner_reads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "keys.yaml"
    for user in ("alice", "bob"):
        monkeypatch.setattr(
            "sys.argv", ["sandpod", "keys", "create", "--user", user, "--file", str(path), "--output", "json"]
        )
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert ended.value.code == 0
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [entry.hash for entry in read_keys(path).keys] == [hash_key(one["key"]) for one in told]
    assert [one["entry"]["user"] for one in told] == ["alice", "bob"]
    assert path.stat().st_mode & 0o077 == 0


def test_keys_have_the_toolsets_that_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "keys.yaml"

    def create(tools: str) -> tuple[object, str]:
        arguments = ["sandpod", "keys", "create", "--user", "alice", "--file", str(path), "--tools", tools]
        monkeypatch.setattr("sys.argv", arguments)
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return ended.value.code, capsys.readouterr().err

    assert create("core, files") == (0, "")
    assert [entry.tools for entry in read_keys(path).keys] == [["core", "files"]]
    for wrong in ("core,fils", ""):
        code, words = create(wrong)
        assert code == cli.EXIT_REFUSED
        assert "Toolsets are: core, background, sandboxes, files, links, contexts, all." in words
    assert len(read_keys(path).keys) == 1


@pytest.mark.parametrize("days", ["0", "36501", "9999999999"])
def test_days_that_no_key_is_valid_for_are_refused(
    days: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["sandpod", "keys", "create", "--user", "alice", "--days", days])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == cli.EXIT_REFUSED
    assert "--days is 1 to 36500." in capsys.readouterr().err


def test_key_file_with_an_unknown_toolset_is_refused(tmp_path: Path) -> None:
    _, entry = make_key(user="alice", name="a", days=None, now=NOW, tools=["core"])
    write(tmp_path / "keys.yaml", entry)
    assert read_keys(tmp_path / "keys.yaml").keys == [entry]
    text = (tmp_path / "keys.yaml").read_text().replace("- core", "- cor")
    (tmp_path / "keys.yaml").write_text(text)
    with pytest.raises(StartError):
        read_keys(tmp_path / "keys.yaml")
