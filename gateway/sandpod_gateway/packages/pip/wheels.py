"""From requirements to open files of wheels: resolved, and downloaded or found in the cache."""

import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import IO

from cachetools import TTLCache
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, canonicalize_version

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.packages.cache import FileCache
from sandpod_gateway.packages.pip import requirements
from sandpod_gateway.packages.pip.resolver import Pip, Wheel
from sandpod_gateway.packages.pip.target import Target
from sandpod_gateway.packages.process import too_large
from sandpod_gateway.packages.resolution import FRESH, KEPT, ConflictError
from sandpod_gateway.packages.settings import PackageSettings
from sandpod_gateway.packages.turns import Turns

Wheels = list[tuple[Wheel, IO[bytes], int]]


class Supply:
    """Gets wheels."""

    def __init__(self, settings: PackageSettings, cache: FileCache, turns: Turns) -> None:
        self._settings = settings
        self._pip = Pip(settings)
        self._cache = cache
        self._turns = turns
        self._resolutions: TTLCache[tuple[str, ...], list[Wheel]] = TTLCache(KEPT, FRESH)

    @asynccontextmanager
    async def wheels(
        self, owner: str, wanted: list[Requirement], target: Target, there: dict[str, str]
    ) -> AsyncIterator[tuple[Wheels, set[str]]]:
        """Give the wheels that are missing, and the names of all that was asked for with what it depends on.

        Args:
            owner: Whose turn it is.
            wanted: What is asked for.
            target: The Python to install for.
            there: Versions that are installed, by name.

        Raises:
            SandpodError: package_blocked, quota_exceeded, invalid_argument (a conflict), not_found, timeout,
                backend_unavailable, backend_error.
        """
        async with AsyncExitStack() as stack:
            async with self._turns.turn(owner):
                found = await self._resolved(wanted, target, there)
                missing = [wheel for wheel in found if not _is_there(wheel, there)]
                files = await self._files(missing, target, stack)
            if sum(size for _, _, size in files) > self._settings.max_bytes:
                raise too_large(self._settings.max_bytes)
            yield files, {str(canonicalize_name(wheel.name)) for wheel in found}

    async def _resolved(self, wanted: list[Requirement], target: Target, there: dict[str, str]) -> list[Wheel]:
        texts = [str(requirement) for requirement in wanted]
        pins = sorted(f"{name}=={version}" for name, version in there.items())
        key = (*texts, target.key(), *pins)
        wheels = self._resolutions.get(key)
        if wheels is None:
            wheels = self._resolutions[key] = await self._resolve(texts, target, pins)
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


def _is_there(wheel: Wheel, there: dict[str, str]) -> bool:
    """Return whether a version is installed, which may be written otherwise: 2024.07 is 2024.7."""
    version = there.get(canonicalize_name(wheel.name))
    return version is not None and canonicalize_version(version) == canonicalize_version(wheel.version)


def _entry(wheel: Wheel, file: IO[bytes], stack: AsyncExitStack) -> tuple[Wheel, IO[bytes], int]:
    return wheel, stack.enter_context(file), os.fstat(file.fileno()).st_size
