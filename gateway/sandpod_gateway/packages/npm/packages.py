"""npm packages of sandboxes: looked up, resolved, downloaded or taken from the cache. Called by `installer.py`."""

import asyncio
import os
import time
from collections import OrderedDict
from contextlib import AsyncExitStack
from dataclasses import dataclass
from io import BufferedReader
from typing import Any, Final

from sandpod_gateway.api.package_results import Package, PackageInfo
from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.backends.base import SandboxRecord
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.packages.cache import DamagedError, FileCache
from sandpod_gateway.packages.channel import Installed
from sandpod_gateway.packages.digests import Digest
from sandpod_gateway.packages.npm import requirements as npm_requirements
from sandpod_gateway.packages.npm.errors import damaged
from sandpod_gateway.packages.npm.requirements import NpmRequirement
from sandpod_gateway.packages.npm.resolver import Npm, NpmPackage, Resolved
from sandpod_gateway.packages.npm.state import NpmRecord, NpmState, NpmTarget
from sandpod_gateway.packages.process import too_large
from sandpod_gateway.packages.resolution import ANSWERS, FRESH, ConflictError
from sandpod_gateway.packages.sandbox import PackagesInside
from sandpod_gateway.packages.settings import PackageSettings
from sandpod_gateway.sandboxes.service import Sandboxes

_NAMED: Final = 5  # packages that a note names


@dataclass(frozen=True, slots=True)
class _File:
    """A package with its open file."""

    package: NpmPackage
    file: BufferedReader
    sha256: str
    size: int

    def ordered(self) -> dict[str, Any]:
        return {"name": self.package.name, "path": self.package.path, "sha256": self.sha256, "size": self.size}


class NpmPackages:
    """Packages of npm."""

    def __init__(
        self, sandboxes: Sandboxes, settings: PackageSettings, cache: FileCache, turns: asyncio.Semaphore
    ) -> None:
        self._settings = settings
        self._npm = Npm(settings)
        self._cache = cache
        self._turns = turns
        self._inside = PackagesInside(sandboxes, "npm", NpmState, timeout=settings.timeout)
        self._answers: OrderedDict[tuple[str, ...], tuple[float, Resolved]] = OrderedDict()

    def parse(self, packages: list[str]) -> list[NpmRequirement]:
        """Return what is asked for.

        Raises:
            SandpodError: invalid_argument, package_blocked.
        """
        wanted = npm_requirements.parse(packages)
        npm_requirements.check_allowed(wanted, self._settings.npm)
        return wanted

    async def listed(self, record: SandboxRecord) -> list[PackageInfo]:
        """Return the packages of a sandbox that programs find by their names."""
        state = await self._look(record)
        added = [
            PackageInfo(
                name=path.removeprefix("node_modules/"),
                version=entry.version,
                sha256=entry.sha256 or None,
                source="installed",
            )
            for path, entry in sorted(state.record.packages.items())
            if path.count("node_modules/") == 1
        ]
        names = {package.name for package in added}
        own = [
            PackageInfo(name=name, version=version, source="image")
            for name, version in sorted(state.image.items())
            if name not in names
        ]
        return added + own

    async def install(self, record: SandboxRecord, wanted: list[NpmRequirement]) -> Installed:
        """Install what is not there yet.

        Raises:
            SandpodError: package_blocked, quota_exceeded, invalid_argument (a conflict), not_found, timeout,
                backend_unavailable, backend_error, sandbox_lost, execution_failed.
        """
        state = await self._look(record)
        target = state.environment
        if target is None:
            raise SandpodError(
                ErrorCode.UNSUPPORTED_LANGUAGE,
                "This sandbox has no Node.js.",
                next_step="Use a template whose image has it.",
            )
        if all(_is_there(requirement, state) for requirement in wanted):
            return Installed([_told(requirement.name, state) for requirement in wanted])
        async with AsyncExitStack() as stack:
            async with self._turns:
                found = await self._resolved(wanted, target, self._usable(state.record))
                missing = [package for package in found.packages if _is_missing(package, state.record)]
                files = await self._files(missing, target, stack)
            if sum(file.size for file in files) > self._settings.max_bytes:
                raise too_large(self._settings.max_bytes)
            order = _order(state.record, wanted, found, files)
            state = await self._inside.install(record, order, [file.file for file in files])
        needed = sorted((package for package in found.packages if package.needed), key=lambda package: package.path)
        return Installed([_of(package, state) for package in needed], _note(missing))

    def _usable(self, record: NpmRecord) -> NpmRecord:
        """Return what a resolution may start from: where names are listed, a sandbox's record must not add any.

        Its lock file could name other packages as dependencies of those that are allowed: then it is not used, and
        dependencies come at the newest versions that fit.
        """
        settings = self._settings.npm
        if not settings.allow:
            return record
        return NpmRecord(dependencies=npm_requirements.allowed_of(record.dependencies, settings))

    async def _look(self, record: SandboxRecord) -> NpmState:
        return await self._inside.look(record)

    async def _resolved(self, wanted: list[NpmRequirement], target: NpmTarget, record: NpmRecord) -> Resolved:
        texts = {requirement.name: str(requirement) for requirement in wanted}
        key = (*texts.values(), target.model_dump_json(), record.key())
        known = self._answers.get(key)
        if known is None or time.monotonic() - known[0] > FRESH:
            known = (time.monotonic(), await self._resolve(texts, target, record))
            self._answers[key] = known
            self._answers.move_to_end(key)
            while len(self._answers) > ANSWERS:
                self._answers.popitem(last=False)
        found = known[1]
        npm_requirements.check_denied((package.name for package in found.packages), self._settings.npm)
        most = self._settings.npm.max_packages
        if len(found.packages) > most:
            raise SandpodError(
                ErrorCode.QUOTA_EXCEEDED,
                f"With what they depend on these are {len(found.packages)} packages, over the limit of {most}.",
                next_step="Ask for less, or use a template whose image has them.",
            )
        return found

    async def _resolve(self, texts: dict[str, str], target: NpmTarget, record: NpmRecord) -> Resolved:
        """Resolve with the versions that are there, so that nothing is replaced which need not be, or without."""
        try:
            return await self._npm.resolve(texts, target, record, keep=True)
        except ConflictError as error:
            if not record.packages:
                raise error.told() from error
        try:
            return await self._npm.resolve(texts, target, record, keep=False)
        except ConflictError as error:
            raise error.told() from error

    async def _files(self, packages: list[NpmPackage], target: NpmTarget, stack: AsyncExitStack) -> list[_File]:
        groups: dict[Digest, list[NpmPackage]] = {}
        for package in packages:
            groups.setdefault(package.digest(), []).append(package)
        files: dict[Digest, BufferedReader] = {}
        for digest in groups:
            file = await self._cache.get(digest)
            if file is not None:
                files[digest] = stack.enter_context(file)
        absent = [group[0] for digest, group in groups.items() if digest not in files]
        if absent:
            async with self._npm.download(absent, target) as downloaded:
                for package, path in downloaded:
                    try:
                        file = await self._cache.add(path, package.digest())
                    except DamagedError as error:
                        raise damaged() from error
                    files[package.digest()] = stack.enter_context(file)
        found = []
        for digest, group in groups.items():
            sha256, size = await asyncio.to_thread(_measured, files[digest])
            found += [_File(package, files[digest], sha256, size) for package in group]
        return found


def _order(before: NpmRecord, wanted: list[NpmRequirement], found: Resolved, files: list[_File]) -> dict[str, Any]:
    """Return what the program in the sandbox is told: what comes, what goes, and the record of it all."""
    hashes = {path: entry.sha256 for path, entry in before.packages.items()}
    hashes |= {file.package.path: file.sha256 for file in files}
    paths = {package.path for package in found.packages}
    packages = {path: {**entry, "sha256": hashes.get(path, "")} for path, entry in found.lock.items() if path in paths}
    asked = before.asked | {requirement.name: str(requirement) for requirement in wanted}
    return {
        "packages": [file.ordered() for file in files],
        "gone": sorted(set(before.packages) - paths),
        "asked": [requirement.name for requirement in wanted],
        "record": {"asked": asked, "dependencies": found.dependencies, "packages": packages},
    }


def _is_there(requirement: NpmRequirement, state: NpmState) -> bool:
    if state.record.top(requirement.name) is not None:
        return not requirement.spec or state.record.asked.get(requirement.name) == str(requirement)
    return requirement.name in state.image and requirement.spec in {"", state.image[requirement.name]}


def _is_missing(package: NpmPackage, record: NpmRecord) -> bool:
    there = record.packages.get(package.path)
    return there is None or there.version != package.version


def _told(name: str, state: NpmState) -> Package:
    entry = state.record.top(name)
    if entry is None:
        return Package(name=name, version=state.image[name])
    return Package(name=name, version=entry.version, sha256=entry.sha256 or None)


def _of(package: NpmPackage, state: NpmState) -> Package:
    entry = state.record.packages.get(package.path)
    return Package(name=package.name, version=package.version, sha256=(entry.sha256 if entry else "") or None)


def _note(installed: list[NpmPackage]) -> str | None:
    names = sorted({package.name for package in installed if package.script})
    if not names:
        return None
    told = ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")
    return (
        f"Scripts that packages run at their installation were not run: those of {told}. What they would have built or "
        "downloaded is not there; where a program misses it, use another package."
    )


def _measured(file: BufferedReader) -> tuple[str, int]:
    return Digest.of(file, "sha256").value, os.fstat(file.fileno()).st_size
