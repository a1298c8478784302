"""Artifacts in a real sandbox: what a run left is reported, read, and downloaded by its link alone."""

from typing import Any

import pytest

from sandpod_gateway.api.results import ErrorCode
from support.background import read_until
from support.gateway.served import Served

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.needs_userns]


def paths(told: dict[str, Any]) -> list[str]:
    return [artifact["path"] for artifact in told["artifacts"]]


@pytest.mark.claim("list_artifacts", "list_artifacts(since)")
async def test_what_a_run_created_or_changed_is_told_and_comes_by_its_link(alone: Served) -> None:
    await alone.call("write_file", path="given.txt", text="1")
    code = "import os\nos.makedirs('out/deep')\nopen('out/deep/t.csv', 'w').write('a,b\\n1,2\\n')"
    run = await alone.python(f"{code}\nopen('given.txt').read()")
    (artifact,) = run["artifacts"]
    assert (artifact["path"], artifact["size"], artifact["mime_type"]) == ("out/deep/t.csv", 8, "text/csv")
    answer = await alone.http.get(artifact["url"])
    assert (answer.status_code, answer.text) == (200, "a,b\n1,2\n")
    changed = await alone.python("open('given.txt', 'a').write('2')")
    assert paths(changed) == ["given.txt"]
    assert paths(await alone.call("list_artifacts")) == ["given.txt", "out/deep/t.csv"]
    assert paths(await alone.call("list_artifacts", since=changed["run_id"])) == ["given.txt"]
    await alone.call("delete_file", path="given.txt")
    assert paths(await alone.call("list_artifacts")) == ["out/deep/t.csv"]


async def test_run_that_fails_tells_what_it_left_and_nothing_older(alone: Served) -> None:
    assert paths(await alone.python("open('old.txt', 'w').write('1')")) == ["old.txt"]
    for name, code, outcome in (
        ("raised", "raise ValueError", "error"),
        ("killed", "import os; os.kill(os.getpid(), 9)", "error"),
        ("late", "while True: pass", "timeout"),
    ):
        run = await alone.python(f"open('{name}', 'w').write('1')\n{code}", timeout=2 if name == "late" else 60)
        assert (run["outcome"], paths(run)) == (outcome, [name])


async def test_every_kind_of_run_tells_its_artifacts(alone: Served) -> None:
    assert paths(await alone.call("run_shell_command", command="echo 1 > shell.txt")) == ["shell.txt"]
    assert paths(await alone.call("run_js_code", code="require('fs').writeFileSync('js.txt', '1')")) == ["js.txt"]
    assert paths(await alone.python("open('cell.txt', 'w').write('1')", context="c")) == ["cell.txt"]
    assert paths(await alone.python("2 + 2", context="c")) == []
    begun = await alone.call("start_run", code="open('late.txt', 'w').write('1')")
    read = await read_until(alone.call, begun["run_id"])
    assert paths(read["result"]) == ["late.txt"]
    assert (await alone.http.get(read["result"]["artifacts"][0]["url"])).text == "1"


@pytest.mark.claim("read_artifact", "read_artifact(artifact)")
async def test_picture_is_read_as_an_image_and_text_as_text(alone: Served) -> None:
    write = f"import base64\nopen('dot.png', 'wb').write(base64.b64decode('{PNG}'))"
    await alone.python(f"{write}\nopen('t.txt', 'w').write('h\u00e9')")
    picture = await alone.call("read_artifact", artifact="dot.png")
    assert (picture["encoding"], picture["content"], picture["mime_type"]) == ("image", None, "image/png")
    assert [(shown.data, shown.mime_type) for shown in alone.pictures] == [(PNG, "image/png")]
    text = await alone.call("read_artifact", artifact="t.txt")
    assert (text["encoding"], text["content"], text["truncated"]) == ("utf-8", "h\u00e9", False)
    assert (await alone.http.get(text["url"])).content == "h\u00e9".encode()


@pytest.mark.claim("read_artifact")
async def test_artifact_that_is_too_large_or_not_there_is_refused(alone: Served) -> None:
    run = await alone.python("open('big.bin', 'wb').truncate(200 << 20)\nopen('big.png', 'wb').write(bytes(1 << 20))")
    for name in ("big.bin", "big.png"):
        assert (await alone.call("read_artifact", artifact=name))["error"] == ErrorCode.ARTIFACT_TOO_LARGE
    assert (await alone.call("read_artifact", artifact="missing"))["error"] == ErrorCode.NOT_FOUND
    assert (await alone.call("read_artifact", artifact="../x"))["error"] == ErrorCode.INVALID_PATH
    for since in ("no-run", f"{run['sandbox']}.run-0000000000000000"):
        assert (await alone.call("list_artifacts", since=since))["error"] == ErrorCode.NOT_FOUND
    other = (await alone.call("create_sandbox"))["sandbox"]
    wrong = await alone.call("list_artifacts", since=run["run_id"], sandbox=other)
    assert wrong["error"] == ErrorCode.NOT_FOUND


async def test_many_artifacts_are_counted_and_the_answer_stays_small(alone: Served) -> None:
    run = await alone.python("for i in range(300): open(f'{i:03}-' + 'n' * 200, 'w')")
    assert len(run["artifacts"]) + run["artifacts_omitted"] == 300
    assert len(run["artifacts"]) <= 100
    listed = await alone.call("list_artifacts")
    assert (len(paths(listed)), listed["truncated"]) == (300, False)
    many = await alone.python("for i in range(600): open(f'{i}', 'w')")
    assert len(many["artifacts"]) + many["artifacts_omitted"] == 600
    listed = await alone.call("list_artifacts", since=many["run_id"])
    assert (len(many["artifacts"]) < len(paths(listed)) < 600, listed["truncated"]) == (True, True)
