"""Links to real sandboxes: large files in parts, both ways, and what an upload that breaks off leaves."""

import asyncio
import hashlib
import io
import tarfile
import zipfile
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest

from support.cluster.server import serving
from support.gateway.served import LOCAL, Served, connected

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.needs_userns]

MIB = 2**20
SIZE = 48


def peak(pid: int) -> int:
    """Return the most memory that a process has had, bytes."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


@pytest.mark.promise("uploads")
async def test_large_file_passes_both_ways_and_costs_the_gateway_no_memory() -> None:
    sizes = ("--local.workspace-size", f"{SIZE + 50}Mi", "--local.memory", "2Gi")
    async with serving(*LOCAL, *sizes) as (url, pid), connected(url.removesuffix("/mcp"), Served) as here:
        put = await here.call("upload_file", filename="big.bin")
        digest = hashlib.sha256()
        before = peak(pid)

        async def content() -> AsyncIterator[bytes]:
            for number in range(SIZE):
                block = number.to_bytes(4, "big") * (MIB // 4)
                digest.update(block)
                yield block

        answer = await here.http.put(put["url"], content=content(), timeout=300)
        assert (answer.status_code, answer.json()["size"]) == (201, SIZE * MIB)
        seen = await here.shell("sha256sum big.bin", timeout=120)
        assert seen["stdout"].split()[0] == digest.hexdigest()

        got = hashlib.sha256()
        get = await here.call("create_link", path="big.bin")
        async with here.http.stream("GET", get["url"], timeout=300) as response:
            assert response.status_code == 200
            async for piece in response.aiter_bytes():
                got.update(piece)
        assert got.digest() == digest.digest()
        assert peak(pid) - before < SIZE // 3 * 2 * MIB


async def test_upload_that_breaks_off_leaves_nothing(alone: Served) -> None:
    put = await alone.call("upload_file", filename="half.bin")
    begun = asyncio.Event()

    async def content() -> AsyncIterator[bytes]:
        yield bytes(3 * MIB)
        begun.set()
        await asyncio.Event().wait()

    headers = {"content-length": "9000000"}
    sending = asyncio.create_task(alone.http.put(put["url"], content=content(), headers=headers))
    await begun.wait()
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    async with asyncio.timeout(60):
        while (await alone.shell("ls -A"))["stdout"]:
            pass
    assert (await alone.call("list_files"))["entries"] == []


async def test_file_that_changes_while_it_is_sent_is_not_passed_off_as_whole(alone: Served) -> None:
    await alone.shell("head -c 30M /dev/zero > changing")
    link = await alone.call("create_link", path="changing")
    async with alone.http.stream("GET", link["url"], timeout=60) as response:
        pieces = response.aiter_bytes()
        await anext(pieces)
        await alone.shell("echo more >> changing")
        with pytest.raises(httpx2.RemoteProtocolError):
            [piece async for piece in pieces]


@pytest.mark.claim("fetch_workspace", "fetch_workspace(format)")
async def test_workspace_comes_as_one_archive(alone: Served) -> None:
    command = "mkdir d; head -c 5M /dev/urandom > d/big; echo 1 > a; sha256sum < d/big"
    digest = (await alone.shell(command))["stdout"].split()[0]
    link = await alone.call("fetch_workspace")
    answer = await alone.http.get(link["url"], timeout=60)
    with tarfile.open(fileobj=io.BytesIO(answer.content), mode="r:gz") as tar:
        assert tar.getnames() == ["a", "d", "d/big"]
        file = tar.extractfile("d/big")
        assert file is not None
        assert hashlib.sha256(file.read()).hexdigest() == digest
    link = await alone.call("fetch_workspace", format="zip")
    answer = await alone.http.get(link["url"], timeout=60)
    with zipfile.ZipFile(io.BytesIO(answer.content)) as archive:
        assert archive.namelist() == ["a", "d/", "d/big"]
        assert hashlib.sha256(archive.read("d/big")).hexdigest() == digest
    assert answer.headers["Content-Type"] == "application/zip"
    assert (await alone.http.get(link["url"].replace(".zip?", ".tar.gz?"))).status_code == 403


async def test_what_a_run_names_can_be_linked_moved_and_deleted_by_that_name(alone: Served) -> None:
    code = "open('line\\nbreak.txt', 'w').write('1')\nopen(b'caf\\xe9.csv', 'w').write('2')"
    left = (await alone.python(code))["artifacts"]
    assert [artifact["path"] for artifact in left] == [r"caf\xe9.csv", r"line\x0abreak.txt"]
    assert [(await alone.http.get(artifact["url"])).text for artifact in left] == ["2", "1"]
    for path in [artifact["path"] for artifact in left]:
        assert (await alone.call("read_artifact", artifact=path))["path"] == path
        await alone.call("move_file", source=path, destination=f"{path}2")
        link = await alone.call("create_link", path=f"{path}2")
        assert (await alone.http.get(link["url"])).status_code == 200
        await alone.call("delete_file", path=f"{path}2")
    assert (await alone.call("list_files"))["entries"] == []
