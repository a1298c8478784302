"""The workspace as one archive: all that is in it, and nothing else."""

import io
import os
import tarfile
from pathlib import Path

import pytest

from contract.runner_harness import Client, RefusedError, Runner, running
from sandpod_runner.protocol.messages import FILE_PART


async def fetch(client: Client, name: str = "one") -> bytes:
    parts = []
    while not (reply := await client.file("archive", archive=name)).header["last"]:
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


async def test_archives_that_nobody_fetches_are_forgotten(tmp_path: Path) -> None:
    with running(tmp_path) as runner:
        client = await runner.connect()
        await client.run("import os\nopen('a', 'wb').write(os.urandom(5_000_000))")
        firsts = [(await client.file("archive", archive=f"n{number}")).payload for number in range(6)]
        assert len(set(firsts)) == 1
        # The first two were given up for the last ones: they begin again.
        assert (await client.file("archive", archive="n0")).payload == firsts[0]
        assert (await client.file("archive", archive="n5")).payload != firsts[0]
        await client.close()


@pytest.mark.parametrize("name", [None, "", 5, ["a"]])
@pytest.mark.usefixtures("runner")
async def test_archive_without_a_name_is_refused(client: Client, name: object) -> None:
    with pytest.raises(RefusedError) as refused:
        await client.file("archive", archive=name)
    assert refused.value.code == "invalid_argument"
