"""Resolves and downloads wheels with pip, as a process with limits of its own.

Wheels alone, and all of them from the index, so nothing of a package is run: a source package would be. pip sees no
configuration but what is set here.
"""

import asyncio
import hashlib
import json
import math
import os
import sys
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import unquote, urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.packages.addresses import guard
from sandpod_gateway.packages.digests import Digest
from sandpod_gateway.packages.pip.errors import failure_of, has_nothing
from sandpod_gateway.packages.pip.target import Target
from sandpod_gateway.packages.process import Limits, run_program, scratch_folder, took_too_long
from sandpod_gateway.packages.settings import PackageSettings

_PROGRAM: Final = Path(__file__).with_name("process_main.py")
_MEMORY: Final = (
    320 * 2**20
)  # bytes of address space: jupyter, apache-airflow and mlflow at once, 242 packages, take 192
_METADATA: Final = 4 * 2**20  # characters of one package's metadata: pydantic's, one of the largest, has 144,000
_OPEN_FILES: Final = 256


@dataclass(frozen=True, slots=True)
class Wheel:
    """A wheel that is to be installed. `sha256` is None where the index does not tell it."""

    name: str
    version: str
    filename: str
    sha256: str | None

    def digest(self) -> Digest | None:
        """Return its hash, if it is known."""
        return Digest("sha256", self.sha256) if self.sha256 is not None else None


class _Archive(BaseModel):
    model_config = ConfigDict(extra="ignore")
    hashes: dict[str, str] = {}


class _Download(BaseModel):
    model_config = ConfigDict(extra="ignore")
    url: str
    archive_info: _Archive = _Archive()


class _Metadata(BaseModel):
    model_config = ConfigDict(extra="ignore")
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,128}$")]
    version: Annotated[str, Field(pattern=r"^[A-Za-z0-9.+!_-]{1,128}$")]


class _Item(BaseModel):
    model_config = ConfigDict(extra="ignore")
    metadata: _Metadata
    download_info: _Download

    def wheel(self) -> Wheel:
        filename = unquote(urlsplit(self.download_info.url).path).rpartition("/")[2]
        sha256 = self.download_info.archive_info.hashes.get("sha256")
        return Wheel(self.metadata.name, self.metadata.version, filename, sha256)


class _Report(BaseModel):
    model_config = ConfigDict(extra="ignore")
    install: list[_Item]


class Pip:
    """pip for one index."""

    def __init__(self, settings: PackageSettings) -> None:
        self._settings = settings

    async def resolve(self, wanted: Iterable[str], target: Target, constraints: Iterable[str]) -> list[Wheel]:
        """Return the wheels that are needed, dependencies included.

        Args:
            wanted: Requirements.
            target: The Python to install for.
            constraints: Versions to keep to, as `name==version`.

        Raises:
            ConflictError: No set of versions satisfies both.
            SandpodError: not_found, quota_exceeded, timeout, backend_unavailable, backend_error.
        """
        async with scratch_folder("pip") as scratch:
            report, kept = scratch / "report.json", scratch / "constraints.txt"
            kept.write_text("\n".join(constraints), encoding="utf-8")
            options = ["--dry-run", "--ignore-installed", "--report", str(report), "--constraint", str(kept)]
            await self._run(scratch, target, ["install", *options], wanted)
            try:
                items = _Report.model_validate_json(report.read_bytes()).install
            except (OSError, ValidationError) as error:
                raise SandpodError(
                    ErrorCode.BACKEND_ERROR, "pip's answer makes no sense.", next_step="Tell the administrator."
                ) from error
        return [item.wheel() for item in items]

    @asynccontextmanager
    async def download(self, wheels: Iterable[Wheel], target: Target) -> AsyncIterator[list[tuple[Wheel, Path]]]:
        """Give the wheels as files, which are there until the block is left; each with its hash.

        Raises:
            SandpodError: As for `resolve`.
        """
        async with scratch_folder("pip") as scratch:
            folder = scratch / "wheels"
            folder.mkdir()
            pins = [f"{wheel.name}=={wheel.version}" for wheel in wheels]
            await self._run(scratch, target, ["download", "--no-deps", "--dest", str(folder)], pins)
            yield await asyncio.to_thread(_matched, list(wheels), folder)

    async def _run(self, scratch: Path, target: Target, command: list[str], wanted: Iterable[str]) -> None:
        arguments = [*command, *self._options(), *target.pip_options(), "--", *wanted]
        try:
            async with asyncio.timeout(self._settings.timeout):
                status, output = await self._start(scratch, target, arguments)
                more = ""
                if status != 0 and has_nothing(output):
                    # Why it took none of the files that there may be is said only to who asks, since it is a lot.
                    _, more = await self._start(scratch, target, [*command, "-vv", *arguments[len(command) :]])
        except TimeoutError as error:
            raise took_too_long() from error
        if status != 0:
            raise failure_of(output, self._settings.max_bytes, more)

    async def _start(self, scratch: Path, target: Target, arguments: list[str]) -> tuple[int | None, str]:
        settings = self._settings
        limits = Limits(
            memory=("RLIMIT_AS", _MEMORY),
            files=_OPEN_FILES,
            file_bytes=settings.max_bytes,
            folder_bytes=settings.max_bytes,
            cpu=math.ceil(settings.timeout),
        )
        told = json.dumps({"guard": guard(settings.index_url), "markers": target.markers, "metadata": _METADATA})
        program = [sys.executable, "-I", str(_PROGRAM), told, *arguments]
        readable = [str(_PROGRAM), *([str(settings.ca_file)] if settings.ca_file is not None else [])]
        return await run_program(program, scratch, limits, env={"PIP_CONFIG_FILE": os.devnull}, readable=readable)

    def _options(self) -> list[str]:
        url = urlsplit(self._settings.index_url)
        options = ["--isolated", "--no-input", "--no-color", "--disable-pip-version-check", "--no-cache-dir"]
        options += ["--progress-bar", "off", "--retries", "1", "--timeout", "15", "--only-binary", ":all:"]
        options += ["--index-url", self._settings.index_url]
        if url.scheme == "http" and url.hostname is not None:
            options += ["--trusted-host", url.netloc.rpartition("@")[2]]
        if self._settings.ca_file is not None:
            options += ["--cert", str(self._settings.ca_file)]
        return options


def _matched(wheels: list[Wheel], folder: Path) -> list[tuple[Wheel, Path]]:
    """Return each wheel with its file, whose hash is compared with what the index said when it was resolved."""
    found: list[tuple[Wheel, Path]] = []
    for wheel in wheels:
        path = folder / wheel.filename
        try:
            with path.open("rb") as file:
                sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError:
            sha256 = ""
        if not sha256 or wheel.sha256 not in {None, sha256}:
            raise SandpodError(
                ErrorCode.BACKEND_ERROR,
                f"What was downloaded of {wheel.name} is not what the index announced.",
                next_step="Try again; tell the administrator if it stays.",
            )
        found.append((Wheel(wheel.name, wheel.version, wheel.filename, sha256), path))
    return found
