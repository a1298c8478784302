"""A process with some gateways' backends that claim as fast as there is something to claim, until it is killed.

Started by `claim_storm.py`. Whatever its callers do, and whatever they are told, is a line of a journal that outlives
it. It goes to the API server through a proxy with faults.

    python -m support.claims.worker '{"number": 1, ...}'
"""

import asyncio
import contextlib
import json
import os
import random
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from sandpod_gateway.backends.base import ClaimRequest
from sandpod_gateway.backends.kubernetes.backend import KubernetesBackend
from sandpod_gateway.backends.kubernetes.settings import KubernetesSettings
from sandpod_gateway.errors import SandpodError, StartError
from support.servers.faulty_proxy import Faults, faulty_proxy

OWNERS: Final = 8  # few, so that claims of one owner and one second meet
_JSON_PATCH: Final = "application/json-patch+json"


@dataclass(frozen=True, kw_only=True)
class WorkerConfig:
    """What one process does. Shares are of all claims."""

    number: int
    namespace: str
    folder: str
    templates: list[str]
    backends: int = 4
    callers: int = 3
    ttl: int = 60
    idle_timeout: int = 20
    hold: float = 1.0
    cancelled: float = 0.15
    forgotten: float = 0.1
    sessions: float = 0.1
    restarts: float = 0.002
    faults: dict[str, float] = field(default_factory=dict)

    def command(self) -> list[str]:
        """Return what starts it."""
        return [sys.executable, "-m", "support.claims.worker", json.dumps(asdict(self))]


class Journal:
    """Lines that are in the file before anything else happens, so that a killed process has told all it was told."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def note(self, kind: str, **fields: Any) -> None:
        """Write a line."""
        os.write(self._file, json.dumps({"kind": kind, "at": time.time(), **fields}).encode() + b"\n")


class Worker:
    """The callers of one process."""

    def __init__(self, config: WorkerConfig, journal: Journal, kubeconfig: Path) -> None:
        self._config = config
        self._journal = journal
        self._kubeconfig = kubeconfig
        self._random = random.Random()  # noqa: S311 - who claims what is no secret
        self._backends: list[KubernetesBackend] = []
        self._releases: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Claim until cancelled."""
        self._backends = [await self._start() for _ in range(self._config.backends)]
        self._journal.note("started", worker=self._config.number)
        callers = [(index, n) for index in range(self._config.backends) for n in range(self._config.callers)]
        await asyncio.gather(*(self._call(index) for index, _ in callers))

    async def _start(self) -> KubernetesBackend:
        settings = KubernetesSettings(
            namespace=self._config.namespace,
            kubeconfig=self._kubeconfig,
            cold_start=False,
            warm_streams=0,
            max_sandboxes=10_000,
            max_sandboxes_per_owner=10_000,
        )
        while True:
            backend = KubernetesBackend(settings)
            try:
                await backend.start()
            except StartError:
                continue  # a fault of the proxy's
            return backend

    async def _call(self, index: int) -> None:
        config = self._config
        while True:
            backend = self._backends[index]
            found = await backend._store.until(lambda b=backend: self._warm(b), 5.0)  # type: ignore[misc]
            if found is None:
                continue
            if self._random.random() < config.restarts:
                await self._restart(index)
            elif self._random.random() < config.sessions:
                await self._race_for_a_session(found)
            else:
                await self._claim(index, found, f"owner-{self._random.randrange(OWNERS)}")

    def _warm(self, backend: KubernetesBackend) -> str | None:
        there = [template for (_, template), count in backend.warm().items() if count]
        return self._random.choice(there) if there else None

    async def _restart(self, index: int) -> None:
        old, self._backends[index] = self._backends[index], await self._start()
        self._journal.note("backend restarted")
        await old.close()

    async def _claim(self, index: int, template: str, owner: str, session: str = "") -> str | None:
        request = ClaimRequest(
            owner=owner,
            template=template,
            session=session,
            ttl=self._config.ttl,
            idle_timeout=self._config.idle_timeout,
        )
        claiming = asyncio.create_task(self._backends[index].claim(request))
        if not session and self._random.random() < self._config.cancelled:
            await asyncio.wait([claiming], timeout=self._random.random() * 0.03)
            claiming.cancel()
        try:
            record = await claiming
        except asyncio.CancelledError:
            self._journal.note("cancelled")
            return None
        except SandpodError as error:
            self._journal.note("refused", code=str(error.code))
            return None
        except RuntimeError as error:
            self._journal.note("refused", code=f"its gateway was closed: {error}")
            return None
        self._journal.note("got", name=record.name, owner=owner, session=session)
        if not session:
            self._hold(index, record.name)
        return record.name

    def _hold(self, index: int, name: str) -> None:
        if self._random.random() >= self._config.forgotten:
            task = asyncio.create_task(self._release(index, name))
            self._releases.add(task)
            task.add_done_callback(self._releases.discard)

    async def _release(self, index: int, name: str) -> None:
        await asyncio.sleep(self._random.random() * self._config.hold)
        self._journal.note("releases", name=name)
        with contextlib.suppress(SandpodError, RuntimeError):
            await self._backends[index].delete(name)

    async def _race_for_a_session(self, template: str) -> None:
        """Two gateways want one sandbox for one session's name, at the same moment."""
        owner, session = f"owner-{self._random.randrange(OWNERS)}", f"s-{self._random.getrandbits(64):x}"
        pair = self._random.sample(range(len(self._backends)), 2)
        names = await asyncio.gather(*(self._claim(index, template, owner, session) for index in pair))
        for name in {name for name in names if name is not None}:
            self._hold(pair[0], name)


async def work(config: WorkerConfig) -> None:
    """Run one worker behind a proxy of its own."""
    folder = Path(config.folder)
    journal = Journal(folder / f"journal-{config.number}")
    kubeconfig = folder / f"kubeconfig-{config.number}-{os.getpid()}"

    def told(method: str, path: str, body: bytes, status: int, fault: str) -> None:
        if method == "PATCH" and body.startswith(b"["):
            journal.note("try" if status else "unsent", name=path.rpartition("/")[2], status=status, fault=fault)
        elif fault:
            journal.note("fault", method=method, fault=fault)

    async with faulty_proxy(kubeconfig, Faults(**config.faults), told):
        await Worker(config, journal, kubeconfig).run()


if __name__ == "__main__":
    asyncio.run(work(WorkerConfig(**json.loads(sys.argv[1]))))
