"""llm-sandbox (PyPI), with its Docker and its Kubernetes backend, in an environment of its own."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from bench.peers.plan import JAVASCRIPT, PYTHON, Plan, said
from bench.rows import Row

ROOT: Final = Path(__file__).resolve().parents[3]
ENVIRONMENT: Final = ROOT / ".build/peers/llm-sandbox"
BACKENDS: Final = {"docker": "Docker", "kubernetes": "Kubernetes"}


async def installed() -> Path:
    """Install it and return its Python."""
    await said(str(ROOT / "tools/install.sh"), str(ENVIRONMENT), str(ROOT / "requirements/peers.lock"), ".venv")
    return ENVIRONMENT / "bin/python"


async def version() -> str:
    """Return which version is installed."""
    find = "import importlib.metadata; print(importlib.metadata.version('llm-sandbox'))"
    return await said(str(await installed()), "-c", find)


async def llm_sandbox(plan: Plan) -> AsyncIterator[Row]:
    """The same work, in sessions that stay open."""
    python = await installed()
    worker = Path(__file__).with_name("llm_sandbox_worker.py")
    for backend, name in BACKENDS.items():
        wanted = {
            "backend": backend,
            "image": plan.image,
            "python": PYTHON,
            "javascript": JAVASCRIPT,
            "calls": plan.calls,
            "fresh": max(1, plan.fresh // 2),  # each takes seconds
            "copies": plan.fresh,
            "megabytes": plan.megabytes,
            "sandboxes": len(plan.pods),
            "runs": plan.runs,
        }
        answer = await said(str(python), "-P", str(worker), json.dumps(wanted))
        for key, samples in json.loads(answer.splitlines()[-1]).items():
            yield Row(key, samples, f"llm-sandbox, {name}")
