"""The backends that the contract suite runs against, each with what differs: settings, and how to break a sandbox.

Called by `conftest.py`. The Kubernetes one needs a cluster with the chart installed and runs only where
SANDPOD_TEST_KUBERNETES is set; elsewhere the suite has no such case at all. SANDPOD_TEST_TEMPLATE names the template
whose sandboxes it runs in, so that the same tests can be had under another runtime, as gVisor.
"""

import asyncio
import os
import shutil
import signal
import sys
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

from fakes.backend import FakeBackend
from sandpod_gateway.backends.base import Backend
from sandpod_gateway.backends.factory import create_backend
from sandpod_gateway.backends.kubernetes.settings import KubernetesSettings
from sandpod_gateway.backends.local.settings import LocalSettings
from sandpod_gateway.backends.tenants import TenantBackend
from support.runner.harness import search_path

B = TypeVar("B", bound=Backend)


@asynccontextmanager
async def started(backend: B) -> AsyncIterator[B]:
    """Start a backend, and close it at the end."""
    await backend.start()
    try:
        yield backend
    finally:
        await backend.close()


class Case(ABC):
    """One kind of backend under test.

    Attributes:
        kind: What the backend calls itself.
        tenant: Whose the owners are.
        short: Seconds of a lifetime that is over soon, but not before the sandbox has started.
    """

    short = 1
    kind: str
    tenant = ""

    @abstractmethod
    def create(self, per_owner: int, *, cold_start: bool = True) -> Backend:
        """Return a backend, not started, that gives an owner so many sandboxes, warm ones alone if need be."""

    @abstractmethod
    async def break_sandbox(self, backend: Backend, name: str) -> None:
        """Let the runner of the sandbox that was made last end by force from outside."""

    async def is_quick(self) -> None:  # noqa: B027 - only a pod takes long to start
        """Wait until a claim takes much less than `short`, which begins with it."""


class FakeCase(Case):
    kind = "fake"

    def create(self, per_owner: int, *, cold_start: bool = True) -> Backend:
        return FakeBackend(LocalSettings(max_sandboxes_per_owner=per_owner, cold_start=cold_start))

    async def break_sandbox(self, backend: Backend, name: str) -> None:
        assert isinstance(backend, FakeBackend)
        await backend.lose(name)


class TenantsCase(FakeCase):
    """A tenant's sandboxes among those of others."""

    tenant = "team"

    def create(self, per_owner: int, *, cold_start: bool = True) -> Backend:
        default, other, own = (super(TenantsCase, self).create(per_owner, cold_start=cold_start) for _ in range(3))
        return TenantBackend(default, {"other": other, self.tenant: own})

    async def break_sandbox(self, backend: Backend, name: str) -> None:
        assert isinstance(backend, TenantBackend)
        part, inner = backend._at(name)
        await super().break_sandbox(part.backend, inner)


class LocalCase(Case):
    kind = "local"

    def create(self, per_owner: int, *, cold_start: bool = True) -> Backend:
        # The Python of these tests has the libraries that the image has, and their Node is the image's.
        node = shutil.which("node", path=search_path())
        settings = LocalSettings(
            max_sandboxes_per_owner=per_owner,
            warm=0 if cold_start else 1,
            cold_start=cold_start,
            python=sys.executable,
            node=node,
        )
        return create_backend("local", local=settings)

    async def break_sandbox(self, backend: Backend, name: str) -> None:  # noqa: ARG002 - its processes do not say
        os.kill(max(first_processes(), key=_started), signal.SIGKILL)


class KubernetesCase(Case):
    kind = "kubernetes"
    short = 10
    namespace = os.environ.get("SANDPOD_TEST_NAMESPACE", "sandpod-sandboxes")
    template = os.environ.get("SANDPOD_TEST_TEMPLATE", "default")

    def create(self, per_owner: int, *, cold_start: bool = True) -> Backend:
        settings = KubernetesSettings(
            namespace=self.namespace,
            default_template=self.template,
            max_sandboxes_per_owner=per_owner,
            cold_start=cold_start,
        )
        return create_backend("kubernetes", kubernetes=settings)

    async def break_sandbox(self, backend: Backend, name: str) -> None:  # noqa: ARG002 - kubectl needs none
        await self._kubectl("delete", "pod", "-l", f"sandpod.dev/sandbox={name}", "--now")

    async def is_quick(self) -> None:
        await self._kubectl("wait", "sandboxpool/default", "--for=condition=Progressing=false", "--timeout=120s")

    async def _kubectl(self, *arguments: str) -> None:
        command = ("kubectl", *arguments, "-n", self.namespace)
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.DEVNULL)
        assert await process.wait() == 0


def cases() -> dict[str, type[Case]]:
    """Return the kinds to test here."""
    found: dict[str, type[Case]] = {"fake": FakeCase, "tenants": TenantsCase, "local": LocalCase}
    if "SANDPOD_TEST_NO_USERNS" in os.environ:
        del found["local"]
    if "SANDPOD_TEST_KUBERNETES" in os.environ:
        found["kubernetes"] = KubernetesCase
    return found


def servers() -> dict[str, tuple[str, ...]]:
    """Return the flags of `sandpod serve` for each kind that has real sandboxes here."""
    flags = {
        "local": ("--backend", "local", "--local.warm", "0"),
        "kubernetes": ("--backend", "kubernetes", "--kubernetes.namespace", KubernetesCase.namespace),
    }
    return {name: flags[name] for name in cases() if name in flags}


def descendants(pid: int) -> set[int]:
    """Return the host's numbers of all processes below one."""
    parents = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                status = (folder / "stat").read_text(encoding="utf-8", errors="replace")
            except OSError:
                continue  # it has ended meanwhile
            parents[int(folder.name)] = int(status.rpartition(")")[2].split()[1])
    found: set[int] = set()
    level = {pid}
    while level:
        level = {child for child, parent in parents.items() if parent in level}
        found |= level
    return found


def _started(pid: int) -> int:
    """Return when a process was started, in ticks since the machine was."""
    stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    return int(stat.rpartition(")")[2].split()[19])


def first_processes() -> list[int]:
    """Return the host's numbers of the local sandboxes' runners that this test process has started."""
    numbers = {pid: _namespace_numbers(pid) for pid in descendants(os.getpid())}
    return [pid for pid, inside in numbers.items() if len(inside) > 1 and inside[-1] == "1"]


def _namespace_numbers(pid: int) -> list[str]:
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    return next((line.split()[1:] for line in lines if line.startswith("NSpid:")), [])
