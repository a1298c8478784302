"""What code in a sandbox can't do, each shown by trying it from inside."""

import json
from typing import Any

import pytest

from support.background import read_until
from support.cluster.callers import Session
from support.cluster.cluster import Cluster, node_address

PROBE = """
import json, os, pathlib
status = dict(line.split(":\\t", 1) for line in open("/proc/self/status").read().splitlines() if ":\\t" in line)
PLACES = ("/", "/etc", "/usr/bin", "/var", "/opt", "/root", "/proc", "/sys")
def writable(place):
    try:
        pathlib.Path(place, "probe").write_text("x")
    except OSError as error:
        return error.strerror
    return True
print(json.dumps({
    "uids": os.getresuid(), "gids": os.getresgid(), "groups": os.getgroups(),
    "capabilities": [int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")],
    "no_new_privileges": status["NoNewPrivs"], "seccomp": status["Seccomp"],
    "writable": {place: writable(place) for place in PLACES},
    "token": os.path.exists("/var/run/secrets/kubernetes.io"),
    "services": [name for name in os.environ if name.startswith("KUBERNETES") or name.endswith("_SERVICE_HOST")],
    "nameservers": [line for line in open("/etc/resolv.conf").read().splitlines() if line.startswith("nameserver")],
    "workspace": os.getcwd(),
}))
"""

# Tries TCP to each address and DNS by UDP, and prints how each try ended.
CONNECT = """
import concurrent.futures, errno, json, socket, sys
def connect(place):
    host, port = place.rsplit(":", 1)
    try:
        socket.create_connection((host, int(port)), timeout=2).close()
        return "open"
    except OSError as error:
        return errno.errorcode.get(error.errno, type(error).__name__)
places = sys.argv[1:]
with concurrent.futures.ThreadPoolExecutor(len(places)) as pool:
    print(json.dumps(dict(zip(places, pool.map(connect, places)))))
"""

ASK_DNS = """
import socket, sys
name = b"\\x0akubernetes\\x07default\\x03svc\\x07cluster\\x05local\\0"
query = bytes.fromhex("123401000001000000000000") + name + bytes.fromhex("00010001")
asker = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
asker.settimeout(2)
try:
    asker.sendto(query, (sys.argv[1], 53))
    print("answered", len(asker.recv(512)))
except OSError as error:
    print("nothing:", type(error).__name__)
"""

LISTEN = """
import socket
server = socket.create_server(("0.0.0.0", 8765))
socket.create_connection((socket.gethostbyname(socket.gethostname()), 8765), timeout=2).close()
print("reached by itself", flush=True)
while True:
    server.accept()
"""


@pytest.fixture
async def facts(session: Session, sandbox: str) -> dict[str, Any]:
    reply = await session.python(PROBE, sandbox=sandbox)
    assert reply["outcome"] == "ok", reply
    found: dict[str, Any] = json.loads(reply["stdout"])
    return found


@pytest.mark.promise("not-root")
async def test_code_does_not_run_as_root(facts: dict[str, Any]) -> None:
    assert 0 not in facts["uids"] + facts["gids"] + facts["groups"]


@pytest.mark.promise("no-capabilities")
async def test_code_has_no_capability_and_can_gain_none(facts: dict[str, Any]) -> None:
    assert facts["capabilities"] == [0, 0, 0, 0, 0]
    assert facts["no_new_privileges"] == "1"


@pytest.mark.promise("syscalls-filtered")
async def test_system_calls_are_filtered(facts: dict[str, Any]) -> None:
    assert facts["seccomp"] == "2"


@pytest.mark.promise("read-only-root", "writable-places")
async def test_root_file_system_is_read_only(facts: dict[str, Any]) -> None:
    assert facts["workspace"] == "/workspace"
    assert [place for place, answer in facts["writable"].items() if answer is True] == []


@pytest.mark.promise("no-token", "clean-environment")
async def test_there_is_no_service_account_token(facts: dict[str, Any]) -> None:
    assert facts["token"] is False
    assert facts["services"] == []


async def service_address(cluster: Cluster, name: str, namespace: str) -> str:
    address: str = (await cluster.get("services", name, namespace=namespace))["spec"]["clusterIP"]
    return address


async def addresses(cluster: Cluster) -> list[str]:
    """What must not be reached: API server (Service and node), kubelet, DNS, the gateway, the internet."""

    service = await service_address(cluster, "kubernetes", "default")
    dns = await service_address(cluster, "kube-dns", "kube-system")
    gateway = await cluster.get("services", "sandpod-gateway", namespace=cluster.namespace)
    node = node_address((await cluster.items("nodes"))[0])
    return [
        f"{service}:443",
        f"{node}:6443",
        f"{node}:10250",
        f"{node}:22",
        f"{dns}:53",
        f"{gateway['spec']['clusterIP']}:{gateway['spec']['ports'][0]['port']}",
        "1.1.1.1:443",
        "8.8.8.8:53",
        "169.254.169.254:80",  # where clouds tell a machine its credentials
    ]


@pytest.mark.promise("no-network", "network-enforced")
async def test_no_way_to_the_api_server_the_node_dns_the_gateway_or_the_internet(
    session: Session, sandbox: str, cluster: Cluster
) -> None:
    places = await addresses(cluster)
    assert len(places) == 9
    # Told at once, by the runner.
    reply = await session.python(CONNECT, sandbox=sandbox, args=places, timeout=60)
    assert json.loads(reply["stdout"]) == dict.fromkeys(places, "ENETUNREACH")
    # It is the policies that close it: beside the runner nothing gets through either. A refusal would mean that the
    # packet got there.
    answers = await beside(cluster, sandbox, places)
    assert answers.keys() == set(places)
    assert not {"open", "ECONNREFUSED"} & set(answers.values()), answers


async def beside(cluster: Cluster, sandbox: str, places: list[str]) -> dict[str, str]:
    """Return what became of connections that were tried in the pod, but not under its runner."""
    pod = (await cluster.pod_of(sandbox))["metadata"]["name"]
    found: dict[str, str] = json.loads(await cluster.in_pod(pod, f"import sys; sys.argv[1:] = {places!r}\n{CONNECT}"))
    return found


async def test_no_name_is_resolved(session: Session, sandbox: str, facts: dict[str, Any], cluster: Cluster) -> None:
    dns = await service_address(cluster, "kube-dns", "kube-system")
    assert not any(dns in line for line in facts["nameservers"])
    assert (await session.python(ASK_DNS, sandbox=sandbox, args=[dns]))["stdout"].startswith("nothing:")


@pytest.mark.promise("sandboxes-apart", "network-enforced")
async def test_no_way_to_another_sandbox(session: Session, sandbox: str, other: str, cluster: Cluster) -> None:
    server = await session.call("start_run", code=LISTEN, sandbox=other, timeout=60)
    await read_until(session.call, server["run_id"], "reached by itself\n")
    address = (await cluster.pod_of(other))["status"]["podIP"]
    place = f"{address}:8765"
    reply = await session.python(CONNECT, sandbox=sandbox, args=[place])
    answers = await beside(cluster, sandbox, [place])
    # It has listened until now.
    assert (await session.call("stop_run", run_id=server["run_id"]))["result"]["outcome"] == "cancelled"
    assert json.loads(reply["stdout"]) == {place: "ENETUNREACH"}
    assert answers == {place: "TimeoutError"}


@pytest.mark.promise("sandboxes-apart")
async def test_sandboxes_share_no_files(session: Session, sandbox: str, other: str) -> None:
    for place in ("/workspace", "/tmp", "/dev/shm"):
        await session.call("run_shell_command", command=f"echo x > {place}/mark", sandbox=sandbox)
    look = await session.call("run_shell_command", command="ls /workspace /tmp /dev/shm", sandbox=other)
    assert look["outcome"] == "ok"
    assert "mark" not in look["stdout"]
