"""Usage documents in a folder."""

import asyncio
from pathlib import Path

import pytest

from sandpod_gateway.errors import StartError
from sandpod_gateway.usage import stores
from sandpod_gateway.usage.stores import Documents, FolderStore


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    made = FolderStore(tmp_path / "usage")
    made.open()
    return made


async def test_write_of_another_version_changes_nothing(store: FolderStore, tmp_path: Path) -> None:
    first = await store.write("usage-a", b"1", None)
    assert first is not None
    assert await store.write("usage-a", b"2", None) is None
    second = await store.write("usage-a", b"2", first)
    assert second is not None
    assert await store.write("usage-a", b"3", first) is None
    await store.delete("usage-a", first)
    assert {name: each.content for name, each in (await store.read()).items()} == {"usage-a": b"2"}
    await store.delete("usage-a", second)
    assert await store.read() == {}
    assert (tmp_path / "usage").stat().st_mode & 0o077 == 0


async def test_of_many_writers_of_one_version_one_writes(store: FolderStore) -> None:
    version = await store.write("usage-a", b"", None)
    written = await asyncio.gather(*(store.write("usage-a", b"%d" % each, version) for each in range(8)))
    assert len([each for each in written if each is not None]) == 1


async def test_changes_are_followed_and_other_files_are_not(
    store: FolderStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "POLL_SECONDS", 0)
    (tmp_path / "usage/README.json").write_text("not ours")
    seen: asyncio.Queue[Documents] = asyncio.Queue()
    following = asyncio.create_task(store.follow(seen.put_nowait))
    assert await seen.get() == {}
    await store.write("usage-a", b"1", None)
    assert [each.content for each in (await seen.get()).values()] == [b"1"]
    following.cancel()
    await asyncio.wait({following})


def test_folder_that_can_not_be_used_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StartError, match="for usage can't be written"):
        FolderStore(tmp_path / "file/usage").open()
    with pytest.raises(StartError, match="can't be used"):
        FolderStore(tmp_path / "nowhere").read_now()
