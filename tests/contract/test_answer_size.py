"""Answers and messages that clients accept, whatever text is in them: real connections, in both protocol eras."""

import asyncio
import base64
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from mcp_types import BlobResourceContents, TextResourceContents

from support.gateway.served import Served, connected

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.needs_userns]

UNITS = {
    "emoji": "😀",
    "ideographs": "漢",
    "accents": "é",
    "control characters": "\x01",
    "escapes": "\x1b",
    "quotes": '"',
    "backslashes": "\\",
    "line separators": "\u2028",
    "carriage returns": "\r",
    "C1": "\x85",
    "no UTF-8": "\udcff",
    "emoji in text": "a 😀 b",
}


CASES = [
    *(("auto", unit) for unit in UNITS),
    *(("legacy", unit) for unit in ("emoji", "control characters", "no UTF-8")),
]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def callers(address: str) -> AsyncIterator[dict[str, Served]]:
    async with connected(address, Served) as auto, connected(address, Served, "legacy") as legacy:
        yield {"auto": auto, "legacy": legacy}


@pytest.fixture
def caller(callers: dict[str, Served], era: str) -> Served:
    return callers[era]


def written(unit: str) -> str:
    """Return a program that writes a unit many times, to both streams, some after other text."""
    return (
        f"import sys\nunit = {unit!r}\nsys.stdout.reconfigure(errors='surrogateescape')\n"
        "sys.stderr.reconfigure(errors='surrogateescape')\nprint(unit * 1_000_000)\n"
        "print('first', unit * 1_000_000, file=sys.stderr)"
    )


@pytest.mark.parametrize(("era", "unit"), CASES)
async def test_output_of_any_text_arrives_with_its_progress(caller: Served, unit: str) -> None:
    got: list[str] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        assert progress
        assert total is None
        got.append(message or "")

    arguments = {"code": written(UNITS[unit]), "max_output": 10**8}
    answer = await caller.mcp.call_tool("run_python_code", arguments, progress_handler=note, raise_on_error=False)
    result = answer.structured_content
    assert result is not None
    assert (result["outcome"], result["stdout_truncated"], result["stderr_truncated"]) == ("ok", True, True)
    start = UNITS[unit].encode("utf-8", "surrogateescape").decode("utf-8", "replace") * 1000
    assert result["stdout"].startswith(start)
    assert result["stderr"].startswith(f"first {start}")
    assert "".join(got).startswith((start, "first"))
    reading = await caller.call("read_run", run_id=result["run_id"], until="end", max_output=10**8)
    assert reading["result"]["stdout_truncated"]


@pytest.mark.parametrize(("era", "unit"), CASES)
async def test_file_of_any_text_arrives_as_a_result_and_as_a_resource(caller: Served, unit: str) -> None:
    piece = UNITS[unit].encode("utf-8", "surrogateescape")
    data = piece * (512 * 1024 // len(piece))
    code = f"open('file', 'wb').write({piece!r} * {len(data) // len(piece)})"
    sandbox = (await caller.python(code))["sandbox"]
    read = await caller.call("read_file", path="file", limit=10**9)
    if "content" not in read:
        read = await caller.call("read_file", path="file")
    assert read["bytes"] > 1000
    (content,) = await caller.mcp.read_resource(f"sandpod://sandboxes/{sandbox}/files/file")
    if isinstance(content, TextResourceContents):
        assert content.text.encode() == data
    else:
        assert isinstance(content, BlobResourceContents)
        assert base64.b64decode(content.blob) == data


@pytest.mark.parametrize("unit", ["emoji", "accents", "control characters", "quotes"])
async def test_files_of_any_name_are_listed(served: Served, unit: str) -> None:
    piece = UNITS[unit]
    name = piece * (240 // len(piece.encode()))
    code = f"import os\nos.makedirs('many', exist_ok=True)\nfor n in range(1000): open(f'many/{{n}}{name}', 'w')"
    made = await served.python(code)
    assert len(made["artifacts"]) + made["artifacts_omitted"] >= 100
    listed = await served.call("list_files", path="many", limit=2000)
    assert len(listed["entries"]) > 100
    assert "artifacts" in await served.call("list_artifacts")
    await served.call("delete_file", path="many", recursive=True)


async def test_what_is_shown_of_any_text_arrives(served: Served) -> None:
    for unit in ("😀", "\x01", "é", '"'):
        code = f"for _ in range(5): display({unit * 20_000!r}, raw=False)\n{unit!r} * 50_000"
        shown: dict[str, Any] = await served.python(code, context="shows")
        assert (shown["outcome"], len(shown["displays"]) + shown["displays_dropped"] >= 5) == ("ok", True)


async def test_many_large_answers_at_a_time_arrive(served: Served) -> None:
    calls = [served.python(written("😀"), max_output=10**6) for _ in range(3)]
    assert [answer["outcome"] for answer in await asyncio.gather(*calls)] == ["ok"] * 3
