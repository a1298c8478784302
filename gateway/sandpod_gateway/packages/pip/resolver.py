"""Resolves and downloads wheels with pip, as a process with limits of its own.

Wheels alone, and all of them from the index, so nothing of a package is run: a source package would be. pip sees no
configuration but what is set here.
"""

import json
import sys
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import unquote, urlsplit

from pydantic import AliasPath, Field, ValidationError

from sandpod_gateway.packages.cache import Digest
from sandpod_gateway.packages.errors import Failure
from sandpod_gateway.packages.pip.errors import failure_of
from sandpod_gateway.packages.pip.target import Target
from sandpod_gateway.packages.process import guard, run_program, scratch_folder
from sandpod_gateway.packages.sandbox import Untrusted, Version
from sandpod_gateway.packages.settings import PackageSettings

_PROGRAM: Final = Path(__file__).with_name("process_main.py")
# Bytes of address space: jupyter, apache-airflow and mlflow at once, 242 packages, take 192 MiB.
_MEMORY: Final = ("RLIMIT_AS", 320 * 2**20)
_METADATA: Final = 4 * 2**20  # characters of one package's metadata: pydantic's, one of the largest, has 144,000
_OPTIONS: Final = (
    *("--isolated", "--no-input", "--no-color", "--disable-pip-version-check", "--no-cache-dir"),
    *("--progress-bar", "off", "--retries", "1", "--timeout", "15", "--only-binary", ":all:"),
)


class Wheel(Untrusted):
    """A wheel that is to be installed, read from pip's report. `sha256` is None where the index does not have it."""

    name: Annotated[str, Field(validation_alias=AliasPath("metadata", "name"), pattern=r"^[A-Za-z0-9._-]{1,128}$")]
    version: Annotated[Version, Field(validation_alias=AliasPath("metadata", "version"))]
    url: Annotated[str, Field(validation_alias=AliasPath("download_info", "url"))]
    sha256: Annotated[
        str | None,
        Field(
            validation_alias=AliasPath("download_info", "archive_info", "hashes", "sha256"), pattern="^[0-9a-f]{64}$"
        ),
    ] = None

    @property
    def filename(self) -> str:
        """Return the name of its file."""
        return unquote(urlsplit(self.url).path).rpartition("/")[2]

    @property
    def digest(self) -> Digest | None:
        """Return its hash, if it is known."""
        return Digest("sha256", self.sha256) if self.sha256 is not None else None


class Wheels(Untrusted):
    """All wheels that are to be there, read from pip's report."""

    packages: Annotated[list[Wheel], Field(validation_alias="install")]


async def resolve(wanted: Iterable[str], target: Target, pins: dict[str, str], settings: PackageSettings) -> Wheels:
    """Return the wheels that are needed, dependencies included.

    Args:
        wanted: Requirements.
        target: The Python to install for.
        pins: Versions to keep to, by name.
        settings: The index and the limits.

    Raises:
        ConflictError: No set of versions satisfies both.
        SandpodError: not_found, package_blocked, quota_exceeded, timeout, backend_unavailable, backend_error.
    """
    async with scratch_folder("pip") as scratch:
        report, kept = scratch / "report.json", scratch / "constraints.txt"
        kept.write_text("\n".join(f"{name}=={version}" for name, version in sorted(pins.items())), encoding="utf-8")
        options = ["--dry-run", "--ignore-installed", "--report", str(report), "--constraint", str(kept)]
        await _run(scratch, target, ["install", *options], wanted, settings)
        try:
            return Wheels.model_validate_json(report.read_bytes())
        except (OSError, ValidationError) as error:
            raise Failure.NO_ANSWER.error("pip") from error


@asynccontextmanager
async def download(wheels: Iterable[Wheel], target: Target, settings: PackageSettings) -> AsyncIterator[list[Path]]:
    """Give the wheels as files, which are there until the block is left; nobody has compared their hashes.

    Raises:
        SandpodError: As for `resolve`.
    """
    async with scratch_folder("pip") as scratch:
        folder = scratch / "wheels"
        folder.mkdir()
        pinned = [f"{wheel.name}=={wheel.version}" for wheel in wheels]
        await _run(scratch, target, ["download", "--no-deps", "--dest", str(folder)], pinned, settings)
        yield [folder / wheel.filename for wheel in wheels]


async def _run(
    scratch: Path, target: Target, command: list[str], wanted: Iterable[str], settings: PackageSettings
) -> None:
    url = urlsplit(settings.index_url)
    options = [*_OPTIONS, "--index-url", settings.index_url]
    if url.scheme == "http" and url.hostname is not None:
        options += ["--trusted-host", url.netloc.rpartition("@")[2]]
    if settings.ca_file is not None:
        options += ["--cert", str(settings.ca_file)]
    job = {"guard": guard(settings.index_url), "markers": target.markers, "metadata": _METADATA}
    program = [sys.executable, "-I", str(_PROGRAM), json.dumps(job)]
    arguments = [*command, *options, *target.pip_options(), "--", *wanted]
    status, output = await run_program(
        [*program, *arguments], scratch, settings, memory=_MEMORY, files=256, readable=[str(_PROGRAM)]
    )
    if status != 0:
        raise failure_of(output, settings.max_bytes)
