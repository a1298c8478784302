"""Installations: started by calls, joined by equal ones, waited for, and kept for a while.

They live in this process: another gateway, or this one after a restart, does not know them. What is installed is in
the sandbox, where all gateways see it.
"""

import asyncio
import logging
import secrets
import time
from dataclasses import dataclass, field
from typing import Any, Final
from weakref import WeakValueDictionary

from sandpod_gateway.api.results import ErrorCode, Installation, Package, PackageList
from sandpod_gateway.api.run_results import Language
from sandpod_gateway.backends.base import SandboxRecord
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.packages.cache import FileCache
from sandpod_gateway.packages.channel import Channel, FairSlots
from sandpod_gateway.packages.errors import Failure
from sandpod_gateway.packages.npm.packages import NpmPackages
from sandpod_gateway.packages.pip.packages import PythonPackages
from sandpod_gateway.packages.settings import PackageSettings
from sandpod_gateway.sandboxes.service import Sandboxes

logger = logging.getLogger(__name__)

REMEMBERED: Final = 256  # installations
IN_PROGRESS: Final = 8  # installations of one caller at once


@dataclass(slots=True, eq=False)
class _Entry:
    """An installation; `requested` has its language and requirements. Its task fails only by being cancelled."""

    name: str
    owner: str
    sandbox: str
    requested: tuple[str, ...]
    task: asyncio.Task[None] = field(init=False)
    started: float = field(default_factory=time.monotonic)
    ended: float | None = None
    packages: list[Package] = field(default_factory=list)
    note: str | None = None
    error: SandpodError | None = None

    async def waited(self, wait: float | None) -> Installation:
        """Return it as callers see it, at its end or after `wait` seconds."""
        await asyncio.wait({self.task}, timeout=wait)
        problem = self.error.problem().model_dump() if self.error is not None else {}
        return Installation(
            installation=self.name,
            sandbox=self.sandbox,
            status="installing" if self.ended is None else "success" if self.error is None else "failed",
            elapsed=round((self.ended or time.monotonic()) - self.started, 3),
            packages=self.packages,
            note=self.note,
            **problem,
        )


class Installer:
    """Installs packages in callers' sandboxes. Each step of an installation may take `timeout` seconds."""

    def __init__(self, sandboxes: Sandboxes, settings: PackageSettings) -> None:
        self._sandboxes = sandboxes
        self._settings = settings
        self.timeout = settings.timeout
        self._cache = FileCache(settings.cache_dir, settings.cache_bytes)
        shared = (sandboxes, settings, self._cache, FairSlots(settings.concurrency))
        self._channels: dict[str, Channel[Any, Any]] = {
            Language.PYTHON: PythonPackages(*shared),
            Language.JAVASCRIPT: NpmPackages(*shared),
        }
        self._entries: dict[str, _Entry] = {}  # the oldest first
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def open(self) -> None:
        """Open the cache."""
        self._cache.open()

    async def close(self) -> None:
        """Cancel all installations and close the cache."""
        tasks = [entry.task for entry in self._entries.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._cache.close()

    def check(self, packages: list[str], language: str) -> list[Any]:
        """Return the requirements. Raises unsupported_language, invalid_argument, package_blocked."""
        channel = self._channel(language)
        if not self._settings.enabled:
            message, step = "This server installs no packages.", "Use a template whose image has them."
            raise SandpodError(ErrorCode.PACKAGE_BLOCKED, message, next_step=step)
        return channel.parse(packages)

    async def install(
        self, owner: str, packages: list[str], *, language: str, sandbox: str | None, wait: float
    ) -> Installation:
        """Start an installation, or join an equal one, and wait at most `wait` seconds for its end.

        Raises what `check` and `Sandboxes.resolve` raise, or rate_limited.
        """
        wanted = self.check(packages, language)
        record = await self._sandboxes.resolve(owner, sandbox)
        return await self._begin(record, wanted, language).waited(wait)

    async def require(self, record: SandboxRecord, packages: list[str], language: str) -> None:
        """Install what a run needs. Raises as `check` does, rate_limited, or what the installation failed with."""
        entry = self._begin(record, self.check(packages, language), language)
        await asyncio.wait({entry.task})
        if entry.error is not None:
            raise entry.error

    async def get(self, owner: str, name: str, *, wait: float) -> Installation:
        """Return an installation, at its end or after `wait` seconds. Raises not_found."""
        entry = self._entries.get(name)
        if entry is None or entry.owner != owner:
            message = "There is no such installation, or the server was restarted since."
            step = "Call install_packages again: installed packages take no time, and list_packages lists them."
            raise SandpodError(ErrorCode.NOT_FOUND, message, next_step=step)
        return await entry.waited(wait)

    def added(self, sandbox: str) -> list[str]:
        """Return the packages that were added to a sandbox, as far as this server remembers, with their versions."""
        added = [each for entry in self._entries.values() if entry.sandbox == sandbox for each in entry.packages]
        return [f"{name} {version}" for name, version in sorted({each.name: each.version for each in added}.items())]

    async def listed(self, owner: str, *, sandbox: str | None, language: str) -> PackageList:
        """Return the packages of a sandbox, the image's own last.

        Raises unsupported_language, or what `Sandboxes.resolve` and `Program.run` raise.
        """
        channel = self._channel(language)
        record = await self._sandboxes.resolve(owner, sandbox, make=False)
        return PackageList(sandbox=record.name, language=language, packages=await channel.listed(record))

    def _channel(self, language: str) -> Channel[Any, Any]:
        if language not in self._channels:
            message, step = "There are no packages for that language.", "Use language python or javascript."
            raise SandpodError(ErrorCode.UNSUPPORTED_LANGUAGE, message, next_step=step)
        return self._channels[language]

    def _begin(self, record: SandboxRecord, wanted: list[Any], language: str) -> _Entry:
        requested = (language, *(str(requirement) for requirement in wanted))
        live = [entry for entry in self._entries.values() if entry.ended is None]
        for entry in live:
            if (entry.sandbox, entry.requested, entry.owner) == (record.name, requested, record.owner):
                return entry
        if sum(entry.owner == record.owner for entry in live) >= IN_PROGRESS:
            message = f"{IN_PROGRESS} of your installations are in progress."
            step = "Wait for one with get_installation, and name several packages in one call."
            raise SandpodError(ErrorCode.RATE_LIMITED, message, next_step=step)
        entry = _Entry(f"inst-{secrets.token_hex(8)}", record.owner, record.name, requested)
        self._entries[entry.name] = entry
        ended = [name for name, each in self._entries.items() if each.ended is not None]
        for name in ended[: max(0, len(self._entries) - REMEMBERED)]:
            del self._entries[name]
        entry.task = asyncio.create_task(self._carry_out(entry, record, wanted))
        return entry

    async def _carry_out(self, entry: _Entry, record: SandboxRecord, wanted: list[Any]) -> None:
        lock = self._locks.setdefault(record.name, asyncio.Lock())
        keeper = asyncio.create_task(self._sandboxes.keep_alive(record))
        try:
            async with lock:
                entry.packages, entry.note = await self._channels[entry.requested[0]].install(record, wanted)
        except SandpodError as error:
            entry.error = error
        except asyncio.CancelledError:
            step = "Call install_packages again."
            entry.error = SandpodError(ErrorCode.CANCELLED, "The server is shutting down.", next_step=step)
            raise
        except Exception:
            logger.exception("an installation failed")
            entry.error = Failure.SERVER.error()
        finally:
            keeper.cancel()
            entry.ended = time.monotonic()
