"""`sandpod verify` on this machine: green for sandboxes as they are, red for weaker ones, and nothing is left.

Needs user namespaces, as `test_local_isolation.py` does.
"""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import pytest

from sandpod_api.names import PACKAGES
from sandpod_gateway.backends.local import bwrap
from sandpod_gateway.backends.local.inside import probe
from sandpod_gateway.backends.local.settings import LocalSettings
from sandpod_gateway.verify import local
from sandpod_gateway.verify.model import Status, judged
from sandpod_gateway.verify.rows import ROWS
from support.command_line import sandpod
from support.gateway.peer import BOUND, until

pytestmark = [pytest.mark.needs_userns]

SETTINGS: Final = LocalSettings(libraries=False, memory="160Mi", workspace_size="32Mi", tmp_size="16Mi", processes=48)
CONFIG: Final = {
    "local": {"libraries": False, "memory": "160Mi", "workspace_size": "32Mi", "tmp_size": "16Mi", "processes": 48}
}

SEVERAL: Final = 5  # more processes than a backend has that only proves that it can isolate
INTERRUPTED: Final = 130


async def verified(settings: LocalSettings) -> dict[Status, set[str]]:
    """Return the rows by what came of them."""
    evidence = await local.collect(settings)
    found: dict[Status, set[str]] = {status: set() for status in Status}
    for finding in (judged(row, "local", evidence) for row in ROWS):
        found[finding.verdict.status].add(finding.row.id)
    return found


async def test_local_sandboxes_keep_every_promise_and_the_reports_say_so(tmp_path: Path) -> None:
    config, files = tmp_path / "config.yaml", {form: tmp_path / f"report.{form}" for form in ("json", "sarif", "html")}
    config.write_text(json.dumps(CONFIG), encoding="utf-8")
    forms = [word for form, file in files.items() for word in (f"--{form}", str(file))]
    printed = await sandpod("verify", "--config", str(config), *forms)
    assert "Every promise that was tried held." in printed
    report = json.loads(files["json"].read_text(encoding="utf-8"))
    rows = {row["id"]: row["status"] for row in report["rows"]}
    assert rows == {row.id: "pass" if "local" in row.kinds else "not_applicable" for row in ROWS}
    assert report["exit_code"] == 0
    assert "runs" in json.loads(files["sarif"].read_text(encoding="utf-8"))
    assert files["html"].read_text(encoding="utf-8").startswith("<!doctype html>")


async def test_weaker_sandboxes_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Walls of bubblewrap's are taken away, and with them the backend's own proof, which would refuse to start."""
    real = bwrap.command
    # Not below /tmp, which a launcher of root's covers.
    with tempfile.TemporaryDirectory(dir="/var/tmp") as shared:
        os.chmod(shared, 0o777)  # noqa: PTH101, S103 - sandboxes have users of their own

        def weaker(*arguments: Any) -> list[str]:
            made = real(*arguments)
            for flag, words in (("--seccomp", 2), ("--disable-userns", 1)):
                at = made.index(flag)
                del made[at : at + words]
            at = made.index("--unshare-all")
            made[at : at + 1] = ["--unshare-pid", "--unshare-uts"]
            # The last of them makes the root read-only.
            at = len(made) - 1 - made[::-1].index("--remount-ro")
            made[at : at + 2] = ["--bind", shared, PACKAGES]
            return made

        monkeypatch.setattr(bwrap, "command", weaker)
        monkeypatch.setattr(probe, "failures", lambda _: [])
        found = await verified(SETTINGS)
    assert found[Status.FAIL] >= {
        *("seccomp-filter", "root-read-only", "sandboxes-share-no-files", "network-host"),
        *("syscall-namespaces", "syscall-keyring", "syscall-mounts", "syscall-userfaultfd"),
    }, found


async def test_nothing_that_could_hurt_the_machine_is_run_where_nothing_is_isolated() -> None:
    found = await verified(SETTINGS.model_copy(update={"unsafe_no_isolation": True}))
    assert found[Status.NOT_TRIED] >= {"memory-bounded", "processes-bounded", "disk-bounded", "runner-attacked"}
    assert found[Status.FAIL] >= {"processes-own", "host-invisible", "seccomp-filter", "no-new-privileges"}


def living() -> set[int]:
    """Return all processes."""
    return {int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()}


def descendants(pid: int) -> set[int]:
    """Return the processes below one."""
    parents: dict[int, int] = {}
    for each in living():
        with contextlib.suppress(OSError):
            parents[each] = int(Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()[1])
    found, fresh = set[int](), {pid}
    while fresh:
        fresh = {child for child, parent in parents.items() if parent in fresh}
        found |= fresh
    return found


async def test_interrupted_it_leaves_no_process(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(json.dumps(CONFIG), encoding="utf-8")
    code = "import sys; sys.argv[1:] = ['verify', *sys.argv[1:]]; from sandpod_gateway.cli import main; main.main()"
    # What runs in the background of a shell ignores Ctrl-C, and so do its children.
    command = ["env", "--default-signal=INT", sys.executable, "-c", code, "--config", str(config)]
    started = await asyncio.create_subprocess_exec(*command, stdout=subprocess.DEVNULL, start_new_session=True)

    async def inside() -> set[int]:
        """Return what runs in its sandboxes, once there are several processes in them."""
        below = await asyncio.to_thread(descendants, started.pid)
        return below if len(below) > SEVERAL else set()

    try:
        below = await until("programs run in its sandboxes", inside)
        assert below is not None
        started.send_signal(signal.SIGINT)
        async with asyncio.timeout(BOUND):
            assert await started.wait() == INTERRUPTED
        assert below & await asyncio.to_thread(living) == set()
    finally:
        with contextlib.suppress(ProcessLookupError):
            started.kill()
