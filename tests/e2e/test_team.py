"""A team's endpoint as a whole: people and agents of two tenants behind TLS, while all of Sandpod is replaced.

A user signs in with a browser, one agent has an API key, and another one a token. The release is the test's own: two
gateways and two operators, each tenant with a namespace of its own, an OpenID Connect provider at which clients can't
register, and nginx in front. Each step of a sign-in reaches whichever gateway comes next.
"""

import asyncio
import json
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import httpx2
import pytest
import yaml
from fastmcp import Client
from fastmcp.client.transports import StreamableHttpTransport

from sandpod_gateway.auth.callers import owner_of
from support.background import read_until
from support.cluster.callers import Caller, Reply, Session
from support.cluster.cluster import Cluster, node_address, node_url, until
from support.cluster.reading import read
from support.cluster.release import LITTLE, SMALL, done, image, run
from support.command_line import sandpod
from support.gateway.browser import ByBrowser, User, chromium, provider
from support.ports import free_port
from support.servers.nginx import Proxy, nginx

# Of a client that ends with its test.
pytestmark = pytest.mark.filterwarnings("ignore:Using in-memory token storage")

CHART: Final = Path(__file__).resolve().parents[2] / "charts" / "sandpod"
NAMESPACE: Final = "sandpod-whole"
SANDBOXES: Final = "sandpod-whole-sandboxes"
TENANTS: Final = ("red", "blue")
AUDIT: Final = "/var/log/sandpod"
TRUST: Final = "/etc/provider"
WORK: Final = """
with open("rounds", "a") as file:
    file.write("x")
rounds = globals().get("rounds", 0) + 1
print(sum(range(100_000)) and rounds)
"""
WAITS: Final = (
    "import os, sys, time\nsys.stdout.write('begun\\n')\n"
    "while not os.path.exists('replaced'): time.sleep(0.05)\nprint('done')\n"
)
MORE_ROUNDS: Final = 5  # of everybody, after all has been replaced


@dataclass(kw_only=True)
class Member:
    """Somebody who works in a sandbox of their own, and what the gateways say that it took.

    Attributes:
        owner: Tenant and user.
        sandbox: The handle.
        lasting: The name of a background run.
        waiting: A call whose program waits until all has been replaced.
        rounds: How often the program has run so far.
        calls: How many calls were made.
        runs: How many of them, or of the background runs, ran a program that has ended.
        cpu_ms: Processor time of these programs.
    """

    owner: tuple[str, str]
    session: Session
    sandbox: str = ""
    lasting: str = ""
    waiting: asyncio.Task[Reply] = field(init=False)
    rounds: int = 0
    calls: int = 0
    runs: int = 0
    cpu_ms: float = 0.0
    failures: list[str] = field(default_factory=list)

    async def call(self, tool: str, **arguments: Any) -> Reply:
        self.calls += 1
        return await self.session.call(tool, **arguments)

    def count(self, result: Any) -> None:
        self.runs += 1
        self.cpu_ms += result["cpu_ms"]

    async def begin(self) -> None:
        self.sandbox = (await self.call("create_sandbox", name="work"))["sandbox"]
        self.lasting = (await self.call("start_run", code=WAITS, sandbox=self.sandbox, timeout=900))["run_id"]
        await read_until(self.call, self.lasting, "begun\n")

    async def work(self) -> None:
        """Run the program once more; its variables and files are from all rounds before."""
        reply = await self.call("run_python_code", code=WORK, sandbox=self.sandbox, context="work")
        self.rounds += 1
        if reply.data.get("stdout") != f"{self.rounds}\n":
            self.failures.append(repr(reply))
            return
        self.count(reply)

    async def visit(self, caller: Caller) -> None:
        """Do so as one who comes for the first time."""
        self.calls += 1
        try:
            async with caller.connect() as session:
                reply = await session.python("print('here')", sandbox=self.sandbox)
        except Exception as error:  # noqa: BLE001 - whatever a caller would see
            self.failures.append(repr(error))
            return
        if reply.data.get("stdout") != "here\n":
            self.failures.append(repr(reply))
            return
        self.count(reply)

    async def wait(self) -> None:
        """Call a program that runs until all has been replaced, and begin it before."""
        begun = asyncio.Event()

        async def hear(_: str) -> None:
            begun.set()

        call = self.call("run_python_code", code=WAITS, sandbox=self.sandbox, timeout=120, on_output=hear)
        self.waiting = asyncio.create_task(call)
        async with asyncio.timeout(60):
            await begun.wait()

    async def finish(self) -> None:
        """Look at what is kept from before everything was replaced."""
        kept = await self.call("read_file", path="rounds", sandbox=self.sandbox)
        assert kept["content"] == "x" * self.rounds
        waited = await self.waiting
        assert waited["stdout"] == "begun\ndone\n"
        self.count(waited)
        ended = await read_until(self.call, self.lasting)
        assert (ended["result"]["outcome"], ended["stdout"]) == ("ok", "begun\ndone\n")
        self.count(ended["result"])

    async def try_to_see(self, other: "Member") -> None:
        """Ask for what is another's; each answer is that of a sandbox which does not exist."""
        absent = other.sandbox[:-4] + ("0000" if not other.sandbox.endswith("0000") else "1111")
        for tool, arguments in (
            ("get_sandbox", {}),
            ("run_python_code", {"code": "print(1)"}),
            ("read_file", {"path": "rounds"}),
            ("list_runs", {}),
            ("close_sandbox", {}),
        ):
            seen, none = [await self.call(tool, sandbox=name, **arguments) for name in (other.sandbox, absent)]
            assert seen.error is not None
            assert json.dumps(seen.data).replace(other.sandbox, absent) == json.dumps(none.data)
        assert (await self.call("read_run", run_id=other.lasting)).error is not None
        mine = await self.call("list_sandboxes")
        assert [each["sandbox"] for each in mine["sandboxes"]] == [self.sandbox]


def values(entry: dict[str, Any], public: str, issuer: Proxy, client: dict[str, str]) -> dict[str, Any]:
    """Return the chart's values, as docs/install.md and docs/operate.md have them for each part.

    `client` is the gateways' own one at the provider.
    """
    host, _, port = issuer.address.removeprefix("https://").rpartition(":")
    certificate = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "provider-ca"},
        "data": {"root.crt": issuer.root.read_text(encoding="utf-8")},
    }
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "sso"},
        "stringData": {"client_secret": client["client_secret"]},
    }
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "audit"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "64Mi"}}},
    }
    return {
        "auth": {"keys": [entry], "oidcClientSecret": "sso"},
        "gateway": {
            **image("gateway"),
            **LITTLE,
            "replicas": 2,
            "service": {"type": "NodePort", "sessionAffinity": "None"},
            "config": {
                "trusted_proxies": ["10.0.0.0/8", "172.16.0.0/12"],
                "links": {"public_url": public},
                "auth": {
                    "oidc": {
                        "issuer": issuer.address,
                        "ca_file": f"{TRUST}/root.crt",
                        "client_id": client["client_id"],
                        "proxy": {},
                        "tenants": {name: name for name in TENANTS},
                    }
                },
                "audit": {"sink": "file", "path": f"{AUDIT}/audit-{{host}}.jsonl"},
            },
            "extraVolumes": [
                {"name": "audit", "persistentVolumeClaim": {"claimName": "audit"}},
                {"name": "provider", "configMap": {"name": "provider-ca"}},
            ],
            "extraVolumeMounts": [
                {"name": "audit", "mountPath": AUDIT},
                {"name": "provider", "mountPath": TRUST, "readOnly": True},
            ],
        },
        "operator": {**image("operator"), **LITTLE, "replicas": 2},
        "sandboxes": {
            "namespace": SANDBOXES,
            **image("sandbox"),
            "templates": {"default": {"resources": SMALL, "preimport": []}},
            "pools": {"default": {"replicas": 0}},
        },
        "tenants": {name: {"pools": {"default": {"replicas": 1}}} for name in TENANTS},
        "networkPolicy": {"oidcPorts": [int(port)], "oidcCidrs": [f"{host}/32"]},
        "extraObjects": [certificate, secret, volume],
    }


@contextmanager
def installed(file: Path, wanted: dict[str, Any]) -> Iterator[Cluster]:
    """Give the release, and remove it with its namespaces."""
    file.write_text(yaml.safe_dump(wanted), encoding="utf-8")
    where = ("--namespace", NAMESPACE)
    try:
        done(
            *("helm", "install", "sandpod", str(CHART), *where, "--create-namespace", "--values", str(file)),
            *("--skip-crds", "--wait", "--timeout", "5m"),
        )
        yield Cluster(namespace=NAMESPACE, sandboxes=SANDBOXES)
    finally:
        run("helm", "uninstall", "sandpod", *where)
        spaces = [NAMESPACE, SANDBOXES, *(f"{SANDBOXES}-{tenant}" for tenant in TENANTS)]
        run("kubectl", "delete", "namespace", *spaces, "--ignore-not-found", "--wait=false")


def own_address() -> str:
    """Return the address by which pods reach this machine: the one that leads to their node."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((node_address(read("nodes", "")["items"][0]), 9))
        return str(probe.getsockname()[0])


@dataclass
class Endpoint:
    """The team's endpoint.

    Attributes:
        url: Its address.
        key: The key of an agent, of the first tenant.
        trust: Trusts the certificates of nginx and of the provider.
    """

    cluster: Cluster
    url: str
    key: str
    trust: ssl.SSLContext


@asynccontextmanager
async def endpoint(folder: Path) -> AsyncIterator[Endpoint]:
    made = json.loads(await sandpod("keys", "create", "--user", "kit", "--tenant", TENANTS[0], "--output", "json"))
    at_provider, front_port = free_port(), free_port()
    public = f"https://localhost:{front_port}"
    async with AsyncExitStack() as stack:
        sync = stack.enter_context(ExitStack())
        issuer = sync.enter_context(nginx(folder / "issuer", f"127.0.0.1:{at_provider}", address=own_address()))
        await stack.enter_async_context(provider(f"{public}/mcp", at_provider, issuer.address))
        client = {"redirect_uris": [f"{public}/auth/callback"], "token_endpoint_auth_method": "client_secret_basic"}
        async with httpx2.AsyncClient(verify=issuer.trust) as http:
            own = (await http.post(f"{issuer.address}/reg", json=client)).json()
        release = installed(folder / "values.yaml", values(made["entry"], public, issuer, own))
        cluster = await asyncio.to_thread(sync.enter_context, release)
        upstream = node_url(NAMESPACE).removeprefix("http://")
        front = sync.enter_context(nginx(folder / "front", upstream, port=front_port))
        front.trust.load_verify_locations(issuer.root)
        yield Endpoint(cluster, f"{front.address}/mcp", made["key"], front.trust)


@asynccontextmanager
async def signed_in(endpoint: Endpoint, user: User) -> AsyncIterator[tuple[Session, str]]:
    """Sign in as FastMCP's client does; gives the connection and the token that it got."""
    auth = ByBrowser(user)
    transport = StreamableHttpTransport(endpoint.url, auth=auth, verify=endpoint.trust)
    async with Client(transport, timeout=120) as client:
        await asyncio.gather(*auth.pages)
        tokens = auth.context.current_tokens
        assert tokens is not None
        yield Session(client), tokens.access_token


async def replace_everything(endpoint: Endpoint, members: list[Member], newcomer: Member) -> None:
    """Restart all gateways and operators, one after another, while the members work and one of them comes anew."""
    cluster, over = endpoint.cluster, asyncio.Event()
    pods = set(await cluster.component_pods("gateway")) | set(await cluster.component_pods("operator"))

    async def gone() -> bool:
        there = await cluster.items("pods", namespace=NAMESPACE)
        return not pods & {pod["metadata"]["name"] for pod in there}

    async def repeat(work: Callable[[], Awaitable[None]]) -> None:
        while not over.is_set():
            await work()
        for _ in range(MORE_ROUNDS):
            await work()

    async with asyncio.TaskGroup() as group:
        for member in members:
            await member.wait()
            group.create_task(repeat(member.work))
        caller = Caller(endpoint.url, endpoint.key, endpoint.trust)
        group.create_task(repeat(partial(newcomer.visit, caller)))
        await cluster.kubectl("rollout", "restart", "deployment", "-n", NAMESPACE)
        for component in ("gateway", "operator"):
            await cluster.rollout(component)
        for member in members:  # whose old gateways wait for their calls
            await member.call("write_file", path="replaced", text="", sandbox=member.sandbox)
        await until("all that were there have ended", gone, within=120)
        over.set()


async def check_usage(members: list[Member]) -> None:
    place = f"{NAMESPACE}/sandpod-gateway-usage"

    rows: dict[tuple[str, str], dict[str, Any]] = {}

    async def counted() -> bool:
        told = json.loads(await sandpod("usage", "--configmaps", place, "--output", "json"))
        rows.update({(row["tenant"], row["user"]): row for row in told})
        counts = [(row["calls"], row["runs"]) for row in map(rows.get, (each.owner for each in members)) if row]
        return counts == [(member.calls, member.runs) for member in members]

    await until("all calls and runs are counted, those among them that outlived a gateway", counted, within=90)
    assert set(rows) == {member.owner for member in members}
    for member in members:
        used = member.cpu_ms / 1e3
        assert rows[member.owner]["cpu_seconds"] == pytest.approx(used, abs=0.001 * member.runs)


async def check_audit(cluster: Cluster, members: list[Member], folder: Path) -> None:
    pod = (await cluster.component_pods("gateway"))[0]
    code = f"import pathlib\nfor file in pathlib.Path({AUDIT!r}).iterdir(): print(file.read_text(), end='')"
    (folder / "audit").write_text(await cluster.kubectl("exec", pod, "-n", NAMESPACE, "--", "python3", "-c", code))
    verified = json.loads(await sandpod("audit", "verify", str(folder / "audit"), "--output", "json"))
    assert len(verified["replicas"]) == 4, "two gateways, and the two that came after them"
    records = [json.loads(line) for line in (folder / "audit").read_text().splitlines()]
    for member in members:
        calls = [each for each in records if (each.get("user"), each.get("event")) == (owner_of(*member.owner), "call")]
        assert len(calls) == member.calls


async def remove_tenant(endpoint: Endpoint, members: list[Member]) -> None:
    """Upgrade to values without the last member's tenant: who is of it is refused, and nothing of it is deleted."""
    *others, last = members
    without = ("--reset-then-reuse-values", "--set", f"tenants.{last.owner[0]}=null")
    flags = ("--namespace", NAMESPACE, "--skip-crds", *without, "--wait", "--timeout", "5m")
    await asyncio.to_thread(done, "helm", "upgrade", "sandpod", str(CHART), *flags)

    async def is_refused() -> bool:
        return (await last.call("list_sandboxes")).error == "forbidden"

    await until("all gateways have read the values", is_refused, within=60)
    name = last.sandbox.removeprefix(f"{last.owner[0]}.")
    kept = await endpoint.cluster.get("sandboxes", name, namespace=f"{SANDBOXES}-{last.owner[0]}")
    assert kept["status"]["phase"] == "Ready"
    for member in others:
        await member.work()
        assert member.failures == []


@pytest.mark.promise("rolling-update", "tenants-apart", "usage-kept", "sign-in-shared")
async def test_team_works_behind_tls_while_all_is_replaced_and_usage_and_audit_add_up(
    cluster: Cluster, tmp_path: Path
) -> None:
    assert cluster.namespace != NAMESPACE
    async with AsyncExitStack() as stack:
        place = await stack.enter_async_context(endpoint(tmp_path))
        browser = await stack.enter_async_context(chromium())
        dora, _ = await stack.enter_async_context(signed_in(place, User("dora@red", browser)))
        _, token = await stack.enter_async_context(signed_in(place, User("tom@blue", browser)))
        kit, tom = [
            await stack.enter_async_context(Caller(place.url, secret, place.trust).connect())
            for secret in (place.key, token)
        ]
        owners = {("red", "dora@red"): dora, ("red", "kit"): kit, ("blue", "tom@blue"): tom}
        members = [Member(owner=owner, session=session) for owner, session in owners.items()]
        for member in members:
            await member.begin()
        await replace_everything(place, members, members[1])
        assert [member.failures for member in members] == [[], [], []]
        for member in members:
            await member.finish()
            for other in members:
                if other is not member:
                    await member.try_to_see(other)
        await check_usage(members)
        await check_audit(place.cluster, members, tmp_path)
        await remove_tenant(place, members)
