"""Links: the right to one path of one sandbox for a while, and what a browser is told about what comes."""

import base64
import io
import tarfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
from fastmcp import Client

from fakes.backend import FakeBackend
from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.app import Gateway
from sandpod_gateway.auth.callers import Caller
from sandpod_gateway.auth.links import Links, MemoryStore
from sandpod_gateway.http.routes import parse_range
from sandpod_gateway.settings import LinkSettings, Settings

BASE = "http://sandpod.test"
ALICE = Caller("user:alice", b"a" * 8)
BOB = Caller("user:bob", b"b" * 8)


class Place:
    """A gateway over a fake backend, called over MCP and plain HTTP."""

    def __init__(self, mcp: Client[Any], http: httpx2.AsyncClient) -> None:
        self._mcp = mcp
        self.http = http

    async def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        answer = await self._mcp.call_tool(tool, arguments, raise_on_error=False)
        assert isinstance(answer.structured_content, dict)
        return answer.structured_content

    async def link(self, path: str, **arguments: Any) -> str:
        url = (await self.call("create_link", path=path, **arguments))["url"]
        assert isinstance(url, str)
        return url


@asynccontextmanager
async def serving(**links: Any) -> AsyncIterator[Place]:
    settings = Settings(links=LinkSettings(public_url=BASE, **links))
    gateway = Gateway(settings, FakeBackend())
    app = gateway.http_app()
    async with (
        gateway.running(),
        httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url=BASE) as http,
        Client(gateway.mcp) as mcp,
    ):
        yield Place(mcp, http)


@pytest.fixture
async def place() -> AsyncIterator[Place]:
    async with serving() as made:
        yield made


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (None, range(10)),
        ("bytes=0-3", range(4)),
        ("bytes=4-", range(4, 10)),
        ("bytes=-3", range(7, 10)),
        ("bytes=-30", range(10)),
        ("bytes=5-99", range(5, 10)),
        (" Bytes = 1 - 2 ", range(1, 3)),
        ("bytes=10-", None),
        ("bytes=-0", None),
        ("bytes=3-1", range(10)),
        ("bytes=0-1,4-5", range(10)),
        ("bytes=-", range(10)),
        ("items=0-1", range(10)),
        ("bytes=a-b", range(10)),
        ("bytes=" + "9" * 30 + "-", range(10)),
    ],
)
def test_range_is_one_span_or_all(header: str | None, expected: range | None) -> None:
    assert parse_range(header, 10) == expected


def test_range_of_an_empty_file() -> None:
    assert parse_range(None, 0) == range(0)
    assert parse_range("bytes=0-", 0) is None
    assert parse_range("bytes=-5", 0) is None


async def links_at(now: list[float], makers: dict[bytes, str]) -> Links:
    links = Links(MemoryStore(), makers.get, lambda: now[0])
    await links.refresh()
    return links


@pytest.mark.promise("foreign-ids")
async def test_token_is_for_one_method_sandbox_and_path_and_ends() -> None:
    now, makers = [1000.0], {ALICE.key_id: ALICE.owner, BOB.key_id: BOB.owner}
    links = await links_at(now, makers)
    link, end = links.make(ALICE, "get", "sbx-a", "d/a b.txt", seconds=60)
    address, _, token = link.partition("?token=")
    assert (address, end) == ("/files/sbx-a/d/a%20b.txt", 1060)
    assert len(token) == 43
    assert links.owner(token, "get", "sbx-a", "d/a b.txt") == ALICE.owner
    assert links.owner(token, "put", "sbx-a", "d/a b.txt") is None
    assert links.owner(token, "get", "sbx-b", "d/a b.txt") is None
    assert links.owner(token, "get", "sbx-a", "d/b.txt") is None
    assert (await links_at(now, makers)).owner(token, "get", "sbx-a", "d/a b.txt") is None  # another's secret
    now[0] = 1060
    assert links.owner(token, "get", "sbx-a", "d/a b.txt") is None


async def test_token_with_any_bit_changed_is_none() -> None:
    links = await links_at([1000.0], {ALICE.key_id: ALICE.owner, BOB.key_id: BOB.owner})
    token = links.make(ALICE, "get", "a", "b", seconds=60)[0].partition("?token=")[2]
    data = base64.urlsafe_b64decode(token + "=")
    for bit in range(8 * len(data)):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        assert links.owner(base64.urlsafe_b64encode(changed).decode().rstrip("="), "get", "a", "b") is None
    others = token.replace(token[-1], chr(ord(token[-1]) + 1)), token + "=", token[:-1], "", "x" * 43, "é" * 43
    for bad in (*others, "\ud800" * 43, "x" * 99_999):
        assert links.owner(bad, "get", "a", "b") is None


async def test_token_ends_with_the_key_of_its_maker_and_no_other_maker_has_it() -> None:
    makers = {ALICE.key_id: ALICE.owner}
    links = await links_at([1000.0], makers)
    token = links.make(ALICE, "get", "a", "b", seconds=60)[0].partition("?token=")[2]
    makers[BOB.key_id] = BOB.owner
    assert links.owner(token, "get", "a", "b") == ALICE.owner
    makers[ALICE.key_id] = BOB.owner
    assert links.owner(token, "get", "a", "b") is None
    del makers[ALICE.key_id]
    assert links.owner(token, "get", "a", "b") is None


@pytest.mark.claim("create_link")
async def test_file_comes_by_its_link_alone(place: Place) -> None:
    await place.call("write_file", path="out/t é.csv", text="a,b\n1,2\n")
    url = await place.link("./out/../out/t é.csv")
    answer = await place.http.get(url)
    assert (answer.status_code, answer.text) == (200, "a,b\n1,2\n")
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    assert answer.headers["content-disposition"] == "attachment; filename*=UTF-8''t%20%C3%A9.csv"
    head = await place.http.head(url)
    assert (head.status_code, head.content, head.headers["content-length"]) == (200, b"", "8")


@pytest.mark.promise("links", "no-script")
@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("a.png", "inline"),
        ("a.txt", "inline"),
        ("a.html", "attachment"),
        ("a.svg", "attachment"),
        ("a.xml", "attachment"),
        ("a.pdf", "attachment"),
        ("a.js", "attachment"),
        ("a", "attachment"),
    ],
)
async def test_browser_shows_only_what_can_not_run_script(place: Place, name: str, shown: str) -> None:
    await place.call("write_file", path=name, text="<script>alert(1)</script>")
    answer = await place.http.get(await place.link(name))
    assert answer.headers["content-disposition"].startswith(f"{shown};")
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["content-security-policy"] == "sandbox; default-src 'none'"
    assert answer.headers["cache-control"] == "private, no-store"


async def test_part_of_a_file_comes_on_request(place: Place) -> None:
    await place.call("write_file", path="r.txt", text="0123456789")
    url = await place.link("r.txt")
    part = await place.http.get(url, headers={"range": "bytes=2-4"})
    assert (part.status_code, part.text, part.headers["content-range"]) == (206, "234", "bytes 2-4/10")
    beyond = await place.http.get(url, headers={"range": "bytes=10-"})
    assert (beyond.status_code, beyond.headers["content-range"]) == (416, "bytes */10")
    tag = part.headers["etag"]
    assert (await place.http.get(url, headers={"range": "bytes=0-0", "if-range": tag})).text == "0"
    assert (await place.http.get(url, headers={"range": "bytes=0-0", "if-range": '"old"'})).text == "0123456789"


@pytest.mark.claim("create_link", "create_link(method)")
async def test_file_goes_in_by_a_link_of_its_own(place: Place) -> None:
    asked = await place.call("upload_file", filename="big.bin", path="in")
    assert (asked["path"], asked["size"]) == ("in/big.bin", None)
    data = bytes(range(256)) * 20_000
    answer = await place.http.put(asked["url"], content=data)
    assert (answer.status_code, answer.json()["size"]) == (201, len(data))
    assert (await place.http.get(await place.link("in/big.bin"))).content == data
    again = await place.http.put(await place.link("in/big.bin", method="put"), content=b"")
    assert (again.status_code, (await place.call("stat_file", path="in/big.bin"))["size"]) == (201, 0)


@pytest.mark.promise("links")
@pytest.mark.claim("create_link", "create_link(method)")
async def test_spoilt_link_gives_nothing(place: Place) -> None:
    await place.call("write_file", path="l.txt", text="mine")
    await place.call("write_file", path="m.txt", text="mine too")
    url = await place.link("l.txt")
    for bad in (url[:-3] + "aaa", url.replace("l.txt", "m.txt"), url.split("?")[0], url.replace("token", "tok")):
        answer = await place.http.get(bad)
        assert answer.status_code == 403
        assert answer.json()["error"] == ErrorCode.FORBIDDEN
    assert (await place.http.put(url, content=b"changed")).status_code == 403
    assert (await place.http.get(await place.link("l.txt", method="put"))).status_code == 403
    assert (await place.call("read_file", path="l.txt"))["content"] == "mine"


@pytest.mark.promise("uploads")
async def test_file_over_the_limit_is_refused_and_leaves_nothing() -> None:
    async with serving(upload_bytes=1000) as place:
        url = await place.link("over.bin", method="put")
        answer = await place.http.put(url, content=bytes(1001))
        assert (answer.status_code, answer.json()["error"]) == (413, ErrorCode.UPLOAD_TOO_LARGE)
        assert (await place.call("list_files"))["entries"] == []
        assert (await place.http.put(url, content=bytes(1000))).status_code == 201


@pytest.mark.claim("create_link")
async def test_what_is_not_there_is_not_found(place: Place) -> None:
    await place.call("write_file", path="first.txt", text="1")
    await place.call("make_directory", path="folder")
    refused = await place.call("create_link", path="later.txt")
    assert (refused["error"], "list_files" in refused["next"]) == (ErrorCode.NOT_FOUND, True)
    assert "fetch_workspace" in (await place.call("create_link", path="folder"))["next"]
    assert (await place.http.put(await place.link("later.txt", method="put"), content=b"1")).status_code == 201
    url = await place.link("later.txt")
    assert (await place.http.get(url)).status_code == 200
    await place.call("delete_file", path="later.txt")
    assert (await place.http.get(url)).status_code == 404
    await place.call("close_sandbox", sandbox=(await place.call("list_sandboxes"))["sandboxes"][0]["sandbox"])
    gone = await place.http.get(url)
    assert (gone.status_code, gone.json()["error"]) == (404, ErrorCode.SESSION_NOT_FOUND)


@pytest.mark.parametrize("path", ["", ".", "..", "../x", "/etc/passwd", "a/../../x", "a\0b", "x" * 5000])
async def test_link_to_nothing_inside_is_refused(place: Place, path: str) -> None:
    assert (await place.call("create_link", path=path))["error"] == ErrorCode.INVALID_PATH


@pytest.mark.claim("create_link", "create_link(expires)")
async def test_link_ends_when_it_was_told_to(place: Place) -> None:
    await place.call("write_file", path="a.txt", text="1")
    link = await place.call("create_link", path="a.txt", expires=60)
    longer = await place.call("create_link", path="a.txt", expires=3600)
    assert link["expires_at"] < longer["expires_at"]
    for expires in (0, 10**9):
        assert (await place.call("create_link", path="a.txt", expires=expires))["error"] == ErrorCode.INVALID_ARGUMENT


async def test_without_an_address_there_is_no_link() -> None:
    gateway = Gateway(Settings(), FakeBackend())
    async with gateway.running(), Client(gateway.mcp) as client:
        answer = await client.call_tool("create_link", {"path": "a.txt"}, raise_on_error=False)
    assert answer.structured_content is not None
    assert answer.structured_content["error"] == ErrorCode.INVALID_ARGUMENT


async def test_workspace_comes_as_one_archive(place: Place) -> None:
    await place.call("write_file", path="w/a.txt", text="1")
    link = await place.call("fetch_workspace")
    answer = await place.http.get(link["url"])
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/gzip")
    with tarfile.open(fileobj=io.BytesIO(answer.content), mode="r:gz") as tar:
        assert tar.getnames() == ["w/a.txt"]
    assert (await place.http.get(link["url"].split("?")[0])).status_code == 403
    token = link["url"].split("?token=")[1]
    assert (await place.http.get(f"{BASE}/files/{link['sandbox']}/w/a.txt?token={token}")).status_code == 403
    await place.call("close_sandbox", sandbox=link["sandbox"])
    assert (await place.http.get(link["url"])).status_code == 404
