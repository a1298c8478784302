"""From requirements to open files of wheels: resolved, downloaded or found in the cache. Called by `installer.py`."""

import asyncio
import os
import time
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import IO

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.packages.cache import FileCache
from sandpod_gateway.packages.pip import requirements
from sandpod_gateway.packages.pip.resolver import Pip, Wheel
from sandpod_gateway.packages.pip.target import Target
from sandpod_gateway.packages.process import too_large
from sandpod_gateway.packages.resolution import ANSWERS, FRESH, ConflictError
from sandpod_gateway.packages.settings import PackageSettings

Wheels = list[tuple[Wheel, IO[bytes], int]]


class Supply:
    """Gets wheels."""

    def __init__(self, settings: PackageSettings, cache: FileCache, turns: asyncio.Semaphore) -> None:
        self._settings = settings
        self._pip = Pip(settings)
        self._cache = cache
        self._turns = turns
        self._answers: OrderedDict[tuple[str, ...], tuple[float, list[Wheel]]] = OrderedDict()

    @asynccontextmanager
    async def wheels(
        self, wanted: list[Requirement], target: Target, there: dict[str, str]
    ) -> AsyncIterator[tuple[Wheels, set[str]]]:
        """Give the wheels that are missing, and the names of all that was asked for with what it depends on.

        Args:
            wanted: What is asked for.
            target: The Python to install for.
            there: Versions that are installed, by name.

        Raises:
            SandpodError: package_blocked, quota_exceeded, invalid_argument (a conflict), not_found, timeout,
                backend_unavailable, backend_error.
        """
        async with AsyncExitStack() as stack:
            async with self._turns:
                found = await self._resolved(wanted, target, there)
                missing = [wheel for wheel in found if there.get(canonicalize_name(wheel.name)) != wheel.version]
                files = await self._files(missing, target, stack)
            if sum(size for _, _, size in files) > self._settings.max_bytes:
                raise too_large(self._settings.max_bytes)
            yield files, {str(canonicalize_name(wheel.name)) for wheel in found}

    async def _resolved(self, wanted: list[Requirement], target: Target, there: dict[str, str]) -> list[Wheel]:
        texts = [str(requirement) for requirement in wanted]
        pins = sorted(f"{name}=={version}" for name, version in there.items())
        key = (*texts, target.key(), *pins)
        known = self._answers.get(key)
        if known is None or time.monotonic() - known[0] > FRESH:
            known = (time.monotonic(), await self._resolve(texts, target, pins))
            self._answers[key] = known
            self._answers.move_to_end(key)
            while len(self._answers) > ANSWERS:
                self._answers.popitem(last=False)
        wheels = known[1]
        requirements.check_denied((wheel.name for wheel in wheels), self._settings)
        if len(wheels) > self._settings.max_packages:
            raise SandpodError(
                ErrorCode.QUOTA_EXCEEDED,
                f"The packages depend on {len(wheels)} in all, over the limit of {self._settings.max_packages}.",
                next_step="Ask for less, or use a template whose image has them.",
            )
        return wheels

    async def _resolve(self, texts: list[str], target: Target, pins: list[str]) -> list[Wheel]:
        """Resolve with the versions that are there, so that nothing is replaced which need not be, or without."""
        try:
            return await self._pip.resolve(texts, target, pins)
        except ConflictError:
            try:
                return await self._pip.resolve(texts, target, [])
            except ConflictError as error:
                raise error.told() from error

    async def _files(self, wheels: list[Wheel], target: Target, stack: AsyncExitStack) -> Wheels:
        files: Wheels = []
        absent = []
        for wheel in wheels:
            file = await self._cache.get(wheel.digest())
            if file is None:
                absent.append(wheel)
            else:
                files.append(_entry(wheel, file, stack))
        if absent:
            async with self._pip.download(absent, target) as downloaded:
                for wheel, path in downloaded:
                    files.append(_entry(wheel, await self._cache.add(path, wheel.digest()), stack))
        return files


def _entry(wheel: Wheel, file: IO[bytes], stack: AsyncExitStack) -> tuple[Wheel, IO[bytes], int]:
    return wheel, stack.enter_context(file), os.fstat(file.fileno()).st_size
