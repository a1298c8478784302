"""Rounds of faults under load, and what must be true after each: `make chaos`.

    python -m chaos.chaos --rounds 100 --seed 7      on the cluster of KUBECONFIG, with the chart installed

It fails at the first round after which something is not as it must be, and prints that round's history and the seed.
"""

import argparse
import asyncio
import json
import logging
import os
import secrets
import sys
import time
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final, NoReturn

from chaos import faults, invariants, plan
from chaos.history import History
from chaos.load import Load
from chaos.machine import abilities, nodes
from chaos.world import World
from support.cluster.cluster import Cluster, ClusterError, spread_service
from support.operator.process import IMAGE, Objects
from support.servers.cut_connections import Way, way_to

FOLDER: Final = Path(".build/chaos")


def parse() -> argparse.Namespace:
    """Return the command line."""
    parser = argparse.ArgumentParser(description="Lets everything go wrong under load, and proves what came of it.")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=None, help="the same seed does the same again")
    parser.add_argument("--only", action="append", choices=plan.FAULTS, help="a fault to make, and no others")
    return parser.parse_args()


class Chaos:
    """The rounds.

    Args:
        names: The faults that are made.
    """

    def __init__(self, world: World, history: History, seed: int, names: list[str]) -> None:
        self.world, self.history, self.seed = world, history, seed
        self._plan = plan.rounds(seed, names)

    async def run(self, rounds: int, url: str, keys: dict[str, str], kinds: tuple[str, ...] = ()) -> list[str]:
        """Do that many rounds, and return what is wrong after the last of them."""
        await self.prepare()
        async with way_to(url) as way:
            load = Load(way.address, keys, self.history, kinds)
            try:
                for number in range(1, rounds + 1):
                    if wrong := await self._round(number, load, way):
                        return wrong
            finally:
                await load.end()
        return []

    async def prepare(self) -> None:
        """Make the template with persistent workspaces."""
        await Objects(cluster=self.world.cluster).template(
            "chaos-lasting",
            image=IMAGE,
            resources={"cpu": "1", "cpuRequest": "20m", "memory": "256Mi", "memoryRequest": "64Mi"},
            workspace={"size": "16Mi"},
            workspaceLimits={"maxSize": "32Mi", "persistent": True},
        )

    async def _round(self, number: int, load: Load, way: Way) -> list[str]:
        began = time.monotonic()
        chosen = next(self._plan)
        self.history.add("round", number=number, faults=[fault.record() for fault in chosen])
        load.go()
        await asyncio.gather(*(self._make(way, fault) for fault in chosen))
        seconds, missing = await self.world.settled()
        self.history.add("recovered", seconds=seconds, missing=missing)
        await load.rest()
        await asyncio.gather(*(self._audit(load, place) for place in range(len(load.workers))))
        self.history.add("objects", **await self.world.swept())
        self.history.add("sample", programs=await self.world.samples(), stored=await self.world.stored())
        wrong = invariants.violations(self.history.records)
        told = [each for each in self.history.since("round") if each["kind"] == "told"]
        print(
            f"{time.strftime('%H:%M:%S')} load {os.getloadavg()[0]:.1f}  round {number}: "
            f"{', '.join(f'{fault.name} {fault.seconds:g} s' for fault in chosen)}; back after {seconds:.0f} s; "
            f"{sum(each['told'] == 'ok' for each in told)} of {len(told)} calls told as success; "
            f"{time.monotonic() - began:.0f} s; {len(wrong)} wrong",
            flush=True,
        )
        return wrong

    async def _make(self, way: Way, fault: plan.Fault) -> None:
        await asyncio.sleep(fault.after)
        self.history.add("fault", name=fault.name, phase="begin")
        async with faults.made(self.world, way, fault):
            await asyncio.sleep(fault.seconds)
        self.history.add("fault", name=fault.name, phase="end")

    async def _audit(self, load: Load, place: int) -> None:
        """Record what is in a worker's sandbox, once a call can be made in it."""
        worker = load.workers[place]
        said = "never asked"
        for _ in range(5):
            said = await worker.serves()
            if not said:
                break
            await asyncio.sleep(2)
        if said:
            self.history.add("unserved", worker=worker.name, sandbox=worker.sandbox, said=said)
        elif worker.sandbox is not None:
            try:
                found = await self.world.inside(worker)
            except ClusterError as error:
                self.history.add("unserved", worker=worker.name, sandbox=worker.sandbox, said=str(error))
            else:
                self.history.add("audit", sandbox=worker.sandbox, persistent=worker.persistent, **found)


def report(history: History, wrong: list[str], seed: int) -> None:
    """Print what was done, and what is wrong with the history of the last round."""
    for what, count in invariants.counts(history.records).items():
        print(f"  {what:<40} {count:>8}")
    if wrong:
        for record in history.since("round"):
            if record["kind"] not in {"objects", "sample", "audit"}:
                print(invariants.sentence(record))
        for text in wrong[:50]:
            print(f"WRONG {text}")
    print(f"seed {seed}, history {history.path}: {len(wrong)} wrong")


async def world_of(cluster: Cluster) -> World:
    """Return the installed cluster, and what can be done to it."""
    there = await nodes()
    gateways = await cluster.items("pods", namespace=cluster.namespace, selector="app.kubernetes.io/component=gateway")
    # One that the installation has replaced may still drain.
    stays = next(each for each in gateways if "deletionTimestamp" not in each["metadata"])
    return World(cluster, there, await abilities(there, stays))


def keys_of(path: Path) -> dict[str, str]:
    """Return the API keys that `make install` has made, by user."""
    return {user: made["key"] for user, made in json.loads(path.read_text(encoding="utf-8")).items()}


def run_installed(work: Callable[[str, Cluster, dict[str, str]], Coroutine[Any, Any, int]]) -> NoReturn:
    """Run a program on the installed release, and end with its exit code; it gets address, cluster and API keys."""
    # What a client library says of connections that are cut on purpose.
    logging.getLogger("mcp").setLevel(logging.CRITICAL)
    cluster = Cluster(namespace=os.environ["SANDPOD_NAMESPACE"], sandboxes=os.environ["SANDPOD_SANDBOX_NAMESPACE"])
    keys = keys_of(Path(os.environ["SANDPOD_KEYS"]))
    with ExitStack() as stack:
        address = stack.enter_context(spread_service(cluster.namespace))
        sys.exit(asyncio.run(work(f"http://{address}", cluster, keys)))


async def _main(options: argparse.Namespace, url: str, cluster: Cluster, keys: dict[str, str]) -> int:
    seed = secrets.randbelow(2**31) if options.seed is None else options.seed
    world = await world_of(cluster)
    names = options.only or plan.possible(world.abilities)
    print(f"seed {seed}; abilities {sorted(world.abilities)}")
    print(
        f"not possible here: {sorted(set(plan.FAULTS) - set(plan.possible(world.abilities))) or 'nothing'}", flush=True
    )
    history = History(FOLDER / f"history-{seed}.jsonl")
    wrong = await Chaos(world, history, seed, names).run(options.rounds, url, keys)
    report(history, wrong, seed)
    history.close()
    return bool(wrong)


def main() -> None:
    """Let it rage in the installed release."""
    run_installed(partial(_main, parse()))


if __name__ == "__main__":
    main()
