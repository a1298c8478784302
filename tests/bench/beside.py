"""Sandpod with its peers beside it: work that both do, one after the other, in the same run."""

import argparse
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Final

from bench import client, crowd
from bench.peers import llm_sandbox
from bench.peers.agent_sandbox import agent_sandbox
from bench.peers.containers import docker, kubectl
from bench.peers.plan import PeerError, Plan, said
from bench.rows import Row
from support.cluster.callers import Session
from support.cluster.cluster import Cluster, until


async def kubectl_version() -> str:
    """Return the version of kubectl."""
    told = json.loads(await said("kubectl", "version", "--client", "--output", "json"))
    return str(told["clientVersion"]["gitVersion"])


PEERS: Final[dict[str, Callable[[Plan], AsyncIterator[Row]]]] = {
    "docker": docker,
    "kubectl": kubectl,
    "llm-sandbox": llm_sandbox.llm_sandbox,
    "agent-sandbox": agent_sandbox,
}
VERSIONS: Final[dict[str, Callable[[], Awaitable[str]]]] = {
    "docker": lambda: said("docker", "version", "--format", "{{.Server.Version}}"),
    "kubectl": kubectl_version,
    "llm-sandbox": llm_sandbox.version,
    "agent-sandbox": lambda: said(
        "kubectl", "get", "deployment", "--all-namespaces", "--field-selector=metadata.name=agent-sandbox-controller",
        "--output", "jsonpath={.items[*].spec.template.spec.containers[0].image}",
    ),
}  # fmt: skip


@dataclass
class Beside:
    """What was measured beside Sandpod, and what not.

    Attributes:
        versions: The version of each peer that is there.
        left_out: Why something was not measured, or not to its end.
    """

    versions: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

    async def peers(self, names: list[str], plan: Plan) -> AsyncIterator[Row]:
        """Measure each peer; one that can't be measured is left out."""
        for name in names:
            try:
                self.versions[name] = await VERSIONS[name]()
                async for row in PEERS[name](plan):
                    yield row
            except PeerError as error:
                self.left_out[name] = str(error)
                print(f"  {name} was not measured: {error}")

    async def idle(self, there: Cluster, count: int) -> AsyncIterator[Row]:
        """Measure what many idle sandboxes take, if the cluster has room for them."""
        try:
            async for row in crowd.density(there, count):
                yield row
        except crowd.RoomError as error:
            self.left_out[f"{count} idle sandboxes"] = str(error)
            print(f"  {count} idle sandboxes were not measured: {error}")

    async def measure(
        self, session: Session, there: Cluster, url: str, key: str, options: argparse.Namespace
    ) -> AsyncIterator[Row]:
        """Sandpod in many sandboxes at once, then the peers in as many."""
        async for row in client.upload(url, key, options.fresh, options.copy, there.pool_is_full):
            yield row
        async with AsyncExitStack() as stack:
            sandboxes = []
            for index in range(options.sandboxes):
                sandboxes.append(await session.create(name=f"bench-crowd-{index}"))
                stack.push_async_callback(session.close, sandboxes[-1])
            await there.pool_is_full()
            async for row in crowd.together(session, sandboxes, options.runs):
                yield row
            plan = Plan(
                image=(await there.get("sandboxtemplates", "default"))["spec"]["image"],
                namespace=there.sandboxes,
                pods=sorted(await pods(there)),
                calls=options.peer_calls,
                fresh=options.fresh,
                megabytes=options.copy,
                runs=options.runs,
            )
            async for row in self.peers(options.peers, plan):
                yield row
        if options.density:
            await there.pool_is_full()
            await until("the end of their pods", lambda: only_warm(there), within=120)
            async for row in self.idle(there, options.density):
                yield row


async def pods(there: Cluster) -> list[str]:
    """Return the pods of the sandboxes of this benchmark."""
    found = await there.items("sandboxes")
    return [
        s["status"]["podName"]
        for s in found
        if s["spec"].get("claim", {}).get("session", "").startswith("bench-crowd-")
    ]


async def only_warm(there: Cluster) -> bool:
    """Return whether the pods of what was closed are gone."""
    return len(await there.items("pods")) <= len(await there.items("sandboxes"))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of what is measured here."""
    parser.add_argument("--peers", nargs="*", choices=list(PEERS), default=list(PEERS), help="whom to measure, too")
    parser.add_argument("--peer-calls", type=int, default=50, help="calls of each kind that a peer does")
    parser.add_argument("--sandboxes", type=int, default=16, help="sandboxes that run at once")
    parser.add_argument("--runs", type=int, default=20, help="runs in each of them")
    parser.add_argument("--copy", type=int, default=10, help="size of a file to copy, MB")
    parser.add_argument("--density", type=int, default=100, help="idle sandboxes, 0 for none")
