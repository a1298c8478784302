"""How long a sandbox goes on, how it is and what it does, by the REST API and by the console."""

from dataclasses import replace
from typing import Any, Final

import httpx2
import pytest

from fakes.backend import FakeBackend
from sandpod_gateway.app import Gateway
from sandpod_gateway.sandboxes import load
from sandpod_gateway.settings import Settings
from support.gateway.server import listening

API: Final = "/api/v1/sandboxes"
DAY: Final = 86_400


async def test_a_sandbox_is_extended_suspended_and_resumed_and_tells_how_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "PERIOD_SECONDS", 0.0)
    backend, settings = FakeBackend(), Settings()
    async with (
        listening(Gateway(settings, backend), settings) as address,
        httpx2.AsyncClient(base_url=address, headers={"origin": address}, timeout=60) as http,
    ):

        async def post(act: str, **body: Any) -> tuple[int, Any]:
            answer = await http.post(f"{API}/{name}/{act}", json=body)
            return answer.status_code, answer.json()

        async def state() -> Any:
            return (await http.get(f"{API}/{name}/state")).json()

        name = (await http.post(API, json={"name": "mine"})).json()["sandbox"]
        first = await state()
        assert (first["load"]["processors"], first["runs"], first["events"]) == (0, [], [])
        assert [(each["type"], each["status"], each["reason"]) for each in first["conditions"]] == [
            ("Ready",) * 1 + ("True", "Ready")
        ]
        status, extended = await post("extend", seconds=DAY)
        assert status == 200
        assert extended["expires_at"] > first["expires_at"]
        status, refused = await post("extend", seconds=7 * DAY)
        assert (status, refused["error"], "604800 seconds at most" in refused["message"]) == (
            400,
            "invalid_argument",
            True,
        )
        for wrong in ({}, {"seconds": 0}, {"seconds": 8 * DAY}, {"seconds": "long"}):
            assert (await post("extend", **wrong))[1]["error"] == "invalid_argument"
        status, refused = await post("suspend")
        assert (status, refused["error"], "not persistent" in refused["message"]) == (400, "invalid_argument", True)
        part = await http.post("/console/act/suspend", data={"sandbox": name}, headers={"hx-request": "true"})
        assert (part.status_code, "not persistent" in part.text) == (400, True)

        started = await http.post(
            "/api/v1/runs",
            json={"code": "import time\ntime.sleep(600)", "sandbox": name},
            headers={"prefer": "respond-async"},
        )
        [run] = (await state())["runs"]
        assert (run["run_id"], run["state"]) == (started.json()["run_id"], "running")
        [activity] = (await http.get("/api/v1/activity")).json()["sandboxes"]
        assert (activity["sandbox"], [each["run_id"] for each in activity["runs"]]) == (name, [run["run_id"]])

        backend._live[name] = replace(backend._live[name], persistent=True)
        page = (await http.get("/console/")).text
        assert ('data-act="suspend"' in page, 'data-act="resume"' in page, "python" in page) == (True, False, True)
        answer = await http.post("/console/act/suspend", data={"sandbox": name})
        assert (answer.status_code, answer.headers["hx-trigger"]) == (204, "changed")
        suspended = await state()
        assert (suspended["status"], suspended["load"], suspended["runs"]) == ("Suspended", None, [])
        assert [each["type"] for each in suspended["conditions"]] == ["Ready", "Suspended"]
        page = (await http.get(f"/console/sandboxes/{name}")).text
        assert ('data-act="suspend"' in page, 'data-act="resume"' in page, "data-rests" in page) == (False, True, True)
        assert (await http.get(f"/console/sandboxes/{name}/state")).text.count("Suspended") >= 1
        assert backend.wakes == 0  # nobody who looks resumes it
        assert (await post("suspend"))[1]["error"] == "session_busy"
        assert (await http.post("/console/act/resume", data={"sandbox": name})).status_code == 204
        assert ((await state())["status"], backend.wakes) == ("Ready", 1)
        assert (await http.post("/console/act/explode", data={"sandbox": name})).status_code == 404

        await backend.lose(name)
        lost = await state()
        assert (lost["status"], lost["load"], lost["conditions"][0]["reason"]) == ("Failed", None, lost["reason"])
        for act, body in (("extend", {"seconds": 60}), ("suspend", {}), ("resume", {})):
            assert (await post(act, **body))[0] in {409, 410}, act
