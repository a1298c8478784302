"""Two gateways behind a real proxy that serves TLS, by its own file or as Ingress and HTTPRoute have it.

Files go through both without being kept in memory or on disk.
"""

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from functools import partial

import httpx2
import pytest

from support.cluster.callers import Caller
from support.cluster.cluster import Cluster
from support.edge.exposed import exposed
from support.gateway.terminal import terminal
from support.servers.nginx import Proxy

MIB = 2**20
SIZE = int(os.environ.get("SANDPOD_TEST_UPLOAD", "64"))  # parts, of 1 MiB
LATE = SIZE * 7 // 8  # parts after which whoever keeps them has most of them
MOST = 24 * MIB  # of a gateway's memory, for parts on their way
PART = bytes(range(256)) * (MIB // 256)
HASH = "import hashlib; print(hashlib.file_digest(open('large.bin', 'rb'), 'sha256').hexdigest())"
RSS = "print([int(line.split()[1]) for line in open('/proc/1/status') if line.startswith('VmRSS:')][0])"


@dataclass
class Kept:
    """What gateways and proxy keep while a file passes through them."""

    cluster: Cluster
    proxy: Proxy

    async def memory(self) -> int:
        """Return the bytes of all gateways' memory."""
        pods = await self.cluster.component_pods("gateway")
        exec_in = partial(self.cluster.kubectl, "exec", "-n", self.cluster.namespace)
        return sum([1024 * int(await exec_in(pod, "--", "python3", "-c", RSS)) for pod in pods])

    async def look(self, before: int) -> None:
        """Raise AssertionError: a gateway has a file in memory, or nginx on disk."""
        assert await self.memory() - before < MOST
        assert not [path for path in self.proxy.folder.rglob("*") if path.is_file() and path.stat().st_size > MIB]


@pytest.mark.promise("uploads")
async def test_large_files_pass_through_proxy_and_gateway_and_neither_keeps_them(
    proxied: Caller, proxy: Proxy, sandbox: str, cluster: Cluster
) -> None:
    kept = Kept(cluster, proxy)
    before = await kept.memory()
    sent, received = hashlib.sha256(), hashlib.sha256()

    async def parts() -> AsyncIterator[bytes]:
        for number in range(SIZE):
            if number == LATE:
                await kept.look(before)
            sent.update(PART)
            yield PART

    async with proxied.connect() as session, httpx2.AsyncClient(verify=proxy.trust, timeout=120) as http:
        url = (await session.call("create_link", path="large.bin", method="put", sandbox=sandbox))["url"]
        assert url.startswith(f"{proxy.address}/files/")
        answer = await http.put(url, content=parts())
        assert (answer.status_code, answer.json()["size"]) == (201, SIZE * MIB), answer.text
        assert (await session.python(HASH, sandbox=sandbox))["stdout"].strip() == sent.hexdigest()
        url = (await session.call("create_link", path="large.bin", sandbox=sandbox))["url"]
        async with http.stream("GET", url) as download:
            number = 0
            async for part in download.aiter_bytes(MIB):
                received.update(part)
                number += 1
                if number == LATE:
                    await kept.look(before)
        assert received.hexdigest() == sent.hexdigest()
        await session.call("delete_file", path="large.bin", sandbox=sandbox)


@pytest.fixture(scope="module")
def ways(
    cluster: Cluster, proxied: Caller, keys: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Caller]]:
    """Alice, by each way from outside of the cluster."""
    with exposed(cluster.namespace, tmp_path_factory.mktemp("edge"), keys["alice"]) as made:
        yield {"proxy": proxied, **made}


@pytest.mark.parametrize("way", ["proxy", "ingress", "route"])
async def test_line_comes_through_the_proxy_before_the_program_goes_on(
    ways: dict[str, Caller], sandbox: str, way: str
) -> None:
    """Without it the program would wait until its timeout."""
    code = "import os, time\nprint('tick', flush=True)\nwhile not os.path.exists('heard'): time.sleep(0.02)\n"
    written = asyncio.Event()
    async with ways[way].connect() as session:

        async def answer(text: str) -> None:
            if "tick" in text:
                await session.call("write_file", path="heard", text="", sandbox=sandbox)
                written.set()

        reply = await session.python(code, sandbox=sandbox, timeout=30, on_output=answer)
        assert (reply["outcome"], reply["stdout"]) == ("ok", "tick\n")
        await written.wait()  # a connection that is closed before an answer has come fails
        await session.call("delete_file", path="heard", sandbox=sandbox)


@pytest.mark.parametrize("way", ["ingress", "route"])
async def test_ingress_and_route_carry_files_terminals_and_pages_to_their_paths_and_nothing_else(
    ways: dict[str, Caller], sandbox: str, way: str
) -> None:
    caller, content = ways[way], PART * 2  # twice what nginx takes by default
    address, key = caller.url.removesuffix("/mcp"), caller.key or ""
    assert caller.trust
    async with caller.connect() as session, httpx2.AsyncClient(verify=caller.trust, timeout=60) as http:
        for method, wanted in (("put", 201), ("get", 200)):
            link = (await session.call("create_link", path=way, method=method, sandbox=sandbox))["url"]
            assert link.startswith(f"{address}/files/")
            answer = await http.request(method, link, content=content if method == "put" else None)
            assert answer.status_code == wanted
        assert answer.content == content
        await session.call("delete_file", path=way, sandbox=sandbox)
        async with terminal(address, sandbox=sandbox, key=key, trust=caller.trust) as shell:
            assert await shell.run("echo $((6 * 7))") == "42"
        page = await http.get(address, follow_redirects=True)
        assert (page.status_code, page.url.path) == (200, "/console/sign-in")
        own = {"Authorization": f"Bearer {key}"}
        assert (await http.get(f"{address}/api/v1/sandboxes", headers=own)).status_code == 200
        assert (await http.get(f"{address}/healthz")).status_code == 200
        for path in ("metrics", "readyz", "mcp-else", "healthz-else"):
            refused = await http.get(f"{address}/{path}")
            assert (refused.status_code, "nginx" in refused.text) == (404, True), path
