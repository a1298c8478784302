"""Room on the node's disk, sized for added packages and for a workspace: neither /tmp's nor the sandbox's memory."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from sandpod_api.names import PACKAGES
from support.cluster.callers import Caller, Reply, Session
from support.cluster.cluster import Cluster
from support.gateway.served import gateway
from support.operator.process import IMAGE, Objects
from support.servers.package_index import Index, package_index, wheel

FILL = """
import os, time
os.chdir(os.path.expanduser('~/.local'))
n = 0
while True:
    n += 1
    open(f'part-{n}', 'wb').write(bytes(1 << 20))
    if n > 5: time.sleep(0.05)  # at a pace that fills no disk, should nothing end it
"""
MOUNT = f"print([line.split(' - ')[1].split()[0] for line in open('/proc/self/mountinfo') if ' {PACKAGES} ' in line])"


@pytest.fixture(scope="module")
def index() -> Any:
    """An index on this machine, with two packages of which one fits beside what else there is."""
    with package_index() as made:
        for name in ("one", "two"):
            made.add(name, "1.0", content=wheel(name, "1.0", files={f"{name}/data.bin": "0" * 15_000_000}))
        made.add("small", "1.0")
        yield made


@pytest.fixture
async def template(cluster: Cluster) -> AsyncIterator[str]:
    """A template of the installed operator whose /tmp holds none of these packages."""
    sizes = {"tmpSize": "8Mi", "packagesSize": "24Mi", "workspace": {"medium": "Disk", "size": "24Mi"}}
    await Objects(cluster=cluster).template("packages", **sizes, image=IMAGE, resources={"memory": "256Mi"})
    yield "packages"
    await cluster.kubectl("delete", "sbxt", "packages", "-n", cluster.sandboxes)


async def install(session: Session, sandbox: str, name: str) -> Reply:
    return await session.call("install_packages", packages=[name], sandbox=sandbox, wait=120)


@pytest.mark.promise("disk-full")
async def test_packages_and_workspace_have_room_of_their_own_on_the_nodes_disk(
    cluster: Cluster, template: str, index: Index
) -> None:
    flags = ["--backend", "kubernetes", "--kubernetes.namespace", cluster.sandboxes]
    flags += ["--packages.index-url", index.url]
    async with gateway(*flags) as address, Caller(f"{address}/mcp", None).connect() as session:
        sandbox = await session.create(template=template)
        try:
            await packages_fit(session, sandbox)
            await full_packages_end_a_run(session, sandbox)
            await full_workspace_ends_a_run(session, sandbox)
            assert (await cluster.pod_of(sandbox))["status"]["phase"] == "Running"
        finally:
            await session.close(sandbox)


async def packages_fit(session: Session, sandbox: str) -> None:
    assert (await install(session, sandbox, "one"))["status"] == "success"
    assert (await session.python("import one\nprint(one.VERSION)", sandbox=sandbox))["stdout"] == "1.0\n"
    where = await session.python(MOUNT, sandbox=sandbox)
    assert where["stdout"].count("'") == 2, where
    assert "tmpfs" not in where["stdout"]
    assert (await session.call("list_files", sandbox=sandbox))["entries"] == []

    refused = await install(session, sandbox, "two")
    assert (refused["status"], refused.error) == ("failed", "quota_exceeded"), refused
    assert refused["cause"].startswith("two needs 15 MiB, and 9"), refused
    assert "packagesSize" in refused["next"]
    assert (await session.python("import two", sandbox=sandbox))["outcome"] == "error"


async def full_packages_end_a_run(session: Session, sandbox: str) -> None:
    full = await session.python(FILL, sandbox=sandbox, timeout=60)
    left = "rm -f ~/.local/part-*; find ~/.local/ -name '*.bin' -o -name .stage"
    kept = await session.call("run_shell_command", command=left, sandbox=sandbox)
    assert (full.data.get("outcome"), full.data.get("signal")) == ("error", "SIGKILL"), full
    assert "the 24 MiB that ~/.local may hold" in full["hint"]
    assert kept["stdout"].endswith("/one/data.bin\n"), kept
    assert kept["stdout"].count("\n") == 1, kept
    assert (await install(session, sandbox, "small"))["status"] == "success"


async def full_workspace_ends_a_run(session: Session, sandbox: str) -> None:
    bomb = "n = 0\nwhile True:\n    n += 1\n    open(f'part-{n}', 'wb').write(bytes(1 << 20))\n"
    reply = await session.python(bomb, sandbox=sandbox, timeout=60)
    assert (reply.data.get("outcome"), reply.data.get("signal")) == ("error", "SIGKILL"), reply
    assert "the workspace's 24 MiB" in reply["hint"]
    left = await session.call("run_shell_command", command="rm part-*; ls", sandbox=sandbox)
    assert (left["outcome"], left["stdout"]) == ("ok", "")
