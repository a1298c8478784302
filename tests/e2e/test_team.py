"""A team's endpoint as a whole: people and agents of two tenants behind TLS, while all of Sandpod is replaced.

A user signs in with a browser, one agent has an API key, and another one a token. The release is the test's own: two
gateways and two operators, and each tenant has a namespace of its own.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from sandpod_gateway.auth.callers import owner_of
from support.background import read_until
from support.cluster.callers import Caller, Reply, Session
from support.cluster.cluster import Cluster, until
from support.cluster.reading import RefusedError, call, path_of
from support.cluster.release import done, helm
from support.cluster.team import AUDIT, CHART, NAMESPACE, SANDBOXES, SERVICE, Endpoint, endpoint, signed_in
from support.cluster.ways_in import use_consoles, use_programs
from support.command_line import sandpod
from support.gateway.browser import User, chromium

# Of a client that ends with its test.
pytestmark = pytest.mark.filterwarnings("ignore:Using in-memory token storage")

WORK: Final = """
with open("rounds", "a") as file:
    file.write("x")
rounds = globals().get("rounds", 0) + 1
print(sum(range(100_000)) and rounds)
"""
WAITS: Final = (
    "import os, sys, time\nsys.stdout.write('begun\\n')\n"
    "while not os.path.exists('{}'): time.sleep(0.05)\nprint('done')\n"
)
MORE_ROUNDS: Final = 5  # of everybody, after all has been replaced
PACE_SECONDS: Final = 0.2  # between two of one's rounds, so that what is replaced has processors left to start on


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
        code = WAITS.format("replaced")
        self.lasting = (await self.call("start_run", code=code, sandbox=self.sandbox, timeout=900))["run_id"]
        await read_until(self.call, self.lasting, "begun\n")

    async def work(self) -> None:
        """Run the program once more; its variables and files are from all rounds before."""
        try:
            reply = await self.call("run_python_code", code=WORK, sandbox=self.sandbox, context="work")
        except Exception as error:  # noqa: BLE001 - whatever a caller would see
            self.failures.append(f"{datetime.now(UTC)}: {error!r}")
            return
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
            self.failures.append(f"{datetime.now(UTC)}: {error!r}")
            return
        if reply.data.get("stdout") != "here\n":
            self.failures.append(repr(reply))
            return
        self.count(reply)

    async def wait(self, file: str) -> None:
        """Call a program that runs until there is that file; return when it has begun."""
        begun = asyncio.Event()

        async def hear(_: str) -> None:
            begun.set()

        call = self.call("run_python_code", code=WAITS.format(file), sandbox=self.sandbox, timeout=120, on_output=hear)
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


async def replace_everything(endpoint: Endpoint, members: list[Member], newcomer: Member) -> None:
    """Upgrade to new pods of all gateways and operators, while the members work and one of them comes anew."""
    cluster, over = endpoint.cluster, asyncio.Event()
    pods = set(await cluster.component_pods("gateway")) | set(await cluster.component_pods("operator"))

    async def gone() -> bool:
        there = await cluster.items("pods", namespace=NAMESPACE)
        return not pods & {pod["metadata"]["name"] for pod in there}

    async def repeat(work: Callable[[], Awaitable[None]]) -> None:
        while not over.is_set():
            await work()
            await asyncio.sleep(PACE_SECONDS)
        for _ in range(MORE_ROUNDS):
            await work()

    async with asyncio.TaskGroup() as group:
        for member in members:
            await member.wait("replaced")
            group.create_task(repeat(member.work))
        caller = Caller(endpoint.url, endpoint.key, endpoint.trust)
        group.create_task(repeat(partial(newcomer.visit, caller)))
        new = [f"{component}.podAnnotations.replaced=yes" for component in ("gateway", "operator")]
        await asyncio.to_thread(upgrade, *new)
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


def upgrade(*changes: str) -> None:
    """Change some of the release's values, and wait until all of it is as they say."""
    sets = [part for change in changes for part in ("--set", change)]
    helm("upgrade", NAMESPACE, str(CHART), "--skip-crds", "--reset-then-reuse-values", *sets)


async def evict_gateways(cluster: Cluster, member: Member) -> None:
    """Evict both gateways, as those who drain nodes do: the second has to wait for the successor of the first."""

    async def allowed() -> bool:
        path = f"/apis/policy/v1/namespaces/{NAMESPACE}/poddisruptionbudgets/{SERVICE}"
        budget = await asyncio.to_thread(call, "GET", path)
        return bool(budget["status"]["disruptionsAllowed"] == 1)

    async def evict(pod: str) -> None:
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": NAMESPACE}}
        await asyncio.to_thread(call, "POST", f"{path_of('pods', NAMESPACE, pod)}/eviction", eviction)

    first, second = await cluster.component_pods("gateway")
    await until("one may be evicted", allowed, within=60)
    await evict(first)
    with pytest.raises(RefusedError, match="disruption budget"):
        await evict(second)
    await member.work()
    assert member.failures == []


async def remove_tenant(endpoint: Endpoint, members: list[Member]) -> None:
    """Upgrade to values without the last member's tenant: who is of it is refused, and nothing of it is deleted."""
    *others, last = members
    await last.wait("removed")
    await asyncio.to_thread(upgrade, f"tenants.{last.owner[0]}=null")

    async def is_refused() -> bool:
        return (await last.call("list_sandboxes")).error == "forbidden"

    await until("all gateways have read the values", is_refused, within=60)
    name, space = last.sandbox.removeprefix(f"{last.owner[0]}."), f"{SANDBOXES}-{last.owner[0]}"
    kept = await endpoint.cluster.get("sandboxes", name, namespace=space)
    assert kept["status"]["phase"] == "Ready"
    await endpoint.cluster.kubectl("exec", name, "-n", space, "--", "touch", "/workspace/removed")
    assert (await last.waiting)["stdout"] == "begun\ndone\n"  # its call was in progress meanwhile
    for member in others:
        await member.work()
        assert member.failures == []


async def uninstall(cluster: Cluster, member: Member) -> None:
    """Uninstall the release: its tenants' namespaces stay, closed, with what is in them."""
    await asyncio.to_thread(done, "helm", "uninstall", "sandpod", "--namespace", NAMESPACE)
    tenant = member.owner[0]
    name, space = member.sandbox.removeprefix(f"{tenant}."), f"{SANDBOXES}-{tenant}"
    assert (await cluster.get("sandboxes", name, namespace=space))["status"]["phase"] == "Ready"
    assert await cluster.get("pods", name, namespace=space)
    assert await cluster.get("networkpolicies", "sandpod-namespace", namespace=space)

    async def gone() -> bool:
        return not await cluster.items("leases", namespace=NAMESPACE)

    await until("the operators' Lease has gone", gone, within=60)


@pytest.mark.promise("rolling-update", "tenants-apart", "usage-kept", "sign-in-shared", "sessions-anywhere")
async def test_team_works_behind_tls_while_all_is_replaced_and_usage_and_audit_add_up(
    cluster: Cluster, tmp_path: Path
) -> None:
    assert cluster.namespace != NAMESPACE
    async with AsyncExitStack() as stack:
        place = await stack.enter_async_context(endpoint(tmp_path))
        browser = await stack.enter_async_context(chromium())
        dora, _ = await stack.enter_async_context(signed_in(place, User("dora@red", browser)))
        _, token = await stack.enter_async_context(signed_in(place, User("tom@blue", browser)))
        # A session of the older era is at one gateway, and its requests arrive at both.
        kit = await stack.enter_async_context(Caller(place.url, place.key, place.trust).connect("legacy"))
        tom = await stack.enter_async_context(Caller(place.url, token, place.trust).connect())
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
        # Now that calls are counted no more.
        await use_consoles(place, User("dora@red", browser), User("tom@blue", browser), members[0].sandbox)
        await use_programs(place, tmp_path)
        await evict_gateways(place.cluster, members[0])
        await remove_tenant(place, members)
        await uninstall(place.cluster, members[0])
