"""The REST API keeps to its description (OpenAPI), whatever is sent: schemathesis makes requests of that.

It runs in .build/clients: `make test-clients`.
"""

import asyncio
import json
import os
from pathlib import Path
from typing import Final

import httpx2
import pytest

from support.cluster.server import serving
from support.command_line import sandpod

ROOT: Final = Path(__file__).resolve().parents[2]
SCHEMATHESIS: Final = ROOT / ".build/clients/bin/schemathesis"
EXAMPLES: Final = 3  # of each operation that are made up, besides those of the limits of each argument


@pytest.mark.asyncio(loop_scope="function")
async def test_every_answer_is_as_the_description_says(tmp_path: Path) -> None:
    made = [
        json.loads(await sandpod("keys", "create", "--file", str(tmp_path / "keys"), "--output", "json", *of))
        for of in (("--user", "ann", "--admin"), ("--user", "eve"))
    ]
    flags = ["--auth.change-keys", "--auth.keys-file", tmp_path / "keys", "--usage.directory", tmp_path / "usage"]
    flags += ["--audit.sink", "file", "--audit.path", tmp_path / "audit", "--packages.index-url", "http://127.0.0.1:1/"]
    flags += ["--limits.max-run-timeout", 2, "--limits.run-timeout", 2, "--local.max-sandboxes-per-owner", 3]
    headers = {"x-api-key": made[0]["key"]}
    async with serving("--backend", "local", *map(str, flags)) as (url, _):
        api = url.removesuffix("/mcp") + "/api/v1"
        async with httpx2.AsyncClient(headers=headers, timeout=60) as http:
            run = (await http.post(f"{api}/runs", json={"code": "print(1)"})).json()["run_id"]
        command = ["--config-file", str(Path(__file__).with_name("schemathesis.toml")), "run", f"{api}/openapi.json"]
        options = ["--header", f"X-API-Key:{made[0]['key']}", "--max-examples", str(EXAMPLES), "--workers", "1"]
        options += ["--phases", "coverage,fuzzing", "--warnings", "off", "--no-color"]
        process = await asyncio.create_subprocess_exec(
            *(str(SCHEMATHESIS), *command, *options),
            env=os.environ | {"RUN_ID": run, "KEY_ID": made[1]["id"]},
            cwd=tmp_path,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        printed, _ = await process.communicate()
    assert process.returncode == 0, printed.decode()[-20_000:]
    assert b"Tested: " in printed
