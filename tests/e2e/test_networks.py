"""What a sandbox may reach while it runs: its profile is changed from outside, and what it holds stays as it is."""

import asyncio
import json
import secrets
from collections.abc import AsyncIterator
from typing import Any

import pytest
from fastmcp import Client

from support.cluster.callers import Session
from support.cluster.cluster import Cluster, until
from support.cluster.scraping import scrape
from support.gateway.served import gateway
from support.operator.process import IMAGE, Objects, namespace

CONNECT = """
import socket, sys
try:
    # Longer than a lost packet takes to be sent again.
    socket.create_connection((sys.argv[1], 53), timeout=4).close()
    print("open")
except OSError:
    print("shut")
"""

# Prints which of the addresses take a connection.
REACHED = """
import socket, sys
from concurrent.futures import ThreadPoolExecutor

def reach(address):
    host, _, port = address.partition(":")
    try:
        socket.create_connection((host, int(port)), timeout=4).close()
    except OSError:
        return ""
    return address

print(*ThreadPoolExecutor(9).map(reach, sys.argv[1:]))
"""

# What a program says of a connection whose packets are dropped: standard libraries, and the clients that are used most.
REFUSED = {
    "socket": ("run_python_code", "import socket; socket.create_connection(('{target}', 53), timeout=1)"),
    "urllib": ("run_python_code", "import urllib.request; urllib.request.urlopen('http://{target}:53', timeout=1)"),
    "requests": ("run_python_code", "import requests; requests.get('http://{target}:53', timeout=1)"),
    "name": ("run_python_code", "import requests; requests.get('http://example.com', timeout=5)"),
    "fetch": ("run_js_code", "await fetch('http://{target}:8080')"),
    "fetch by name": ("run_js_code", "await fetch('http://example.com')"),
}


@pytest.fixture
async def target(cluster: Cluster) -> str:
    """The address of a pod that listens and that no policy guards: one of the cluster's DNS."""
    pods = await cluster.items("pods", namespace="kube-system", selector="k8s-app=kube-dns")
    address: str = pods[0]["status"]["podIP"]
    return address


@pytest.fixture
async def template(cluster: Cluster, target: str) -> AsyncIterator[str]:
    """A template of the installed gateway with a profile that opens the target."""
    profile = {"name": "near", "egress": [{"cidr": f"{target}/32", "ports": [53, 8080]}]}
    await Objects(cluster=cluster).template("networks", image=IMAGE, networkProfiles=[profile])
    yield "networks"
    await cluster.kubectl("delete", "sbxt", "networks", "-n", cluster.sandboxes)


async def connects(session: Session, sandbox: str, target: str) -> str:
    """Return what a program says that connects to a target; network plugins put profiles in force some time later."""
    reply = await session.python(CONNECT, sandbox=sandbox, args=[target])
    found: str = reply["stdout"].strip()
    return found


async def change(cluster: Cluster, name: str, network: str, reason: str) -> dict[str, Any]:
    """Ask for a profile, and return the sandbox's status once it says what came of that."""
    patch = json.dumps({"spec": {"network": network}})
    await cluster.kubectl("patch", "sbx", name, "-n", cluster.sandboxes, "--type=merge", "-p", patch)

    async def look() -> dict[str, Any]:
        made = await cluster.sandbox(name)
        status: dict[str, Any] = made["status"]
        told = next(c for c in status["conditions"] if c["type"] == "NetworkApplied")
        current = told["observedGeneration"] == made["metadata"]["generation"]
        return status if current and told["reason"] == reason else {}

    return await until(f"{name} says {reason}", look, within=60)


async def test_policy_of_somebody_else_that_opens_something_is_told_of_until_it_is_gone(cluster: Cluster) -> None:
    name = f"theirs-{secrets.token_hex(3)}"
    # It selects no sandbox that is there, so that it opens nothing to those of other tests.
    selector = {"matchLabels": {"sandpod.dev/sandbox": "nobody"}}
    spec = {"podSelector": selector, "policyTypes": ["Egress"], "egress": [{}]}
    made = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": name}, "spec": spec}
    await Objects(cluster=cluster).put(made)

    async def told() -> bool:
        chosen = f"involvedObject.kind=NetworkPolicy,involvedObject.name={name},reason=NetworkWidened,type=Warning"
        return name in await cluster.kubectl("get", "events", "-n", cluster.sandboxes, "--field-selector", chosen)

    async def measured() -> bool:
        labels = frozenset({("namespace", cluster.sandboxes), ("policy", name)})
        return ("sandpod_network_policy_widening", labels) in await scrape(cluster, "operator", 8081)

    async def forgotten() -> bool:
        return not await measured()

    try:
        await until("the Event", told, within=60)
        await until("the series", measured, within=60)
    finally:
        await cluster.kubectl("delete", "netpol", name, "-n", cluster.sandboxes)
    await until("the policy is forgotten", forgotten, within=60)


@pytest.mark.promise("network-profile")
@pytest.mark.claim("create_sandbox(network)", "work_with_sandpod.text")
async def test_profile_of_a_live_sandbox_is_changed_and_its_state_stays(
    session: Session, cluster: Cluster, template: str, target: str
) -> None:
    sandbox = await session.create(template=template)
    await session.python("x = 41", sandbox=sandbox, context="kept")
    before = await cluster.pod_of(sandbox)

    async def reaches(answer: str) -> bool:
        return await connects(session, sandbox, target) == answer

    assert await reaches("shut")
    other = 'call create_sandbox(template="networks", network="near") and run it there.'
    for refused in REFUSED:
        said = await hint(session, sandbox, target, refused)
        assert said == f"This sandbox has no network. Other profiles of its template: near; {other}", refused
    status = await change(cluster, sandbox, "near", "Applied")
    assert status["network"] == "near"
    assert (await session.call("get_sandbox", sandbox=sandbox))["network"] == "near"
    await until("the target is reached", lambda: reaches("open"), within=60)
    said = await hint(session, sandbox, target, "name")
    assert said.startswith('This sandbox has the network profile "near", which may not open that.')
    # Refused: nothing changes.
    status = await change(cluster, sandbox, "far", "ProfileNotFound")
    assert status["network"] == "near"
    assert (await session.call("get_sandbox", sandbox=sandbox))["network"] == "near"
    assert await reaches("open")
    status = await change(cluster, sandbox, "none", "Applied")
    assert status["network"] == "none"
    await until("the target is not reached", lambda: reaches("shut"), within=60)
    isolated = next(c for c in status["conditions"] if c["type"] == "NetworkIsolated")
    assert (isolated["status"], isolated["reason"]) == ("True", "Probed")
    assert (await session.python("print(x + 1)", sandbox=sandbox, context="kept"))["stdout"] == "42\n"
    assert (await cluster.pod_of(sandbox))["metadata"]["uid"] == before["metadata"]["uid"]
    await session.close(sandbox)


async def test_gateways_and_operators_reach_and_are_reached_by_what_their_policies_open_and_nothing_else(
    cluster: Cluster, target: str
) -> None:
    ways = {"dns": f"{target}:53", "other": f"{target}:9153"}
    for component, ports in (("gateway", {"http": 8000, "metrics": 8081}), ("operator", {"http": 8081})):
        pod = (await cluster.component_pods(component))[0]
        address = (await cluster.get("pods", pod, namespace=cluster.namespace))["status"]["podIP"]
        ways |= {f"{component} {name}": f"{address}:{port}" for name, port in ports.items()}
        # They listen: what comes from outside of the pods' network is let in.
        assert await scrape(cluster, component, ports.get("metrics", ports["http"]))

    def reached(said: str) -> set[str]:
        return {name for name, address in ways.items() if address in said.split()}

    async def from_component(component: str) -> set[str]:
        pod = (await cluster.component_pods(component))[-1]
        command = ("exec", pod, "-n", cluster.namespace, "--", "python3", "-c", REACHED, *ways.values())
        return reached(await cluster.kubectl(*command))

    with namespace("foreign") as foreign:
        seen = await asyncio.gather(
            from_component("gateway"), from_component("operator"), in_a_pod(foreign, REACHED, *ways.values())
        )
    assert seen[0] == {"dns", "gateway http"}
    assert seen[1] == {"dns"}
    assert reached(seen[2]) == {"dns", "other", "gateway http"}


async def in_a_pod(space: Cluster, code: str, *arguments: str) -> str:
    """Return what a Python program prints in a pod that is none of Sandpod's, where no policy is."""
    container = {
        "name": "program",
        "image": IMAGE,
        "command": ["python3", "-c", code, *arguments],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    security = {"runAsNonRoot": True, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}}
    spec = {"restartPolicy": "Never", "securityContext": security, "containers": [container]}
    made = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "program"}, "spec": spec}
    await Objects(cluster=space).put(made)

    async def ended() -> bool:
        return bool((await space.get("pods", "program"))["status"].get("phase") == "Succeeded")

    await until("the program has ended", ended, within=90)
    return await space.kubectl("logs", "program", "-n", space.sandboxes)


async def hint(session: Session, sandbox: str, target: str, refused: str) -> str:
    """Return what is said after a connection that was refused: it names the call that gives a network."""
    tool, code = REFUSED[refused]
    said: str = (await session.call(tool, code=code.format(target=target), sandbox=sandbox))["hint"]
    return said


async def test_telnet_goes_as_far_as_the_profile_that_is_set_for_it(
    cluster: Cluster, template: str, target: str
) -> None:
    flags = ["--backend", "kubernetes", "--kubernetes.namespace", cluster.sandboxes, "--compat.systems", "chrishayuk"]
    flags += ["--kubernetes.default-template", template, "--compat.telnet-network", "near"]
    flags += ["--tools", '["all"]']

    async def call(tool: str, **arguments: Any) -> dict[str, Any]:
        answer = await mcp.call_tool(tool, arguments, raise_on_error=False)
        assert isinstance(answer.structured_content, dict)
        return answer.structured_content

    async with gateway(*flags) as address, Client(f"{address}/mcp") as mcp:
        # It ends a connection on which nothing is asked for five seconds.
        async def connected() -> dict[str, Any]:
            made = await call("connect", host=target, port=8080, timeout=2)
            return made if made["connected"] else {}

        made = await until("the target is reached", connected, within=60)
        # The cluster's DNS tells its health over HTTP, whose lines are as telnet sends them.
        asked = "GET /health HTTP/1.0\r\nHost: x\r\n"
        said = await call("send_command", session_id=made["session_id"], command=asked)
        assert said.get("response", "").startswith("HTTP/1.0 200 OK"), said
        refused = await call("connect", host=target, port=9153, timeout=2)
        assert (refused["connected"], "near" in refused["error"]) == (False, True), refused
        [sandbox] = (await call("list_sandboxes"))["sandboxes"]
        # The other system's tool of that name.
        assert "error" not in await call("close_sandbox", session_id=sandbox["name"])
