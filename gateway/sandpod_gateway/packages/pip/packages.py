"""Python packages of sandboxes: looked up, and installed by way of `supply.py`. Called by `installer.py`."""

import asyncio

from packaging.requirements import Requirement

from sandpod_gateway.api.package_results import Package, PackageInfo
from sandpod_gateway.backends.base import SandboxRecord
from sandpod_gateway.packages.cache import FileCache
from sandpod_gateway.packages.channel import Installed
from sandpod_gateway.packages.pip import requirements
from sandpod_gateway.packages.pip.target import State
from sandpod_gateway.packages.pip.wheels import Supply
from sandpod_gateway.packages.sandbox import PackagesInside
from sandpod_gateway.packages.settings import PackageSettings
from sandpod_gateway.sandboxes.service import Sandboxes


class PythonPackages:
    """Packages of Python."""

    def __init__(
        self, sandboxes: Sandboxes, settings: PackageSettings, cache: FileCache, turns: asyncio.Semaphore
    ) -> None:
        self._settings = settings
        self._inside = PackagesInside(sandboxes, "wheels", State, timeout=settings.timeout)
        self._supply = Supply(settings, cache, turns)

    def parse(self, packages: list[str]) -> list[Requirement]:
        """Return what is asked for.

        Raises:
            SandpodError: invalid_argument, package_blocked.
        """
        wanted = requirements.parse(packages)
        requirements.check_allowed(wanted, self._settings)
        return wanted

    async def listed(self, record: SandboxRecord) -> list[PackageInfo]:
        """Return the packages of a sandbox, as Python finds them."""
        state = await self._inside.look(record)
        return [
            PackageInfo(
                name=name,
                version=entry.version,
                sha256=entry.sha256 or None,
                source="installed" if entry.added else "image",
            )
            for name, entry in sorted(state.installed.items(), key=lambda item: (not item[1].added, item[0]))
        ]

    async def install(self, record: SandboxRecord, wanted: list[Requirement]) -> Installed:
        """Install what is not there yet.

        Raises:
            SandpodError: What `Supply.wheels` and `PackagesInside.install` say.
        """
        state = await self._inside.look(record)
        there = {name: entry.version for name, entry in state.installed.items()}
        if requirements.satisfied(wanted, there):
            return Installed(_found(state, {requirement.name for requirement in wanted}))
        async with self._supply.wheels(wanted, state.environment, there) as (wheels, names):
            if wheels:
                order = [{"name": wheel.name, "size": size, "sha256": wheel.sha256} for wheel, _, size in wheels]
                state = await self._inside.install(record, order, [file for _, file, _ in wheels])
        return Installed(_found(state, names))


def _found(state: State, names: set[str]) -> list[Package]:
    return [
        Package(name=name, version=state.installed[name].version, sha256=state.installed[name].sha256 or None)
        for name in sorted(names)
        if name in state.installed
    ]
