"""The cache of packages, and what counts as a hash."""

import asyncio
import base64
import hashlib
import io
import os
import shutil
import threading
from pathlib import Path

import pytest

from sandpod_gateway.errors import StartError
from sandpod_gateway.packages.cache import Content, Digest, FileCache

SHA512 = base64.b64encode(hashlib.sha512(b"a").digest()).decode()
SHA1 = base64.b64encode(hashlib.sha1(b"a").digest()).decode()  # noqa: S324 - as old packages have it


def opened(folder: Path, most: int = 25) -> FileCache:
    cache = FileCache(folder, most)
    cache.open()
    return cache


def written(folder: Path, data: bytes) -> tuple[Path, Digest]:
    path = folder / "source"
    path.write_bytes(data)
    return path, Digest.of(io.BytesIO(data), "sha512")


def read(found: Content | None) -> bytes | None:
    if found is None:
        return None
    with found.file:
        return found.file.read()


async def content(cache: FileCache, digest: Digest) -> bytes | None:
    return read(await cache.get(digest))


async def added(cache: FileCache, path: Path, digest: Digest) -> bytes | None:
    return read(await cache.add(path, digest))


async def test_cache_keeps_what_was_used_last(tmp_path: Path) -> None:
    cache = opened(tmp_path / "cache")
    digests = []
    for number in range(3):
        path, digest = written(tmp_path, bytes([number]) * 10)
        digests.append(digest)
        assert await added(cache, path, digest) == bytes([number]) * 10
        assert await content(cache, digests[0]) == bytes(10)
    assert [await content(cache, each) is not None for each in digests] == [True, False, True]
    assert await content(opened(tmp_path / "cache"), digests[2]) == b"\2" * 10


async def test_bytes_are_never_kept_under_the_hash_of_others(tmp_path: Path) -> None:
    cache = opened(tmp_path / "cache")
    _, good = written(tmp_path, b"good")
    path, _ = written(tmp_path, b"evil")
    assert await cache.add(path, good) is None
    assert await cache.get(good) is None


async def test_file_that_was_changed_in_the_folder_is_not_handed_out(tmp_path: Path) -> None:
    cache = opened(tmp_path / "cache")
    path, good = written(tmp_path, b"good")
    assert await added(cache, path, good) == b"good"
    [kept] = (tmp_path / "cache").iterdir()
    kept.write_bytes(b"evil")
    assert await cache.get(good) is None
    assert not kept.exists()


async def test_package_with_a_weak_hash_is_not_kept(tmp_path: Path) -> None:
    cache = opened(tmp_path / "cache")
    path, _ = written(tmp_path, b"a")
    weak = Digest.announced(f"sha1-{SHA1}")
    assert await added(cache, path, weak) == b"a"
    assert await cache.get(weak) is None


def test_cache_that_can_not_be_made_is_reported_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StartError, match="can't be used"):
        opened(tmp_path / "file" / "cache")


def test_strongest_announced_hash_counts() -> None:
    expected = Digest("sha512", hashlib.sha512(b"a").hexdigest())
    for text in (f"sha512-{SHA512}", f"sha1-{SHA1} sha512-{SHA512}", f"sha512-{SHA512} sha512-{SHA512}"):
        assert Digest.announced(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "md5-1B2M2Y8AsgTpgAmY7PhCfg==",
        f"sha512-{SHA1}",
        f"sha512-{SHA512[:-2]}",
        f"sha512-{SHA512}?option",
        f"sha512-../../{SHA512}",
        f"sha512-{SHA512} sha512-{SHA512.swapcase()}",
        f"sha512-nonsense sha256-{SHA512}",
    ],
)
def test_anything_but_one_sound_hash_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"hash|base64"):
        Digest.announced(text)


async def test_files_from_before_that_are_over_the_bound_are_removed(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    folder.mkdir()
    for number, size in enumerate((10, 30, 10, 10)):
        path = folder / f"sha256-{number}.package"
        path.write_bytes(bytes(size))
        os.utime(path, (number, number))
    opened(folder)
    assert sorted(path.name for path in folder.iterdir()) == ["sha256-2.package", "sha256-3.package"]


async def test_package_that_two_owners_download_at_once_is_kept_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, move, both = opened(tmp_path / "cache"), shutil.move, threading.Barrier(2)
    sources = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        path, digest = written(tmp_path / name, b"good")
        sources.append(path)

    def moved(source: Path, target: Path) -> None:
        move(source, target)
        both.wait(60)  # until both are beside their place

    monkeypatch.setattr(shutil, "move", moved)
    assert await asyncio.gather(*(added(cache, path, digest) for path in sources)) == [b"good", b"good"]
    assert await content(cache, digest) == b"good"
    assert len(list((tmp_path / "cache").iterdir())) == 1
