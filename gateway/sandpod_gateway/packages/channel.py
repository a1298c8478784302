"""Packages of one kind, from the request to the installation in a sandbox."""

import asyncio
import json
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import ExitStack, asynccontextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, ClassVar, Final, Generic, TypeVar
from weakref import WeakValueDictionary

from cachetools import TTLCache

from sandpod_gateway.api.results import ErrorCode, Package, PackageInfo
from sandpod_gateway.auth.current import current_caller
from sandpod_gateway.backends.base import SandboxRecord
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.packages.cache import Content, FileCache
from sandpod_gateway.packages.errors import ConflictError, Failure
from sandpod_gateway.packages.process import scratch_folder
from sandpod_gateway.packages.sandbox import Report, S, Untrusted
from sandpod_gateway.packages.settings import NpmSettings, PackageSettings
from sandpod_gateway.packages.talk import Program, Talk
from sandpod_gateway.sandboxes.service import Sandboxes
from sandpod_gateway.usage.amounts import account_of

MAX_REQUESTED: Final = 50
MAX_LENGTH: Final = 200
"""Characters of one package's name and version."""
_RESOLUTIONS: Final = 256  # that are kept
_FRESH: Final = 600.0  # seconds that one is kept for: the index may have newer versions then


class FairSlots:
    """Slots of which one owner has half at most: slow installations of one owner don't delay another's.

    An owner's calls queue for that half first, and only then with those of all owners.
    """

    def __init__(self, count: int) -> None:
        self._all = asyncio.Semaphore(count)
        self._share = max(1, count // 2)
        self._owners: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    @asynccontextmanager
    async def slot(self, owner: str) -> AsyncIterator[None]:
        """Wait for a slot, which is held until the block is left."""
        own = self._owners.setdefault(owner, asyncio.Semaphore(self._share))
        async with own, self._all:
            yield


class Resolution(Untrusted):
    """All packages that the request needs: each with a `name`, and a `digest` or None where the index has none."""

    packages: list[Any]


R = TypeVar("R", bound=Resolution)


class Channel(ABC, Generic[S, R]):
    """Packages of one kind. A requirement has a `name`, and equal requirements have the same text."""

    index: ClassVar[str]  # what messages call the source of the packages
    program: ClassVar[str]  # the module of `inside` that reports and installs packages in a sandbox
    model: type[S]  # its report

    def __init__(self, sandboxes: Sandboxes, settings: PackageSettings, cache: FileCache, slots: FairSlots) -> None:
        self._settings = settings
        self._cache = cache
        self._slots = slots
        self._program = Program(sandboxes, self.program, self.model, settings.timeout)
        self._sandboxes = sandboxes
        self._resolutions: TTLCache[tuple[str, ...], R] = TTLCache(_RESOLUTIONS, _FRESH)

    @property
    def _limits(self) -> PackageSettings | NpmSettings:
        """Which packages may be installed, and how many."""
        return self._settings

    def parse(self, packages: list[str]) -> list[Any]:
        """Return the requirements, sorted and without duplicates. Raises invalid_argument, package_blocked."""
        if not 1 <= len(packages) <= MAX_REQUESTED:
            message = f"An installation takes 1 to {MAX_REQUESTED} packages."
            step = "Name them, or install them in several calls."
            raise SandpodError(ErrorCode.INVALID_ARGUMENT, message, next_step=step)
        wanted = [self._parse(text.strip()) for text in packages]
        self._check_requested([requirement.name for requirement in wanted])
        return sorted({str(requirement): requirement for requirement in wanted}.values(), key=str)

    def _check_requested(self, names: Sequence[str]) -> None:
        self._check_installed(names)
        for name in names:
            if self._limits.allow and not self._matches(name, self._limits.allow):
                raise Failure.BLOCKED_NAME.error(name, "is not on this server's list of allowed packages")

    def _check_installed(self, names: Iterable[str]) -> None:
        for name in names:
            if self._matches(name, self._limits.deny):
                raise Failure.BLOCKED_NAME.error(name, "is on this server's list of blocked packages")

    def _matches(self, name: str, patterns: list[str]) -> bool:
        return any(fnmatchcase(self._normal(name), self._normal(pattern)) for pattern in patterns)

    async def listed(self, record: SandboxRecord) -> list[PackageInfo]:
        """Return the packages of a sandbox, the image's own last. Raises what `Program.report` raises."""
        there = (await self._program.report(record)).packages
        found = [PackageInfo(name=name, **dict(each)) for name, each in there.items()]
        return sorted(found, key=lambda package: (package.source == "image", package.name))

    def talk(self, record: SandboxRecord, run: str) -> Talk[S]:
        """Return what is to be a program of that name in a sandbox."""
        return Talk(self._program, record, run)

    async def install(self, talk: Talk[S], wanted: list[Any]) -> tuple[list[Package], str | None]:
        """Install what is missing, over a program that has begun.

        Return the packages with their dependencies, and a note for the caller. Raises what `supplied` and `talk` raise,
        or quota_exceeded: the caller may move no more bytes today.
        """
        account, record = account_of(current_caller()), talk.record
        state = await talk.report()
        present = self.present(wanted, state)
        if present is not None:
            return present, None
        self._sandboxes.meter.check_bytes(account)
        async with self.supplied(record.owner, wanted, state) as (found, files):
            missing = [
                {**package.model_dump(include={"name", "path"}), "sha256": content.sha256, "size": content.size}
                for package, content in files
            ]
            changes = self._changes(wanted, state, found, files)
            if missing or changes:
                size = sum(content.size for _, content in files)
                order = {"packages": missing, **changes}
                with self._sandboxes.meter.moving(account, record.name, packages=size):
                    state = await talk.install(order, [content.file for _, content in files])
        return self._result(found, [package for package, _ in files], state)

    def present(self, wanted: list[Any], state: S) -> list[Package] | None:
        """Return the requested packages if all are installed already, else None."""
        fits = all(each.name in state.packages and self._fits(each, state) for each in wanted)
        return installed({each.name for each in wanted}, state) if fits else None

    @asynccontextmanager
    async def supplied(
        self, owner: str, wanted: list[Any], state: S
    ) -> AsyncIterator[tuple[R, list[tuple[Any, Content]]]]:
        """Yield all packages that the request needs, and with their content those that the sandbox's `state` lacks.

        A slot of the owner is held until they are downloaded. Raises package_blocked, quota_exceeded, invalid_argument
        (a conflict), not_found, timeout, backend_unavailable, backend_error.
        """
        most = self._settings.max_bytes
        with ExitStack() as stack:
            async with self._slots.slot(owner):
                found = await self._resolved(wanted, state)
                missing = [package for package in found.packages if self._is_missing(package, state)]
                files = await self._files(missing, state, stack)
            if sum(content.size for _, content in files) > most:
                raise Failure.TOO_LARGE.error(most)
            yield found, files

    async def _resolved(self, wanted: list[Any], state: S) -> R:
        pins = self._pins(state)
        target = state.model_dump_json(include={"environment": True, "record": {"dependencies"}})
        key = (*map(str, wanted), target, json.dumps(pins, sort_keys=True))
        found = self._resolutions.get(key)
        if found is None:
            try:
                found = await self._resolve(wanted, state, pins)
            except ConflictError:
                if not pins:
                    raise
                found = await self._resolve(wanted, state, {})  # some installed versions have to be replaced
            self._resolutions[key] = found
        self._check_installed(package.name for package in found.packages)
        if len(found.packages) > self._limits.max_packages:
            raise Failure.TOO_MANY.error(len(found.packages), self._limits.max_packages)
        return found

    async def _files(self, packages: list[Any], state: S, stack: ExitStack) -> list[tuple[Any, Content]]:
        keys = [package.digest or package.name for package in packages]
        absent = dict(zip(keys, packages, strict=True))  # the same content may be in several places
        contents: dict[Any, Content] = {}
        for key, package in list(absent.items()):
            content = await self._cache.get(package.digest)
            if content is not None:
                stack.enter_context(content.file)
                contents[key] = content
                del absent[key]
        if absent:
            async with scratch_folder() as scratch:
                paths = await self._download(list(absent.values()), state, scratch)
                for (key, package), path in zip(absent.items(), paths, strict=True):
                    content = await self._cache.add(path, package.digest)
                    if content is None:
                        raise Failure.DAMAGED.error(package.name, self.index)
                    stack.enter_context(content.file)
                    contents[key] = content
        return [(package, contents[key]) for package, key in zip(packages, keys, strict=True)]

    @abstractmethod
    def _parse(self, text: str) -> Any:
        """Return a requirement from its text."""

    @abstractmethod
    def _normal(self, name: str) -> str:
        """Return a name or a pattern as it is compared."""

    @abstractmethod
    def _fits(self, requirement: Any, state: S) -> bool:
        """Return whether the installed package of that name satisfies a requirement."""

    def _pins(self, state: S) -> dict[str, Any]:
        """Return the versions to keep where that is possible."""
        return {name: each.version for name, each in state.packages.items()}

    @abstractmethod
    async def _resolve(self, wanted: list[Any], state: S, pins: dict[str, Any]) -> R:
        """Return all packages that the request needs. Raises ConflictError: no set of versions satisfies all."""

    @abstractmethod
    def _is_missing(self, package: Any, state: S) -> bool:
        """Return whether a package is not installed in that version."""

    @abstractmethod
    async def _download(self, packages: list[Any], state: S, scratch: Path) -> list[Path]:
        """Download packages into a folder, and return their files."""

    def _changes(self, wanted: list[Any], state: S, found: R, files: list[tuple[Any, Content]]) -> dict[str, Any]:
        """Return what the program in the sandbox is to do in addition to installing the missing packages."""
        del wanted, state, found, files
        return {}

    def _result(self, found: R, added: list[Any], state: S) -> tuple[list[Package], str | None]:
        """Return the result of `install`."""
        del added
        return installed({self._normal(package.name) for package in found.packages}, state), None


def installed(names: set[str], state: Report) -> list[Package]:
    """Return installed packages as callers see them, in order of their names."""
    there = [(name, state.packages[name]) for name in sorted(names & state.packages.keys())]
    return [Package(name=name, version=each.version, sha256=each.sha256) for name, each in there]
