"""API keys as they are stored, followed and verified."""

import asyncio
import hmac
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from sandpod_gateway.auth import api_keys, key_file
from sandpod_gateway.auth.api_keys import KeyEntry, KeyFile, hash_key, make_key
from sandpod_gateway.auth.callers import Caller
from sandpod_gateway.auth.current import CallerToken
from sandpod_gateway.auth.key_file import WatchedFile, read_keys
from sandpod_gateway.auth.verifier import Keys
from sandpod_gateway.errors import StartError
from sandpod_gateway.metrics import Metrics
from sandpod_gateway.periodic import every

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def write(path: Path, *entries: KeyEntry, text: str = "") -> None:
    path.write_bytes(text.encode() or KeyFile(keys=list(entries)).dump())
    os.utime(path, ns=(path.stat().st_mtime_ns + 10**9, path.stat().st_mtime_ns + 10**9))


def verifier_of(*entries: KeyEntry) -> Keys:
    verifier = Keys()
    verifier.use(KeyFile(keys=list(entries)))
    return verifier


@asynccontextmanager
async def followed(path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[asyncio.Queue[list[KeyEntry]]]:
    """Give what is passed on of a file that is followed as a gateway does it."""
    monkeypatch.setattr(key_file, "POLL_SECONDS", 0.01)
    seen: asyncio.Queue[list[KeyEntry]] = asyncio.Queue()
    source = WatchedFile(path)
    seen.put_nowait((await source.read()).keys)
    follow = partial(source.follow, lambda keys: seen.put_nowait(keys.keys))
    task = asyncio.create_task(every(0.01, follow, task="api_keys", failures=Metrics().background_failures))
    yield seen
    task.cancel()


def test_a_key_is_stored_only_as_its_hash() -> None:
    key, entry = make_key(user="alice", name="laptop", days=30, now=NOW)
    assert key not in KeyFile(keys=[entry]).dump().decode()
    assert entry.hash == hash_key(key)
    assert entry.id in entry.hash
    assert entry.expires == NOW + timedelta(days=30)
    assert key != make_key(user="alice", name="laptop", days=30, now=NOW)[0]


async def test_a_key_tells_its_user_and_others_tell_nothing() -> None:
    key, entry = make_key(user="alice", name="laptop", days=None, now=NOW)
    verifier = verifier_of(entry)
    token = verifier.verify(key)
    assert token is not None
    assert token.subject == "user:alice"
    assert key not in repr(token)
    for wrong in ("", "sandpod_", key[:-1], key + "x", entry.hash, entry.id, "x" * 10_000, "\ud800"):
        assert verifier.verify(wrong) is None


async def test_key_whose_stored_hash_differs_after_its_id_is_no_key_and_takes_as_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    key, entry = make_key(user="alice", name="laptop", days=None, now=NOW)
    compared = []

    def spy(stored: str, given: str) -> bool:
        compared.append((stored, given))
        return hmac.compare_digest(stored, given)

    monkeypatch.setattr("sandpod_gateway.auth.verifier.hmac", SimpleNamespace(compare_digest=spy))
    last = "0" if entry.hash[-1] != "0" else "1"
    spoilt = entry.hash[:-1] + last
    assert verifier_of(entry.model_copy(update={"hash": spoilt})).verify(key) is None
    assert verifier_of(entry).verify(key) is not None
    assert compared == [(spoilt, entry.hash), (entry.hash, entry.hash)], "compared in constant time"


async def test_several_keys_of_a_user_are_one_owner_each_with_its_scopes() -> None:
    scopes = {"tools": ["core", "files"], "templates": ["small", "large"], "read_only": True}
    narrow, first = make_key(user="alice", name="ci", days=None, now=NOW, **scopes)
    wide, second = make_key(user="alice", name="laptop", days=None, now=NOW)
    verifier = verifier_of(first, second)
    tokens = [verifier.verify(key) for key in (narrow, wide)]
    assert [token.caller for token in tokens if isinstance(token, CallerToken)] == [
        Caller(
            "user:alice",
            bytes.fromhex(first.id),
            frozenset({"core", "files"}),
            ("small", "large"),
            read_only=True,
            key="ci",
        ),
        Caller("user:alice", bytes.fromhex(second.id), key="laptop"),
    ]


async def test_an_expired_key_is_no_key() -> None:
    key, entry = make_key(user="alice", name="old", days=1, now=datetime.now(UTC) - timedelta(days=2))
    verifier = verifier_of(entry)
    assert verifier.verify(key) is None
    assert verifier.owner_of_key(bytes.fromhex(entry.id)) is None


async def test_keys_come_and_go_without_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "keys.yaml"
    first, second = (make_key(user=user, name="a", days=None, now=NOW)[1] for user in ("alice", "bob"))
    async with followed(path, monkeypatch) as seen:
        assert await seen.get() == []
        write(path, first)
        assert await seen.get() == [first]
        write(path, second)
        assert await seen.get() == [second]
        path.unlink()
        assert await seen.get() == []


async def test_a_file_that_went_bad_locks_nobody_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "keys.yaml"
    first, second = (make_key(user=user, name="a", days=None, now=NOW)[1] for user in ("alice", "bob"))
    write(path, first)
    async with followed(path, monkeypatch) as seen:
        assert await seen.get() == [first]
        for text in ("keys: [oops", "keys: [{created: 2026-13-45}]", "keys: !!bool x", "a: 0001-01-01T00:00:00+14:00"):
            write(path, text=text)
        write(path, second)
        assert await seen.get() == [second]


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


@pytest.mark.parametrize(
    "text",
    [
        "keys: [oops",
        "keys: [{name: x}]",
        "[]",
        "other: 1",
        "keys: [{name: a, hash: b}]",
        "keys: [{created: 2026-13-45}]",
        "keys: !!bool x",
        "a: 0001-01-01T00:00:00+14:00",
    ],
)
def test_what_is_no_key_file_is_refused_without_its_content(tmp_path: Path, text: str) -> None:
    (tmp_path / "keys.yaml").write_text(text)
    with pytest.raises(StartError, match="is not a key file"):
        read_keys(tmp_path / "keys.yaml")


def test_key_file_with_an_unknown_scope_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    _, entry = make_key(user="alice", name="a", days=None, now=NOW, tools=["core"], templates=["small"])
    write(path, entry)
    assert read_keys(path).keys == [entry]
    for right, wrong in (("- core", "- cor"), ("- small", "- SMALL"), ("tools:", "tolls:")):
        text = KeyFile(keys=[entry]).dump().decode().replace(right, wrong)
        path.write_text(text)
        with pytest.raises(StartError):
            read_keys(path)


def test_an_empty_key_file_has_no_keys(tmp_path: Path) -> None:
    (tmp_path / "keys.yaml").write_text("")
    assert read_keys(tmp_path / "keys.yaml") == KeyFile()


def test_keys_that_no_file_may_hold_are_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    _, entry = make_key(user="alice", name="a", days=1, now=NOW)
    monkeypatch.setattr(api_keys, "MAX_FILE", len(KeyFile(keys=[entry]).dump()))
    assert KeyFile(keys=[entry]).dump()
    with pytest.raises(StartError, match="too many keys"):
        KeyFile(keys=[entry, entry]).dump()


def test_successor_does_not_prolong_a_key_that_ends_earlier() -> None:
    old, new = (make_key(user="alice", name="a", days=1, now=NOW)[1] for _ in range(2))
    soon, late = NOW + timedelta(hours=1), NOW + timedelta(days=9)
    keys = KeyFile(keys=[old])
    assert [entry.expires for entry in keys.rotated(old, new, soon).keys] == [soon, new.expires]
    assert [entry.expires for entry in keys.rotated(old, new, late).keys] == [old.expires, new.expires]
