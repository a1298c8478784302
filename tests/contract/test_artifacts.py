"""Artifacts over a real server and a real sandbox: what a run left is told, read, and downloaded by its link alone."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
from fastmcp import Client
from mcp_types import ImageContent

from sandpod_gateway.api.results import ErrorCode
from support.background import read_until
from support.cluster.server import serving

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


class Place:
    def __init__(self, mcp: Client[Any], http: httpx2.AsyncClient) -> None:
        self.mcp = mcp
        self.http = http
        self.pictures: list[ImageContent] = []

    async def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        answer = await self.mcp.call_tool(tool, arguments, raise_on_error=False)
        assert isinstance(answer.structured_content, dict)
        self.pictures = [content for content in answer.content if isinstance(content, ImageContent)]
        return answer.structured_content

    async def python(self, code: str, **arguments: Any) -> dict[str, Any]:
        return await self.call("run_python_code", code=code, **arguments)


@asynccontextmanager
async def place() -> AsyncIterator[Place]:
    async with serving("--backend", "local") as (url, _), Client(url) as mcp, httpx2.AsyncClient() as http:
        yield Place(mcp, http)


def paths(told: dict[str, Any]) -> list[str]:
    return [artifact["path"] for artifact in told["artifacts"]]


@pytest.mark.claim("list_artifacts", "list_artifacts(since)")
async def test_what_a_run_created_or_changed_is_told_and_comes_by_its_link() -> None:
    async with place() as here:
        await here.call("write_file", path="given.txt", text="1")
        code = "import os\nos.makedirs('out/deep')\nopen('out/deep/t.csv', 'w').write('a,b\\n1,2\\n')"
        run = await here.python(f"{code}\nopen('given.txt').read()")
        (artifact,) = run["artifacts"]
        assert (artifact["path"], artifact["size"], artifact["mime_type"]) == ("out/deep/t.csv", 8, "text/csv")
        answer = await here.http.get(artifact["url"])
        assert (answer.status_code, answer.text) == (200, "a,b\n1,2\n")
        changed = await here.python("open('given.txt', 'a').write('2')")
        assert paths(changed) == ["given.txt"]
        assert paths(await here.call("list_artifacts")) == ["given.txt", "out/deep/t.csv"]
        assert paths(await here.call("list_artifacts", since=changed["run_id"])) == ["given.txt"]
        await here.call("delete_file", path="given.txt")
        assert paths(await here.call("list_artifacts")) == ["out/deep/t.csv"]


@pytest.mark.parametrize(
    ("code", "outcome"),
    [("raise ValueError", "error"), ("import os; os.kill(os.getpid(), 9)", "error"), ("while True: pass", "timeout")],
)
async def test_run_that_fails_tells_what_it_left_and_nothing_older(code: str, outcome: str) -> None:
    async with place() as here:
        assert paths(await here.python("open('old.txt', 'w').write('1')")) == ["old.txt"]
        run = await here.python(f"open('new.txt', 'w').write('1')\n{code}", timeout=2)
        assert (run["outcome"], paths(run)) == (outcome, ["new.txt"])


async def test_every_kind_of_run_tells_its_artifacts() -> None:
    async with place() as here:
        assert paths(await here.call("run_shell_command", command="echo 1 > shell.txt")) == ["shell.txt"]
        assert paths(await here.call("run_js_code", code="require('fs').writeFileSync('js.txt', '1')")) == ["js.txt"]
        assert paths(await here.python("open('cell.txt', 'w').write('1')", context="c")) == ["cell.txt"]
        assert paths(await here.python("2 + 2", context="c")) == []
        begun = await here.call("start_run", code="open('late.txt', 'w').write('1')")
        read = await read_until(here.call, begun["run_id"])
        assert paths(read["result"]) == ["late.txt"]
        assert (await here.http.get(read["result"]["artifacts"][0]["url"])).text == "1"


@pytest.mark.claim("read_artifact", "read_artifact(artifact)")
async def test_picture_is_read_as_an_image_and_text_as_text() -> None:
    async with place() as here:
        write = f"import base64\nopen('dot.png', 'wb').write(base64.b64decode('{PNG}'))"
        await here.python(f"{write}\nopen('t.txt', 'w').write('h\u00e9')")
        picture = await here.call("read_artifact", artifact="dot.png")
        assert (picture["encoding"], picture["content"], picture["mime_type"]) == ("image", None, "image/png")
        assert [(shown.data, shown.mime_type) for shown in here.pictures] == [(PNG, "image/png")]
        text = await here.call("read_artifact", artifact="t.txt")
        assert (text["encoding"], text["content"], text["truncated"]) == ("utf-8", "h\u00e9", False)
        assert (await here.http.get(text["url"])).content == "h\u00e9".encode()


@pytest.mark.claim("read_artifact")
async def test_artifact_that_is_too_large_or_not_there_is_refused() -> None:
    async with place() as here:
        run = await here.python(
            "open('big.bin', 'wb').truncate(200 << 20)\nopen('big.png', 'wb').write(bytes(1 << 20))"
        )
        for name in ("big.bin", "big.png"):
            assert (await here.call("read_artifact", artifact=name))["error"] == ErrorCode.ARTIFACT_TOO_LARGE
        assert (await here.call("read_artifact", artifact="missing"))["error"] == ErrorCode.NOT_FOUND
        assert (await here.call("read_artifact", artifact="../x"))["error"] == ErrorCode.INVALID_PATH
        for since in ("no-run", f"{run['sandbox']}.run-0000000000000000"):
            assert (await here.call("list_artifacts", since=since))["error"] == ErrorCode.NOT_FOUND
        other = (await here.call("create_sandbox"))["sandbox"]
        wrong = await here.call("list_artifacts", since=run["run_id"], sandbox=other)
        assert wrong["error"] == ErrorCode.NOT_FOUND


async def test_many_artifacts_are_counted_and_the_answer_stays_small() -> None:
    async with place() as here:
        run = await here.python("for i in range(300): open(f'{i:03}-' + 'n' * 200, 'w')")
        assert len(run["artifacts"]) + run["artifacts_omitted"] == 300
        assert len(run["artifacts"]) <= 100
        listed = await here.call("list_artifacts")
        assert (len(paths(listed)), listed["truncated"]) == (300, False)
        many = await here.python("for i in range(600): open(f'{i}', 'w')")
        assert len(many["artifacts"]) + many["artifacts_omitted"] == 600
        listed = await here.call("list_artifacts", since=many["run_id"])
        assert (len(many["artifacts"]) < len(paths(listed)) < 600, listed["truncated"]) == (True, True)
