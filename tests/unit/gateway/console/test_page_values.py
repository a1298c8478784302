"""What the cells of pages say, how high their bars are, and that the settings shown are those of the examples."""

import json
import re
import shlex
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, Final

import httpx2
import pytest
import yaml

from fakes.backend import FakeBackend
from sandpod_api.types import PoolClaims
from sandpod_gateway.app import Gateway
from sandpod_gateway.audit.settings import AuditSettings
from sandpod_gateway.auth.api_keys import make_key
from sandpod_gateway.backends.base import PoolRecord, SandboxEvent
from sandpod_gateway.settings import AuthSettings, Settings
from support.gateway.server import listening

ROOT: Final = Path(__file__).resolve().parents[4]
SERVER: Final = "https://sandpod.example.com"  # of the examples
NOW: Final = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
EVENTS: Final = (
    SandboxEvent(time=NOW, reason="Pulled", message="The image is there."),
    SandboxEvent(time=NOW + timedelta(minutes=1), reason="BackOff", message="<b>", is_warning=True, count=3),
)


class _Page(HTMLParser):
    """A page's rows of cells, what stands in elements with an id, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.by_id: dict[str, str] = {}
        self.all = ""
        self._open = ""
        self._in_cell = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "tr":
            self.rows.append([])
        elif tag in {"td", "th"}:
            self.rows[-1].append("")
            self._in_cell = True
        elif tag in {"pre", "code"}:
            self._open = dict(attrs).get("id") or ""

    def handle_endtag(self, tag: str) -> None:
        if tag in {"pre", "code"}:
            self._open = ""
        elif tag in {"td", "th"}:
            self._in_cell = False

    def handle_data(self, data: str) -> None:
        self.all = f"{self.all} {data}" if data.strip() else self.all
        if self._in_cell:
            self.rows[-1][-1] = f"{self.rows[-1][-1]} {data.strip()}".strip()
        if self._open:
            self.by_id[self._open] = self.by_id.get(self._open, "") + data


class _Backend(FakeBackend):
    """Has Events, and pools that were claimed from."""

    async def events(self, name: str) -> tuple[SandboxEvent, ...]:  # type: ignore[override]  # where others keep none
        return EVENTS if await self.get(name) is not None else ()

    async def pools(self, owner: str) -> tuple[PoolRecord, ...]:
        [used] = await super().pools(owner)
        counts = {"replicas": 4, "existing": 3, "ready": 1}
        claims = PoolClaims(warm=1234, cold=1, since=NOW)
        busy = PoolRecord(name="busy", template="big", reason="PoolFilling", claims=claims, **counts)  # type: ignore[arg-type]
        return used, busy


@dataclass
class Place:
    http: httpx2.AsyncClient
    address: str

    async def page(self, path: str) -> _Page:
        answer = await self.http.get(f"/console/{path}")
        assert answer.status_code == 200, answer.text
        return _Page(answer.text)


@pytest.fixture
async def here(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Place]:
    """An administrator who has signed in; with the parameter False, anybody at a server without keys."""
    with_keys = getattr(request, "param", True)
    key, entry = make_key(user="alice", name="test", days=None, now=datetime.now(UTC), role="admin")
    (tmp_path / "keys.yaml").write_text(yaml.safe_dump({"keys": [entry.model_dump(mode="json")]}))
    auth = AuthSettings(keys_file=tmp_path / "keys.yaml") if with_keys else AuthSettings()
    settings = Settings(auth=auth, audit=AuditSettings(sink="file", path=tmp_path / "audit"))
    async with (
        listening(Gateway(settings, _Backend()), settings) as address,
        httpx2.AsyncClient(base_url=address, headers={"origin": address}) as http,
    ):
        if with_keys:
            assert (await http.post("/console/sign-in", data={"key": key})).status_code == 303
        yield Place(http, address)


async def test_usage_audit_events_and_pools_are_what_the_services_have(here: Place) -> None:
    made = (await here.http.post("/api/v1/sandboxes", json={"name": "box"})).json()["sandbox"]
    for code in ("print(1)", "print(22)"):
        assert (await here.http.post("/api/v1/runs", json={"code": code, "sandbox": made})).status_code == 200
    assert (await here.http.put(f"/api/v1/sandboxes/{made}/files/a.txt", content=b"a")).status_code == 201

    today = datetime.now(UTC).date()
    page = await here.page("usage?days=7")
    assert "Runs a day · 2 in 7 days, 2 at most" in " ".join(page.all.split())
    assert page.rows[-1][:2] == ["alice", "2"]
    shown = (await here.http.get("/console/usage?days=7")).text
    bars = re.findall(r'<rect x="(\d+)" y="([\d.]+)" width="8" height="([\d.]+)"><title>(.*?)</title>', shown)
    days = [today - timedelta(days=6 - each) for each in range(7)]
    expected = [(10 * at + 1, 100.0, 0.0, f"{day.isoformat()}: 0") for at, day in enumerate(days)]
    expected[-1] = (61, 0.0, 100.0, f"{today.isoformat()}: 2")
    assert [(int(x), float(y), float(height), title) for x, y, height, title in bars] == expected
    page = await here.page("usage?days=7&measure=bytes_out&by=sandbox")
    assert "Bytes out a day · 5 B in 7 days, 5 B at most" in " ".join(page.all.split())
    assert (page.rows[-1][0].split()[0], page.rows[-1][1], page.rows[-1][-1]) == (made, "2", "5 B")

    await here.http.get("/console/sandboxes/no-such")
    rows = (await here.page("audit")).rows[1:]
    assert [row[1:4] for row in rows[::-1] if row[1] == "alice"][:5] == [
        ["alice", "sign_in console", "ok"],
        ["alice", f"call create_sandbox {made}", "ok"],
        ["alice", f"call run_python_code {made}", "ok"],
        ["alice", f"call run_python_code {made}", "ok"],
        ["alice", f"file put a.txt {made}", "ok"],
    ]
    assert ["alice", "read sandpod://capabilities", "ok"] in [row[1:4] for row in rows]
    assert rows[0][3] == "session_not_found"
    assert "duration_ms: " in rows[0][4]
    assert (await here.page("audit?event=none")).rows[-1] == ["No records here."]

    rows = (await here.page(f"sandboxes/{made}/state")).rows
    assert rows[1][:4] == ["Ready", "True", "Ready", "The runner accepts runs."]
    assert rows[3:] == [  # the newest first
        ["2026-01-02 03:05:05", "BackOff \u00d7 3", "<b>"],
        ["2026-01-02 03:04:05", "Pulled", "The image is there."],
    ]

    rows = (await here.page("pools")).rows[1:]
    assert [row[:5] for row in rows] == [
        ["default", "default", "1 of 1", "full", "no claims"],
        ["busy", "big", "1 of 4 2 starting", "PoolFilling", "99.9 % 1,234 of 1,235 claims since 2026-01-02 03:04:05"],
    ]
    found = {each["pool"]: each["claims"] for each in (await here.http.get("/api/v1/pools")).json()["pools"]}
    assert found["busy"] == {"warm": 1234, "cold": 1, "hit_rate": 0.9992, "since": "2026-01-02T03:04:05Z"}


def example(name: str, address: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / "examples/clients" / name).read_text("utf-8").replace(SERVER, address))
    return found


def without_key(settings: dict[str, Any]) -> dict[str, Any]:
    """Return settings for a server without keys: what names one is left out."""
    rest = {name: value for name, value in settings.items() if name != "inputs"}
    for kind in rest.keys() & {"servers", "mcpServers"}:
        server = {name: value for name, value in rest[kind]["sandpod"].items() if name not in {"headers", "env"}}
        if "args" in server:
            server["args"] = server["args"][: server["args"].index("--header")]
        rest[kind] = {"sandpod": server}
    return rest


@pytest.mark.parametrize("here", [True, False], indirect=True, ids=["keys", "no keys"])
async def test_settings_to_copy_are_those_of_the_examples_and_commands_those_of_the_docs(
    here: Place, request: pytest.FixtureRequest
) -> None:
    has_keys = request.node.callspec.params["here"]
    shown = (await here.page("connect")).by_id
    assert shown.pop("url") == f"{here.address}/mcp"
    names = {
        "claude-desktop": "claude_desktop_config.json",
        "vscode": "vscode.mcp.json",
        "cursor": "cursor.mcp.json",
        "gemini": "gemini-settings.json",
    }
    for snippet, name in names.items():
        wanted = example(name, here.address)
        assert json.loads(shown.pop(snippet)) == (wanted if has_keys else without_key(wanted)), snippet

    docs = (ROOT / "docs/clients/claude.md").read_text("utf-8")
    [command] = re.findall(rf"^claude mcp add .* {SERVER}/mcp .*$", docs, re.MULTILINE)
    words = shlex.split(command.replace(SERVER, here.address))
    assert shlex.split(shown.pop("claude-code").replace("\\\n", "")) == (
        words if has_keys else words[: words.index("--header")]
    )

    curl, url, *options = shlex.split(shown.pop("curl").replace("\\\n", ""))
    given = dict(zip(options[::2], options[1::2], strict=True))
    answer = await here.http.post(url, content=given["--json"])  # the session stands for the key
    assert (curl, answer.status_code, json.loads(given["--json"])) == ("curl", 200, {"code": "print(6 * 7)"})
    assert given.get("--header") == ("X-API-Key: KEY" if has_keys else None)
    assert shown == {}
