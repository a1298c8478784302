"""Gateways that race for the warm sandboxes of tiny pools while everything goes wrong that can, and what came of it.

Called by `test_claim_storm.py` with a few claims and by `make bench-claims` with 100,000. Operator, gateways and API
server are real, pods are on a node that is only said to be there. Answers get lost, watches break off and repeat
themselves, callers cancel and forget, gateways are restarted, and they and the operator are killed.
"""

import asyncio
import os
import subprocess
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from sandpod_api import names
from sandpod_gateway.backends.kubernetes import cluster as cluster_module
from sandpod_gateway.backends.kubernetes.settings import KubernetesSettings
from support.claims.history import History, Verdict, judge, read_journals
from support.claims.worker import WorkerConfig
from support.cluster.cluster import Cluster, until
from support.cluster.fake_node import fake_node
from support.operator.process import Objects, OperatorProcess, run
from support.servers.faulty_proxy import Faults, faulty_proxy

_TESTS = str(Path(__file__).parents[2])
GATEWAY_FAULTS = {
    "lost_requests": 0.01,
    "lost_answers": 0.03,
    "late_answers": 0.03,
    "cut_watches": 0.002,
    "repeated_events": 0.05,
    "lag": 1.0,
}
OPERATOR_FAULTS = Faults(
    lost_requests=0.01,
    lost_answers=0.02,
    late_answers=0.02,
    cut_watches=0.001,
    repeated_events=0.05,
    lag=0.1,
)
OPERATOR = {"LEASE_DURATION": "60", "LEASE_RENEW_DEADLINE": "45", "RETENTION": "2"}
SLACK = 300.0  # seconds that a killed operator, and a machine under load, may make the end of a sandbox late


@dataclass(frozen=True, kw_only=True)
class Storm:
    """How much of it."""

    tries: int
    workers: int = 2
    backends: int = 4
    pools: int = 3
    replicas: int = 4
    ttl: int = 60
    idle_timeout: int = 20
    hold: float = 4.0  # most seconds until a caller releases what it holds: late claims of others still find it
    kill_worker_every: int = 2_000  # tries, since on a busy machine it takes long to make the first
    kill_operator_every: float = 180.0  # seconds
    say: Callable[[str], None] = field(default=lambda _: None)


class Crew:
    """The processes of a storm."""

    def __init__(self, there: Cluster, folder: Path, storm: Storm, kubeconfig: Path) -> None:
        self._there = there
        self._folder = folder
        self._storm = storm
        self._kubeconfig = kubeconfig
        self._workers: dict[int, subprocess.Popen[bytes]] = {}
        self._operator: OperatorProcess | None = None
        self.killed = 0
        self.ended = 0  # operators that ended themselves, as one does that can't renew its Lease

    def keep_operator(self) -> None:
        """Start the operator anew where it has ended itself, as Kubernetes would."""
        if self._operator is not None and self._operator.has_ended:
            self.ended += 1
            self.start_operator()

    def start_operator(self) -> OperatorProcess:
        """Start the operator, after a kill too."""
        if self._operator is not None:
            self._operator.kill()
            self.killed += 1
            # It is dead for sure, so that its successor need not wait.
            run("delete", "lease", names.LEASE_LEADER, "-n", self._there.sandboxes, "--ignore-not-found")
        log = self._folder / "operator.log"
        self._operator = OperatorProcess(log, self._there.sandboxes, kubeconfig=str(self._kubeconfig), **OPERATOR)
        return self._operator

    def start_worker(self, number: int) -> None:
        """Start gateways and their callers, after a kill too."""
        if number in self._workers:
            self.kill_worker(number)
            self.killed += 1
        storm = self._storm
        config = WorkerConfig(
            number=number,
            namespace=self._there.sandboxes,
            folder=str(self._folder),
            templates=[f"python-{n}" for n in range(storm.pools)],
            backends=storm.backends,
            ttl=storm.ttl,
            idle_timeout=storm.idle_timeout,
            hold=storm.hold,
            faults=GATEWAY_FAULTS,
        )
        with (self._folder / f"worker-{number}.log").open("ab") as log:
            environment = {**os.environ, "PYTHONPATH": _TESTS}
            self._workers[number] = subprocess.Popen(config.command(), env=environment, stderr=log, stdout=log)

    def check_workers(self) -> None:
        """Raise when one has ended by itself: a storm without them would never be over."""
        for number, worker in self._workers.items():
            if worker.poll() is not None:
                log = (self._folder / f"worker-{number}.log").read_text(encoding="utf-8")
                raise AssertionError(f"Worker {number} ended by itself with {worker.returncode}: {log[-2000:]}")

    def kill_worker(self, number: int) -> None:
        """End one at once, with whatever it was doing."""
        self._workers[number].kill()
        self._workers[number].wait(30)

    def end(self) -> None:
        """End all."""
        for number in self._workers:
            self.kill_worker(number)
        if self._operator is not None:
            self._operator.kill()


async def storm_over(there: Cluster, folder: Path, storm: Storm) -> Verdict:
    """Let it rage until so many claims have reached the API server, then until all is over, and judge."""
    objects = Objects(cluster=there)
    async with _history(there) as history, fake_node(there) as placed:
        for number in range(storm.pools):
            await objects.template(f"python-{number}", **placed)
            reference = {"name": f"python-{number}"}
            await objects.apply("SandboxPool", f"pool-{number}", templateRef=reference, replicas=storm.replicas)
        kubeconfig = folder / "kubeconfig-operator"
        async with faulty_proxy(kubeconfig, OPERATOR_FAULTS):
            crew = Crew(there, folder, storm, kubeconfig)
            try:
                await _rage(crew, history, folder, storm)
                # No pool makes another one, so that what is claimed is all that is left to go.
                for number in range(storm.pools):
                    await objects.cluster.kubectl("delete", "sbxp", f"pool-{number}", "-n", there.sandboxes)

                async def is_over() -> bool:
                    await asyncio.to_thread(crew.keep_operator)
                    return not history.left()

                await until("nothing claimed is left", is_over, within=storm.ttl + SLACK)
            finally:
                await asyncio.to_thread(crew.end)
        verdict = judge(history, read_journals(folder), bound=storm.ttl + SLACK)
        verdict.counts["processes killed"] = crew.killed - crew.ended
        verdict.counts["operators that ended themselves"] = crew.ended
        return verdict


async def _rage(crew: Crew, history: History, folder: Path, storm: Storm) -> None:
    await asyncio.to_thread(crew.start_operator)
    for number in range(storm.workers):
        crew.start_worker(number)
    next_worker = storm.kill_worker_every
    next_operator = time.monotonic() + storm.kill_operator_every
    turn, last_said = 0, 0
    counter = TryCounter(folder)
    while (tries := await asyncio.to_thread(counter.count)) < storm.tries:
        now = time.monotonic()
        crew.check_workers()
        await asyncio.to_thread(crew.keep_operator)
        if tries > next_worker:
            await asyncio.to_thread(crew.start_worker, turn % storm.workers)
            turn, next_worker = turn + 1, tries + storm.kill_worker_every
        if now > next_operator:
            await asyncio.to_thread(crew.start_operator)
            next_operator = now + storm.kill_operator_every
        if tries - last_said >= storm.tries / 50:
            claimed = sum(bool(life.claims) for life in history.lives.values())
            storm.say(f"{tries} tries, {len(history.lives)} sandboxes, {claimed} claimed, {crew.killed} kills")
            last_said = tries
        await asyncio.sleep(0.5)
    for number in range(storm.workers):
        await asyncio.to_thread(crew.kill_worker, number)


class TryCounter:
    """Counts in the journals as they grow."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: Counter[Path] = Counter()
        self._tries = 0

    def count(self) -> int:
        """Return how many claims have reached the API server by now."""
        for path in self._folder.glob("journal-*"):
            with path.open("rb") as journal:
                journal.seek(self._read[path])
                lines, _, _ = journal.read().rpartition(b"\n")
            self._read[path] += len(lines)
            self._tries += lines.count(b'{"kind": "try"')
        return self._tries


@asynccontextmanager
async def _history(there: Cluster) -> AsyncIterator[History]:
    """Record from now on, when nothing is there yet."""
    settings, history = KubernetesSettings(namespace=there.sandboxes), History()
    sources = {
        names.SANDBOXES: await cluster_module.Cluster.connect(settings),
        "pods": await cluster_module.Cluster.connect(settings),
    }
    following = []
    for plural, api in sources.items():
        page = await api.list_page(plural, {})
        assert page["items"] == []
        version = page["metadata"]["resourceVersion"]
        following.append(asyncio.create_task(history.follow(api, plural, version)))
    try:
        yield history
        # A recorder that has stopped has proved nothing.
        assert not any(task.done() for task in following), following
    finally:
        for task in following:
            task.cancel()
        await asyncio.gather(*following, return_exceptions=True)
        for api in sources.values():
            await api.close()
