"""Measures llm-sandbox in the environment that has it; prints its samples as JSON. Started by `llm_sandbox.py`.

A session is opened once and reused, as that project's README does it. Its image is Sandpod's, so that there is nothing
to pull, and no environment is made in it, so that there is nothing to install.
"""

import json
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

from llm_sandbox import SandboxSession

MILLIS = 1000


def opened(wanted: dict[str, Any], language: str) -> Any:
    """Return a session that is not open yet."""
    limits = {"network_mode": "none", "mem_limit": "512m", "nano_cpus": 10**9}
    more = {"runtime_configs": limits} if wanted["backend"] == "docker" else {"kube_namespace": "default"}
    return SandboxSession(
        backend=wanted["backend"], lang=language, image=wanted["image"], skip_environment_setup=True, **more
    )


def run(session: Any, code: str) -> None:
    """Run a program that prints 1."""
    result = session.run(code)
    if result.exit_code != 0 or result.stdout.strip() != "1":
        raise SystemExit(f"the run failed: {result.stderr[-300:] or result.stdout[-300:]}")


def timed(count: int, work: Callable[[], None], warm_up: int = 3) -> list[float]:
    """Return the milliseconds of so many calls, after some that do not count."""
    samples = []
    for index in range(count + warm_up):
        begun = time.perf_counter()
        work()
        if index >= warm_up:
            samples.append((time.perf_counter() - begun) * MILLIS)
    return samples


def measure(wanted: dict[str, Any]) -> dict[str, list[float]]:
    """Return the samples of each work."""
    found: dict[str, list[float]] = {"fresh": []}
    for _ in range(wanted["fresh"]):
        begun = time.perf_counter()
        session = opened(wanted, "python")
        session.open()
        run(session, wanted["python"])
        found["fresh"].append((time.perf_counter() - begun) * MILLIS)
        session.close()
    with ExitStack() as stack:
        sessions = [stack.enter_context(opened(wanted, "python")) for _ in range(wanted["sandboxes"])]
        session = sessions[0]
        found["call"] = timed(wanted["calls"], lambda: run(session, wanted["python"]))
        file = stack.enter_context(tempfile.NamedTemporaryFile())
        file.truncate(wanted["megabytes"] * 10**6)
        found["upload"] = timed(wanted["copies"], lambda: session.copy_to_runtime(file.name, "/tmp/copy"))

        def repeat(each: Any) -> None:
            for _ in range(wanted["runs"]):
                run(each, wanted["python"])

        with ThreadPoolExecutor(len(sessions)) as threads:
            begun = time.perf_counter()
            list(threads.map(repeat, sessions))
            found["together"] = [wanted["runs"] * len(sessions) / (time.perf_counter() - begun)]
    with opened(wanted, "javascript") as other:
        found["scripts"] = timed(wanted["calls"] // 6, lambda: run(other, wanted["javascript"]))
    return found


if __name__ == "__main__":
    print(json.dumps(measure(json.loads(sys.argv[1]))))
