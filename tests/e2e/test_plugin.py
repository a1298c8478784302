"""`kubectl sandpod`, as kubectl calls it, on sandboxes that the gateway made and on its own."""

import asyncio
import os
import sys
from datetime import datetime
from pathlib import Path

import pytest

from support.cluster.cluster import Cluster, until


async def plugin(cluster: Cluster, *words: str, code: str = "") -> tuple[int, str, str]:
    """Return exit code, output and error output of a command."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    command = ("kubectl", "sandpod", *words, "-n", cluster.sandboxes)
    process = await asyncio.create_subprocess_exec(
        *command, stdin=-1, stdout=-1, stderr=-1, env={**os.environ, "PATH": path}
    )
    out, err = await process.communicate(code.encode())
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def spec(cluster: Cluster, name: str) -> dict[str, object]:
    spec: dict[str, object] = (await cluster.sandbox(name))["spec"]
    return spec


async def test_run_in_a_sandbox_has_the_programs_output_and_exit_code(cluster: Cluster, sandbox: str) -> None:
    code = "import sys, os; print(sys.argv[1:], os.getcwd()); print('two', file=sys.stderr); sys.exit(3)"
    status, out, err = await plugin(cluster, "run", sandbox, "-c", code, "-a", "one")
    assert (status, out) == (3, "['one'] /workspace\n")
    assert err.startswith("two\n")
    assert (await plugin(cluster, "run", sandbox, "-l", "shell", code="echo $((6 * 7))"))[:2] == (0, "42\n")


async def test_run_with_a_template_makes_a_sandbox_and_deletes_it(cluster: Cluster) -> None:
    status, out, _ = await plugin(cluster, "run", "-t", "bare", "-l", "javascript", "-c", "console.log(6 * 7)")
    assert (status, out) == (0, "42\n")
    left = [item["metadata"] for item in await cluster.items("sandboxes")]
    made = [metadata for metadata in left if metadata["name"].startswith("kubectl-")]
    assert all("deletionTimestamp" in metadata for metadata in made)


async def test_nothing_runs_in_a_sandbox_that_waits_in_a_pool(cluster: Cluster) -> None:
    warm = min(await until("a sandbox is warm", cluster.warm, within=60))
    status, out, err = await plugin(cluster, "run", warm, "-c", "print(1)")
    assert (status, out) == (2, "")
    assert "waiting in a pool" in err


async def test_extend_moves_the_end_that_the_status_shows(cluster: Cluster, sandbox: str) -> None:
    before = await spec(cluster, sandbox)
    status, out, _ = await plugin(cluster, "extend", sandbox, "3d")
    assert status == 0
    assert "without use it ends earlier" in out
    after = await spec(cluster, sandbox)
    assert after["lifetime"]["ttl"] > 2 * 86400 > before["lifetime"]["ttl"]  # type: ignore[index]  # of a Sandbox
    assert datetime.fromisoformat(out.split()[4].rstrip(";")).tzinfo is not None


async def test_logs_are_the_runners(cluster: Cluster, sandbox: str) -> None:
    status, out, _ = await plugin(cluster, "logs", sandbox)
    assert (status, out.splitlines()[0]) == (0, "sandpod-runner: ready")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("logs", "no-such"), '"no-such" not found'),
        (("run", "-t", "no-such-one", "-c", "1", "--timeout", "1s"), "It is not ready. SandboxTemplate"),
    ],
)
async def test_what_can_not_be_had_is_said(cluster: Cluster, words: tuple[str, ...], said: str) -> None:
    status, out, err = await plugin(cluster, *words)
    assert (status, out) == (2, "")
    assert said in err
