"""The file tools over MCP: what they answer and what they refuse. What the disk does is the runner's tests' matter."""

import base64
import hashlib
from typing import Any

import pytest

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.files.service import SMALL_BINARY
from support.gateway.fake_gateway import Caller


@pytest.mark.claim("make_directory")
async def test_file_is_made_looked_at_moved_and_deleted(alice: Caller) -> None:
    made = await alice.call("make_directory", path="d/e")
    assert (made["path"], made["sandbox"]) == ("d/e", (await alice.call("stat_file", path="d/e"))["sandbox"])
    await alice.call("write_file", path="d/e/a.txt", text="h\u00e9llo\n")
    seen = await alice.call("stat_file", path="d/e/a.txt")
    assert (seen["path"], seen["kind"], seen["size"], seen["mime_type"]) == ("d/e/a.txt", "file", 7, "text/plain")
    moved = await alice.call("move_file", source="d/e/a.txt", destination="d/b.txt")
    assert (moved["source"], moved["destination"]) == ("d/e/a.txt", "d/b.txt")
    assert (await alice.call("stat_file", path="d/e/a.txt"))["error"] == ErrorCode.NOT_FOUND
    assert (await alice.call("delete_file", path="d/b.txt"))["path"] == "d/b.txt"
    assert (await alice.call("delete_file", path="d/b.txt"))["error"] == ErrorCode.NOT_FOUND


async def test_large_binary_file_points_to_read_artifact_unless_its_bytes_are_asked_for(alice: Caller) -> None:
    for size in (SMALL_BINARY, SMALL_BINARY + 1):
        data = b"\xff" * size
        await alice.call("write_file", path="a.zip", content_base64=base64.b64encode(data).decode())
        unasked = await alice.call("read_file", path="a.zip")
        for arguments in ({"encoding": "base64"}, {"limit": size}):
            asked = await alice.call("read_file", path="a.zip", **arguments)
            assert base64.b64decode(asked["content"]) == data
    assert (unasked["error"], "read_artifact" in unasked["next"]) == (ErrorCode.INVALID_CONTENT, True)
    assert unasked["message"] == f"The file is not text: application/zip, {size} bytes."


async def test_folder_with_something_in_it_is_deleted_on_request_only(alice: Caller) -> None:
    await alice.call("write_file", path="full/a.txt", text="1")
    assert (await alice.call("delete_file", path="full"))["error"]
    assert (await alice.call("delete_file", path="full", recursive=True))["path"] == "full"
    assert (await alice.call("list_files"))["entries"] == []


@pytest.mark.claim("write_file(overwrite)")
async def test_move_takes_no_other_files_place_unless_told(alice: Caller) -> None:
    for name in ("a", "b"):
        await alice.call("write_file", path=name, text=name)
    assert (await alice.call("move_file", source="a", destination="b"))["error"] == ErrorCode.FILE_EXISTS
    assert (await alice.call("read_file", path="b"))["content"] == "b"
    await alice.call("move_file", source="a", destination="b", overwrite=True)
    assert (await alice.call("read_file", path="b"))["content"] == "a"


async def test_upload_tells_size_and_hash_and_keeps_what_is_there(alice: Caller) -> None:
    uploaded = await alice.call("upload_file", filename="u.bin", content_base64="AAEC", path="in")
    assert (uploaded["path"], uploaded["size"]) == ("in/u.bin", 3)
    assert uploaded["sha256"] == hashlib.sha256(b"\0\1\2").hexdigest()
    again = await alice.call("upload_file", filename="u.bin", text="other", path="in")
    assert again["error"] == ErrorCode.FILE_EXISTS
    assert (await alice.call("read_file", path="in/u.bin"))["content"] == "AAEC"
    await alice.call("upload_file", filename="u.bin", text="other", path="in", overwrite=True)
    assert (await alice.call("read_file", path="in/u.bin"))["content"] == "other"


@pytest.mark.claim("upload_file(filename)")
@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../x", "/etc/x", "a\0b", "a\nb", "x" * 256, "\u00e9" * 128])
async def test_name_that_is_none_is_refused(alice: Caller, name: str) -> None:
    refused = await alice.call("upload_file", filename=name, text="1")
    assert refused["error"] == ErrorCode.INVALID_FILENAME
    assert (await alice.call("list_sandboxes"))["sandboxes"] == []


@pytest.mark.claim("read_file(path)")
@pytest.mark.parametrize("path", ["", "../x", "/etc/passwd", "a/../../x", "a\0b", "x" * 5000, "a/" + "x" * 256])
async def test_path_that_leads_out_is_refused(alice: Caller, path: str) -> None:
    tools: dict[str, dict[str, Any]] = {
        "stat_file": {},
        "make_directory": {},
        "delete_file": {},
        "read_file": {},
        "write_file": {"text": "1"},
        "upload_file": {"filename": "a", "text": "1"},
    }
    if path == "":
        del tools["upload_file"]  # no folder named means the workspace itself
    await alice.call("write_file", path="there", text="1")
    for tool, arguments in tools.items():
        assert (await alice.call(tool, path=path, **arguments))["error"] == ErrorCode.INVALID_PATH, tool
    for source, destination in ((path, "ok"), ("ok", path)):
        moved = await alice.call("move_file", source=source, destination=destination)
        assert moved["error"] in {ErrorCode.INVALID_PATH, ErrorCode.NOT_FOUND}


@pytest.mark.parametrize("text", ["a*bc", "YWJj*ZGVm", "YWJ", "\u00e9"])
async def test_upload_that_is_not_base64_is_refused(alice: Caller, text: str) -> None:
    refused = await alice.call("upload_file", filename="c.bin", content_base64=text)
    assert refused["error"] == ErrorCode.INVALID_CONTENT
    assert (await alice.call("list_sandboxes"))["sandboxes"] == []
