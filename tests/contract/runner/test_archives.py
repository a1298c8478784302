"""The workspace as one archive: all that is in it, and nothing else."""

import io
import os
import tarfile
from pathlib import Path

import pytest

from sandpod_runner.files.archives import MAX_AT_ONCE
from sandpod_runner.protocol.messages import FILE_PART
from support.runner.harness import Client, RefusedError, Runner, running


async def fetch(client: Client, name: str = "one") -> bytes:
    parts: list[bytes] = []
    while not (reply := await client.file("archive", archive=name, part=len(parts))).header["last"]:
        assert len(reply.payload) <= FILE_PART
        parts.append(reply.payload)
    return b"".join(parts)


def opened(data: bytes) -> tarfile.TarFile:
    return tarfile.open(fileobj=io.BytesIO(data), mode="r:gz")


async def test_archive_holds_all_of_the_workspace_and_nothing_else(tmp_path: Path) -> None:
    with running(tmp_path) as runner:
        client = await runner.connect()
        code = (
            "import os\nos.makedirs('d/e')\nopen('d/e/a.txt', 'w').write('1')\n"
            "open('b.bin', 'wb').write(bytes(3_000_000))\nos.chmod('d/e/a.txt', 0o755)\n"
            "os.symlink('/etc/passwd', 'way out')\nos.mkfifo('pipe')\nos.mkdir('.sandpod')\nopen('.sandpod/own', 'w')\n"
            "open('n' * 200 + '\u00e9', 'w').write('long')\nopen(b'\\xff', 'w').write('bytes')"
        )
        assert (await client.run(code)).outcome == "ok"
        with opened(await fetch(client)) as tar:
            names = [member.name for member in tar]
            assert sorted(names) == sorted(
                ["d", "d/e", "d/e/a.txt", "b.bin", "way out", "n" * 200 + "\u00e9", os.fsdecode(b"\xff")]
            )
            file = tar.extractfile("b.bin")
            assert file is not None
            assert file.read() == bytes(3_000_000)
            assert tar.getmember("d/e/a.txt").mode == 0o755
            assert (tar.getmember("way out").issym(), tar.getmember("way out").linkname) == (True, "/etc/passwd")
        await client.close()


async def test_empty_workspace_is_an_empty_archive(runner: Runner, tmp_path: Path) -> None:
    assert runner.pid
    with running(tmp_path) as empty:
        client = await empty.connect()
        with opened(await fetch(client)) as tar:
            assert tar.getnames() == []
        await client.close()


async def test_each_of_as_many_archives_as_may_be_made_at_once_comes_whole(tmp_path: Path) -> None:
    with running(tmp_path) as runner:
        client = await runner.connect()
        await client.run("import os\nopen('a', 'wb').write(os.urandom(5_000_000))")
        parts: list[list[bytes]] = [[] for _ in range(MAX_AT_ONCE)]
        for part in range(6):
            for number, each in enumerate(parts):
                each.append((await client.file("archive", archive=f"n{number}", part=part)).payload)
        for each in parts:
            with opened(b"".join(each)) as tar:
                assert [member.size for member in tar] == [5_000_000]
        await client.close()


async def test_archive_too_many_is_refused_and_takes_none_of_the_others_place(tmp_path: Path) -> None:
    with running(tmp_path) as runner:
        client = await runner.connect()
        await client.run("import os\nopen('a', 'wb').write(os.urandom(5_000_000))")
        for number in range(MAX_AT_ONCE):
            await client.file("archive", archive=f"n{number}", part=0)
        assert await client.refused("archive", archive="one more", part=0) == "session_busy"
        for number in range(MAX_AT_ONCE):
            assert not (await client.file("archive", archive=f"n{number}", part=1)).header["last"]
        await client.close()


async def test_archive_that_nobody_fetches_makes_room_and_never_begins_again_unasked(tmp_path: Path) -> None:
    given_up = "from sandpod_runner.files import archives; archives.GIVEN_UP = 0.0"
    with running(tmp_path, prelude=given_up) as runner:
        client = await runner.connect()
        await client.run("import os\nopen('a', 'wb').write(os.urandom(5_000_000))")
        for number in range(MAX_AT_ONCE + 1):
            await client.file("archive", archive=f"n{number}", part=0)
        assert await client.refused("archive", archive="n0", part=1) == "not_found"
        assert (await client.file("archive", archive="n1", part=1)).payload
        await client.close()


async def test_part_out_of_turn_is_refused(tmp_path: Path) -> None:
    with running(tmp_path) as runner:
        client = await runner.connect()
        await client.run("open('a', 'w').write('1')")
        assert await client.refused("archive", archive="a", part=1) == "not_found"
        await client.file("archive", archive="a", part=0)
        assert await client.refused("archive", archive="a", part=0) == "not_found"
        assert await client.refused("archive", archive="b", part="first") == "invalid_argument"
        await client.close()


@pytest.mark.parametrize("name", [None, "", 5, ["a"]])
async def test_archive_without_a_name_is_refused(client: Client, name: object) -> None:
    with pytest.raises(RefusedError) as refused:
        await client.file("archive", archive=name)
    assert refused.value.code == "invalid_argument"
