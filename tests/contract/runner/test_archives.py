"""The workspace as one archive: all that is in it, and nothing else."""

import io
import os
import stat
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sandpod_runner.files import archives
from sandpod_runner.files.archives import MAX_AT_ONCE
from sandpod_runner.protocol.errors import Refusal
from sandpod_runner.protocol.messages import FILE_PART
from support.runner.harness import Client, running


async def fetch(client: Client, name: str = "one", form: str = "tar.gz") -> bytes:
    parts: list[bytes] = []
    while not (reply := await client.file("archive", archive=name, part=len(parts), form=form)).header["last"]:
        assert len(reply.payload) <= FILE_PART
        parts.append(reply.payload)
    return b"".join(parts)


def opened(data: bytes) -> tarfile.TarFile:
    return tarfile.open(fileobj=io.BytesIO(data), mode="r:gz")


@pytest.fixture(autouse=True)
async def empty(client: Client) -> None:
    await client.run("find . -mindepth 1 -delete", "shell")


async def test_archive_holds_all_of_the_workspace_and_nothing_else(client: Client) -> None:
    with opened(await fetch(client)) as tar:
        assert tar.getnames() == []
    code = (
        "import os\nos.makedirs('d/e')\nopen('d/e/a.txt', 'w').write('1')\n"
        "open('b.bin', 'wb').write(bytes(3_000_000))\nos.chmod('d/e/a.txt', 0o755)\n"
        "os.symlink('/etc/passwd', 'way out')\nos.mkfifo('pipe')\nos.mkdir('.sandpod')\nopen('.sandpod/own', 'w')\n"
        "open('n' * 200 + '\u00e9', 'w').write('long')\nopen(b'\\xff', 'w').write('bytes')"
    )
    assert (await client.run(code)).outcome == "ok"
    with zipfile.ZipFile(io.BytesIO(await fetch(client, form="zip"))) as file:
        assert file.testzip() is None
        names = ["d/", "d/e/", "d/e/a.txt", "b.bin", "way out", "n" * 200 + "\u00e9", "\ufffd"]
        assert sorted(file.namelist()) == sorted(names)
        assert (file.read("d/e/a.txt"), file.read("b.bin")) == (b"1", bytes(3_000_000))
        modes = {name: file.getinfo(name).external_attr >> 16 for name in ("d/e/", "d/e/a.txt", "way out")}
        assert [stat.S_ISDIR(modes["d/e/"]), modes["d/e/a.txt"] & 0o777, stat.S_ISLNK(modes["way out"])] == [
            True,
            0o755,
            True,
        ]
        assert file.read("way out") == b"/etc/passwd"
    with opened(await fetch(client)) as tar:
        names = ["d", "d/e", "d/e/a.txt", "b.bin", "way out", "n" * 200 + "\u00e9", os.fsdecode(b"\xff")]
        assert sorted(tar.getnames()) == sorted(names)
        content = tar.extractfile("b.bin")
        assert content is not None
        assert content.read() == bytes(3_000_000)
        assert tar.getmember("d/e/a.txt").mode == 0o755
        assert (tar.getmember("way out").issym(), tar.getmember("way out").linkname) == (True, "/etc/passwd")


async def test_times_that_a_zip_file_can_not_have_are_the_nearest_that_it_can(client: Client) -> None:
    code = (
        "import os\nfor name, time in (('old', 0), ('new', 2**33)):\n    open(name, 'w'); os.utime(name, (time, time))"
    )
    await client.run(code)
    with zipfile.ZipFile(io.BytesIO(await fetch(client, form="zip"))) as file:
        assert {member.filename: member.date_time[0] for member in file.infolist()} == {"old": 1980, "new": 2107}


def test_zip_file_of_more_files_than_it_can_hold_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "MAX_MEMBERS", 2)
    for name in "ab":
        (tmp_path / name).touch()
    with zipfile.ZipFile(io.BytesIO(b"".join(archives._zip(str(tmp_path))))) as file:
        assert file.namelist() == ["a", "b"]
    (tmp_path / "c").touch()
    with pytest.raises(Refusal, match=r"at most 2 files: take a tar\.gz"):
        list(archives._zip(str(tmp_path)))


@pytest.mark.parametrize("form", [archives._zip, archives._tar_gz])
def test_file_that_changes_meanwhile_is_stored_with_the_size_that_it_had(
    tmp_path: Path, form: Callable[[str], Iterator[bytes]]
) -> None:
    sizes = {"grows": 400_000, "shrinks": 400_000}
    for name, size in sizes.items():
        (tmp_path / name).write_bytes(os.urandom(size))
    pieces = [next(parts := form(str(tmp_path)))]
    while sum(map(len, pieces)) < sizes["grows"] // 2:
        pieces.append(next(parts))
    with (tmp_path / "grows").open("ab") as file:
        file.write(bytes(1_000_000))
    while sum(map(len, pieces)) < sizes["grows"] * 3 // 2:
        pieces.append(next(parts))
    os.truncate(tmp_path / "shrinks", 0)
    data = io.BytesIO(b"".join([*pieces, *parts]))
    if form is archives._zip:
        with zipfile.ZipFile(data) as archive:
            assert {each.filename: each.file_size for each in archive.infolist()} == sizes
            assert archive.testzip() is None
    else:
        with tarfile.open(fileobj=data, mode="r:gz") as tar:
            assert {each.name: each.size for each in tar.getmembers()} == sizes


async def test_as_many_archives_as_may_be_made_at_once_come_whole_and_one_more_is_refused(client: Client) -> None:
    await client.run("import os\nopen('a', 'wb').write(os.urandom(2_500_000))")
    parts: list[list[bytes]] = [[] for _ in range(MAX_AT_ONCE)]
    last = False
    while not last:
        for number, each in enumerate(parts):
            reply = await client.file("archive", archive=f"n{number}", part=len(each))
            each.append(reply.payload)
        last = reply.header["last"]
        if not last:
            assert await client.refused("archive", archive="one more", part=0) == "session_busy"
    assert len(parts[0]) > 2
    for each in parts:
        with opened(b"".join(each)) as tar:
            assert [member.size for member in tar] == [2_500_000]


async def test_archive_that_nobody_fetches_makes_room_and_never_begins_again_unasked(tmp_path: Path) -> None:
    given_up = "from sandpod_runner.files import archives; archives.GIVEN_UP = 0.0"
    with running(tmp_path, prelude=given_up) as runner:
        client = await runner.connect()
        await client.run("import os\nopen('a', 'wb').write(os.urandom(2_500_000))")
        for number in range(MAX_AT_ONCE + 1):
            await client.file("archive", archive=f"n{number}", part=0)
        assert await client.refused("archive", archive="n0", part=1) == "not_found"
        assert (await client.file("archive", archive="n1", part=1)).payload
        await client.close()


async def test_part_out_of_turn_and_an_archive_without_a_name_are_refused(client: Client) -> None:
    assert await client.refused("archive", archive="a", part=1) == "not_found"
    await client.file("archive", archive="a", part=0)
    assert await client.refused("archive", archive="a", part=0) == "not_found"
    assert await client.refused("archive", archive="b", part="first") == "invalid_argument"
    for name in (None, "", 5, ["a"]):
        assert await client.refused("archive", archive=name) == "invalid_argument", name
