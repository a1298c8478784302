"""Uploads that are compressed, come to a signed address, or break off, and bodies that are too large."""

import asyncio
import gzip
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx2
import pytest

from fakes.backend import FakeBackend
from sandpod_gateway.api import messages
from sandpod_gateway.e2b.envd.signatures import signature
from sandpod_gateway.e2b.envd.uploads import PIECE, plain
from sandpod_gateway.e2b.errors import NotHereError
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.settings import E2bSettings
from support.gateway.e2b import Place, place
from support.gateway.peers import until

DOMAIN = "box.example.com"


async def unpacked(data: bytes, size: int, encoding: str = "gzip") -> list[bytes]:
    async def body() -> AsyncIterator[bytes]:
        for at in range(0, len(data), size):
            yield data[at : at + size]

    return [part async for part in plain(body(), encoding)]


@pytest.mark.parametrize("size", [1, 7, 10**6])
async def test_compressed_bodies_come_whole_in_small_pieces(size: int) -> None:
    text = bytes(range(256)) * 10
    assert b"".join(await unpacked(gzip.compress(text) + gzip.compress(b"more"), size, "GZIP")) == text + b"more"
    assert b"".join(await unpacked(text, size, "identity")) == text


async def test_a_body_that_unpacks_to_much_is_never_held_whole() -> None:
    parts = await unpacked(gzip.compress(bytes(50 * 2**20)), 2**20)
    assert sum(map(len, parts)) == 50 * 2**20
    assert max(map(len, parts)) <= PIECE


async def test_a_body_that_is_no_gzip_or_breaks_off_is_refused() -> None:
    whole = gzip.compress(b"hello" * 1000)
    for data in (b"hello", whole[:-1], whole[:20], b"", whole + b"x"):
        with pytest.raises(SandpodError, match=r"gzip|breaks off") as refused:
            await unpacked(data, 10)
        assert refused.value.code == "invalid_argument"
    with pytest.raises(NotHereError):
        plain(unpacked, "br")  # type: ignore[arg-type]


class Signer:
    """Makes addresses as E2B's clients do, and asks for what is there."""

    def __init__(self, here: Place, sandbox: str, token: str) -> None:
        self.here, self.sandbox, self.token = here, sandbox, token

    def query(self, path: str, operation: str, end: float | None = None, user: str = "") -> dict[str, Any]:
        tail = "" if end is None else f":{int(end)}"
        signed = {"signature": signature(f"{path}:{operation}:{user}:{self.token}{tail}")}
        signed |= {"path": path} if path else {}
        return signed | ({"username": user} if user else {}) | ({"signature_expiration": int(end)} if end else {})

    async def ask(self, method: str, query: dict[str, Any], **options: Any) -> httpx2.Response:
        host = {"host": f"49983-{self.sandbox}.{DOMAIN}", **options.pop("headers", {})}
        async with httpx2.AsyncClient(timeout=60) as http:
            return await http.request(method, f"{self.here.address}/files?{urlencode(query)}", headers=host, **options)


async def test_signed_addresses_are_for_one_file_and_one_act_until_they_end(tmp_path: Path) -> None:
    async with place(tmp_path, e2b=E2bSettings(domain=DOMAIN)) as here:
        ann = Signer(here, *await here.made())
        other = Signer(here, (await here.made())[0], ann.token)
        eve = Signer(here, ann.sandbox, (await here.made("eve"))[1])
        soon, past = time.time() + 600, time.time() - 1
        files = {"file": ("b", b"one")}
        assert (await ann.ask("POST", ann.query("a", "write", soon), files=files)).is_success
        for query in (ann.query("a", "read"), ann.query("a", "read", soon), ann.query("a", "read", user="user")):
            answer = await ann.ask("GET", query)
            assert (answer.status_code, answer.content) == (200, b"one")
        assert (await ann.ask("HEAD", ann.query("a", "read"))).status_code == 200
        packed = {"content-type": "application/octet-stream", "content-encoding": "gzip"}
        sent = await ann.ask("POST", ann.query("a", "write"), headers=packed, content=gzip.compress(b"two"))
        assert sent.is_success
        assert (await ann.ask("GET", ann.query("a", "read"))).content == b"two"
        # Without a path it is for files of any name, with one for no other.
        several = [("file", (name, b"x")) for name in ("c", "d")]
        assert (await ann.ask("POST", ann.query("", "write"), files=several)).is_success
        assert (await ann.ask("POST", ann.query("e", "write"), files=several)).status_code == 400
        right = ann.query("a", "read", soon)
        for method, query in (
            ("GET", ann.query("a", "write")),
            ("POST", ann.query("a", "read")),
            ("GET", ann.query("a", "read", past)),
            ("GET", {**right, "path": "c"}),
            ("GET", {**right, "signature_expiration": int(soon) + 1}),
            ("GET", {**right, "signature_expiration": "9" * 5000}),
            ("GET", {**right, "username": "user"}),
            ("GET", {**right, "signature": right["signature"][:-1]}),
            ("GET", {**right, "signature": "v1_\u00fc"}),
            ("GET", {**right, "signature": ""}),
        ):
            answer = await ann.ask(method, query, **({"files": files} if method == "POST" else {}))
            assert answer.status_code == 401, (method, query)
        assert "expired" in (await ann.ask("GET", ann.query("a", "read", past))).text
        for stranger in (other, eve):
            assert (await stranger.ask("GET", stranger.query("a", "read"))).status_code == 401
        inside = f"{here.address}/contexts?{urlencode(right)}"
        async with httpx2.AsyncClient() as http:  # it opens nothing else
            assert (await http.get(inside, headers={"host": f"49983-{ann.sandbox}.{DOMAIN}"})).status_code == 401


def multipart(*files: tuple[str, bytes], end: bytes = b"--B--\r\n") -> bytes:
    parts = [
        b'--B\r\nContent-Disposition: form-data; name="file"; filename="%b"\r\n\r\n%b\r\n' % (name.encode(), content)
        for name, content in files
    ]
    return b"".join(parts) + end


BOUNDARY = {"content-type": "multipart/form-data; boundary=B"}
PACKED = {"content-type": "application/octet-stream", "content-encoding": "gzip"}
LARGE = b"".join(number.to_bytes(4, "big") for number in range(2**18))  # more than one message to the sandbox
BROKEN = {
    "multipart": ("/files", BOUNDARY, multipart(("whole", b"1"), ("half", LARGE), end=b"")[:-1000]),
    "multipart with a path": ("/files?path=half", BOUNDARY, multipart(("x", LARGE), end=b"")[:-1000]),
    "gzip": ("/files?path=half", PACKED, gzip.compress(LARGE)[:-1000]),
    "gzip of multipart": (
        "/files",
        {**BOUNDARY, "content-encoding": "gzip"},
        gzip.compress(multipart(("whole", b"1"), ("half", LARGE)))[:-1000],
    ),
}


@pytest.mark.promise("uploads")
@pytest.mark.parametrize("kind", BROKEN)
@pytest.mark.parametrize("before", [{}, {"half": b"what was there"}])
async def test_an_upload_that_breaks_off_leaves_no_half_file(
    tmp_path: Path, kind: str, before: dict[str, bytes]
) -> None:
    backend = FakeBackend()
    path, headers, body = BROKEN[kind]
    left = {**before, **({"whole": b"1"} if path == "/files" else {})}
    async with place(tmp_path, backend) as here:
        sandbox, token = await here.made()
        files, uploads = backend.runner(sandbox).files, here.gateway._file_routes._uploads
        files.contents = dict(before)
        # The request is whole, but not what it holds.
        answer = await here.inside(sandbox, token, "POST", path, headers=headers, content=body)
        assert (answer.status_code, "breaks off" in answer.text) == (400, True)
        assert files.contents == left

        # The connection is cut.
        files.contents, sent = dict(before), asyncio.Event()

        async def content() -> AsyncIterator[bytes]:
            yield body
            sent.set()
            await asyncio.Event().wait()

        headers = {**headers, "content-length": str(len(body) + 2000)}
        sending = asyncio.create_task(here.inside(sandbox, token, "POST", path, headers=headers, content=content()))
        await sent.wait()
        await until(lambda: uploads[sandbox] == 1 and len(files.contents) == len(left))
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        await until(lambda: not uploads[sandbox])
        assert files.contents == left


async def test_a_unary_body_that_is_too_large_is_refused_and_nothing_is_done(tmp_path: Path) -> None:
    backend = FakeBackend()
    async with place(tmp_path, backend) as here:
        sandbox, token = await here.made()
        large = b'{"path": "made", "more": "%b"}' % (b"x" * messages.MAX_BYTES)
        json_type = {"content-type": "application/json"}
        for method in ("/filesystem.Filesystem/MakeDir", "/process.Process/SendInput"):
            answer = await here.inside(sandbox, token, "POST", method, headers=json_type, content=large)
            assert (answer.status_code, answer.json()["code"]) == (413, "resource_exhausted")
            assert f"over {messages.MAX_BYTES} bytes" in answer.json()["message"]
        assert backend.runner(sandbox).files.folders == set()
        small = b'{"path": "made"}'
        made = await here.inside(
            sandbox, token, "POST", "/filesystem.Filesystem/MakeDir", headers=json_type, content=small
        )
        assert made.is_success
        assert backend.runner(sandbox).files.folders == {"made"}
