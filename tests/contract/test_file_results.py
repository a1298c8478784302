"""What descriptions of the fields of results about files say, tried by a client in local sandboxes.

What other tests see by the way is not tried again here.
"""

import hashlib
from datetime import UTC, datetime, timedelta

import pytest

from sandpod_gateway.api.results import ErrorCode
from support.background import LINE, lines
from support.gateway.results import STEP, moment
from support.gateway.served import Served

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.needs_userns]


async def test_files_are_told_by_what_they_are(served: Served) -> None:
    code = "import os\nos.makedirs('kinds/d')\nos.mkfifo('kinds/o')\nos.symlink('d', 'kinds/s')\n"
    await served.python(f"{code}open('kinds/t.csv', 'w').write('a,b')\nos.utime('kinds/t.csv', (0, 1_000_000_000))")
    entries = {entry.pop("path"): entry for entry in (await served.call("list_files", path="kinds"))["entries"]}
    assert {path: entry["kind"] for path, entry in entries.items()} == {
        "kinds/d": "directory",
        "kinds/o": "other",
        "kinds/s": "symlink",
        "kinds/t.csv": "file",
    }
    known: dict[str, object] = {
        "kind": "file",
        "size": 3,
        "modified_at": "2001-09-09T01:46:40Z",
        "mime_type": "text/csv",
    }
    known["unreadable"] = False
    assert entries["kinds/t.csv"] == known
    seen = await served.call("stat_file", path="/workspace/kinds/./t.csv")
    assert seen == {**known, "path": "kinds/t.csv", "sandbox": seen["sandbox"]}
    await served.python("for i in range(1200): open('kinds/' + 'n' * 240 + str(i), 'w')")
    long = await served.call("list_files", path="kinds", limit=2000)
    assert (len(long["entries"]) < 1200, long["truncated"]) == (True, True), "not as many as were asked for"
    await served.call("delete_file", path="kinds", recursive=True)


async def test_content_is_told_with_its_place_sizes_and_hash(served: Served) -> None:
    data = "h\u00e9llo".encode()
    written = await served.call("write_file", path="content.txt", text="h\u00e9llo")
    uploaded = await served.call("upload_file", filename="u.txt", text="h\u00e9llo", overwrite=True)
    for told in (written, uploaded):
        assert (told["size"], told["sha256"]) == (6, hashlib.sha256(data).hexdigest())
    assert (uploaded["url"], uploaded["expires_at"]) == (None, None)
    for offset, limit, content, count, truncated in ((0, 3, "h\u00e9", 3, True), (3, 9, "llo", 3, False)):
        read = await served.call("read_file", path="content.txt", offset=offset, limit=limit)
        assert (read["content"], read["offset"], read["bytes"]) == (content, offset, count)
        assert (read["size"], read["truncated"], read["encoding"]) == (6, truncated, "utf-8")


@pytest.mark.parametrize("root", ["", "/workspace/", "./x/../"])
async def test_paths_are_told_relative_to_the_workspace_however_they_are_given(served: Served, root: str) -> None:
    assert (await served.call("make_directory", path=f"{root}rel"))["path"] == "rel"
    assert (await served.call("upload_file", filename="a.txt", text="1", path=f"{root}rel"))["path"] == "rel/a.txt"
    assert (await served.call("upload_file", filename="b.txt", path=f"{root}rel"))["path"] == "rel/b.txt"
    moved = await served.call("move_file", source=f"{root}rel/a.txt", destination=f"{root}rel/c.txt")
    assert (moved["source"], moved["destination"]) == ("rel/a.txt", "rel/c.txt")
    assert (await served.call("stat_file", path="rel/c.txt"))["path"] == "rel/c.txt"
    link = await served.call("create_link", path=f"{root}rel/c.txt")
    read = await served.call("read_artifact", artifact=f"{root}rel/c.txt")
    assert (link["path"], read["path"]) == ("rel/c.txt", "rel/c.txt")
    for url in (link["url"], read["url"]):
        assert (await served.http.get(url)).text == "1"
    assert (await served.call("delete_file", path=f"{root}rel", recursive=True))["path"] == "rel"


async def test_links_tell_what_they_allow_and_until_when(served: Served) -> None:
    assert (await served.call("create_link", path="l.txt"))["error"] == ErrorCode.NOT_FOUND
    await served.call("write_file", path="l.txt", text="0")
    before = datetime.now(UTC)
    get = await served.call("create_link", path="l.txt", expires=600)
    put = await served.call("create_link", path="l.txt", method="put", expires=600)
    whole, upload = await served.call("fetch_workspace"), await served.call("upload_file", filename="l.txt")
    after = datetime.now(UTC)
    assert (get["method"], put["method"]) == ("get", "put")
    for told in (get, put):
        assert before - STEP <= moment(told["expires_at"]) - timedelta(seconds=600) <= after
    assert min(moment(whole["expires_at"]), moment(upload["expires_at"])) > after
    assert (await served.http.put(get["url"], content=b"1")).status_code == 403
    for told in (put, upload):
        assert (await served.http.put(told["url"], content=b"2")).is_success
    assert (await served.http.get(get["url"])).content == b"2"
    assert (await served.http.get(whole["url"])).content.startswith(b"\x1f\x8b")


async def test_artifact_tells_whether_it_goes_on_and_how_the_rest_is_had(served: Served) -> None:
    text = lines(0, 200_000)
    code = f"open('long.txt', 'w').write(''.join(f'{{i:0{LINE - 1}}}\\n' for i in range({200_000 // LINE})))"
    assert (await served.python(code))["outcome"] == "ok"
    read = await served.call("read_artifact", artifact="long.txt")
    assert (read["encoding"], read["truncated"], read["mime_type"], read["size"]) == (
        "utf-8",
        True,
        "text/plain",
        200_000,
    )
    start = len(read["content"])
    assert read["content"] == text[:start]
    rest = await served.call("read_file", path=read["path"], offset=start, limit=2**17)
    assert (rest["content"], rest["truncated"]) == (text[start:], False)
    assert (await served.http.get(read["url"])).text == text
    token = read["url"].rpartition("=")[2]
    assert (await served.http.get(read["url"].replace(token, token[::-1]))).status_code == 403
