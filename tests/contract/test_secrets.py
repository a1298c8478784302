"""Secrets of real local sandboxes: programs get them, and callers, logs and other processes see no value."""

import json
import logging
from pathlib import Path
from typing import Any, Final

import pytest

from support.background import read_until
from support.gateway.served import LOCAL, Served, connected, gateway

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.needs_userns]

VALUE: Final = "s3cr3t/Value+0123456789"
SCOPED: Final = "only-for-the-shell-99"
FILE: Final = "from-a-file-77-77"
MASK: Final = "[secret API_TOKEN]"
SHOW: Final = """
import base64, json, os, time, urllib.parse
token = os.environ["API_TOKEN"]
print(token, base64.b64encode(b"u:" + token.encode()), token.encode().hex(), urllib.parse.quote(token, safe=""))
for char in token:
    print(char, end="", flush=True)
    time.sleep(0.01)
print(json.dumps(dict(os.environ)))
open("file.txt", "w").write("ab" + token + "cd")
open("name of " + os.environ["FROM_FILE"], "w").close()
print(os.environ.get("SCOPED"))
raise ValueError(token)
"""
LOOK: Final = """
import glob, os
wanted = os.environ["API_TOKEN"].encode()
commands = [open(path, "rb").read() for path in glob.glob("/proc/[0-9]*/cmdline")]
print(len(commands) > 1, any(wanted in command for command in commands))
"""


def no_value_in(answer: Any) -> bool:
    return not any(value in str(answer) for value in (VALUE, SCOPED, FILE))


@pytest.mark.claim("create_sandbox(secrets)")
@pytest.mark.promise("secret-hidden", "secret-scope")
async def test_programs_get_secrets_and_nobody_sees_them(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    caplog.handler.addFilter(lambda record: not record.name.startswith(("mcp.client", "fastmcp.client", "httpcore2")))
    (tmp_path / "value").write_text(FILE + "\n")
    sources = [
        {"name": "FROM_FILE", "file": str(tmp_path / "value"), "languages": ["python"]},
        {"name": "NOWHERE", "env": "SANDPOD_TEST_NO_SUCH_VARIABLE", "tools": ["run_js_code"]},
    ]
    secrets = {"API_TOKEN": VALUE, "SCOPED": {"value": SCOPED, "languages": ["bash"]}}
    flags = (*LOCAL, "--log-level", "debug", "--local.secrets", json.dumps(sources))
    async with gateway(*flags) as address, connected(address, Served) as caller:
        box = (await caller.call("create_sandbox", name="x", secrets=secrets))["sandbox"]
        shown: list[Any] = [await caller.python(SHOW, sandbox=box)]
        assert shown[0]["stdout"].count(MASK) == 6
        assert shown[0]["stdout"].endswith("None\n")
        assert MASK in shown[0]["stderr"]
        assert shown[0]["stdout_bytes"] > len(shown[0]["stdout"].replace(MASK, ""))
        assert any("[secret FROM_FILE]" in file["path"] for file in shown[0]["artifacts"])
        shown.append(
            await caller.shell("echo $SCOPED; echo \"[$FROM_FILE]\"; env -i bash -c 'echo $API_TOKEN'", sandbox=box)
        )
        assert shown[-1]["stdout"] == "[secret SCOPED]\n[]\n\n"
        shown.append(await caller.python(LOOK, sandbox=box))
        assert shown[-1]["stdout"] == "True False\n"
        shown.append(
            await caller.python("import os; print(os.environ['API_TOKEN'])", sandbox=box, env={"API_TOKEN": "mine"})
        )
        assert shown[-1]["stdout"] == "mine\n"
        shown.append(await caller.python("import os; os.environ['API_TOKEN']", sandbox=box, context="c"))
        assert shown[-1]["result"] == {"text/plain": f"'{MASK}'"}
        shown += await files(caller, box)
        shown.append(await caller.js("1", sandbox=box))
        assert (shown[-1]["error"], shown[-1]["message"]) == (
            "not_found",
            "The secret NOWHERE of the sandbox's template is not there.",
        )
        shown.append(await caller.python("import os; print(os.environ['FROM_FILE'], 'API_TOKEN' in os.environ)"))
        assert shown[-1]["stdout"] == "[secret FROM_FILE] False\n"
        shown.append(await caller.call("create_sandbox", name="x", secrets={"API_TOKEN": f"other {VALUE}"}))
        assert shown[-1]["error"] == "invalid_argument"
        run = await caller.call("start_run", code="import os; print('x' * 9, os.environ['API_TOKEN'])", sandbox=box)
        shown.append(await read_until(caller.call, run["run_id"]))
        for cursor in range(0, 34, 3):
            shown.append(await caller.call("read_run", run_id=run["run_id"], cursor=cursor, wait=30, until="end"))
        assert shown[-1]["result"]["stdout"] == f"xxxxxxxxx {MASK}\n"
    assert no_value_in(shown)
    assert no_value_in(caplog.text)
    assert "create_sandbox" in caplog.text or "run " in caplog.text


async def files(caller: Served, box: str) -> list[Any]:
    """Return what the tools and the resource for files answer."""
    shown = [
        await caller.call("read_file", path="file.txt", sandbox=box, offset=offset, limit=7)
        for offset in range(0, 27, 7)
    ]
    assert [part["content"] for part in shown] == [f"ab{MASK}", MASK, MASK, f"{MASK}cd"]
    assert [part["bytes"] for part in shown] == [7, 7, 7, 6]
    binary = await caller.call("read_file", path="file.txt", sandbox=box, encoding="base64")
    artifact = await caller.call("read_artifact", artifact="file.txt", sandbox=box)
    assert artifact["content"] == f"ab{MASK}cd"
    listed = await caller.call("list_files", sandbox=box)
    assert "[secret FROM_FILE]" in str(listed)
    [resource] = await caller.mcp.read_resource(f"sandpod://sandboxes/{box}/files/file.txt")
    assert getattr(resource, "text", None) == f"ab{MASK}cd"
    missing = await caller.call("read_file", path=f"{FILE}/none", sandbox=box)
    assert missing["error"] == "not_found"
    return [*shown, binary, artifact, listed, resource, missing]
