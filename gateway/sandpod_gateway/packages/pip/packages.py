"""Python packages of sandboxes, resolved and downloaded with pip, as a process with limits of its own.

Wheels alone, and all of them from the index, so nothing of a package is run: a source package would be. pip sees no
configuration but what is set here. Its output may hold addresses with passwords: only names and versions are passed on.
"""

import contextlib
import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import unquote, urlsplit

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name, canonicalize_version
from pydantic import AliasPath, Field, OnErrorOmit, ValidationError

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.packages.cache import Digest
from sandpod_gateway.packages.channel import MAX_LENGTH, Channel, Resolution
from sandpod_gateway.packages.errors import ConflictError, Failure
from sandpod_gateway.packages.process import guard, run_program, scratch_folder
from sandpod_gateway.packages.sandbox import MAX_PACKAGES, InstalledPackage, Report, Untrusted, Version

_CHARACTERS: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._\-\[\], <>=!~*+()]*", re.ASCII)
_PROGRAM: Final = Path(__file__).with_name("process_main.py")
# Bytes of address space: jupyter, apache-airflow and mlflow at once, 242 packages, take 192 MiB.
_MEMORY: Final = ("RLIMIT_AS", 320 * 2**20)
_METADATA: Final = 4 * 2**20  # characters of one package's metadata: pydantic's, one of the largest, has 144,000
_OPTIONS: Final = (
    *("--isolated", "--no-input", "--no-color", "--disable-pip-version-check", "--no-cache-dir"),
    *("--progress-bar", "off", "--retries", "1", "--timeout", "15", "--only-binary", ":all:"),
)
_GLIBC_OLDEST: Final = 5  # manylinux_2_5, the oldest tag

# What pip says.
_NO_MATCH: Final = re.compile(r"No matching distribution found for ([A-Za-z0-9][\w.\-\[\],<>=!~*+ ]{0,200})")
_VERSIONS: Final = re.compile(
    r"Could not find a version that satisfies the requirement .*\(from versions: (?!none)(.{0,2000})\)"
)
_CONFLICT: Final = re.compile(r"ResolutionImpossible|conflicting dependencies")
_ASKED: Final = re.compile(
    r"^ {4}([A-Za-z0-9][\w.\- ]{0,80} depends on [A-Za-z0-9][\w.\-\[\],<>=!~*+ ]{0,100})$", re.MULTILINE
)
_UNREACHABLE: Final = re.compile(
    r"NewConnectionError|ConnectTimeoutError|Connection(?:Reset|Refused)?Error|Name or service not known|SSLError|"
    r"Temporary failure in name resolution|ReadTimeoutError|ProxyError|certificate verify failed|: 5\d\d Server Error|"
    r"40[13] Client Error"
)
# What is searched for in the output, and what goes into the message; the first match counts.
_MEANINGS: Final = (
    (
        re.compile(r"required by address: ([A-Za-z0-9._-]{1,128});"),
        Failure.BLOCKED,
        "{} is required by an address; only packages of the index are installed.",
    ),
    (
        re.compile(r"too much metadata: ([A-Za-z0-9._-]{1,128});|^MemoryError", re.MULTILINE),
        Failure.BLOCKED,
        "The metadata of {} is too large to be read.",
    ),
    (re.compile("refused address"), Failure.REFUSED_ADDRESS, ""),
    (_UNREACHABLE, Failure.UNREACHABLE, "package index"),
    (re.compile(r"No space left on device|Disk quota exceeded"), Failure.NO_ROOM, ""),
)

_Name = Annotated[str, Field(pattern=r"^[a-z0-9-]{1,128}$")]
_Text = Annotated[str, Field(pattern=r"^[\w.+ -]{0,64}$")]
_HASH: Final = AliasPath("download_info", "archive_info", "hashes", "sha256")


class Target(Untrusted):
    """A Python to install for, as the sandbox reports it; pip gets only what matches these patterns."""

    markers: dict[_Text, _Text]
    abi: Annotated[str, Field(pattern=r"^cp3\d{1,2}t?d?$")]
    platform: Annotated[str, Field(pattern=r"^linux-[a-z0-9_]{1,16}$")]
    libc: tuple[_Text, _Text]

    def pip_options(self) -> list[str]:
        """Return pip's options for choosing wheels for it."""
        python = re.sub(r"\D", "", self.abi)
        options = ["--implementation", "cp", "--python-version", f"{python[0]}.{python[1:]}"]
        for abi in (self.abi, "abi3", "none"):
            options += ["--abi", abi]
        kind, version = self.libc
        minor = re.fullmatch(r"[12]\.(\d{1,3})", version)
        if kind == "glibc" and minor is not None:
            tags = [f"manylinux_2_{number}" for number in range(int(minor[1]), _GLIBC_OLDEST - 1, -1)]
            tags += ["manylinux2014", "manylinux2010", "manylinux1"]
        else:
            tags = ["musllinux_1_2", "musllinux_1_1"]
        for tag in (*tags, "linux"):  # the newest first
            options += ["--platform", f"{tag}_{self.platform.removeprefix('linux-')}"]
        return options


class State(Report):
    """What a sandbox reports of its Python and its packages."""

    environment: Target
    installed: Annotated[dict[OnErrorOmit[_Name], OnErrorOmit[InstalledPackage]], Field(max_length=MAX_PACKAGES)]

    @property
    def packages(self) -> dict[str, InstalledPackage]:
        """The packages that code in the sandbox can import, by name."""
        return self.installed


class Wheel(Untrusted):
    """A wheel to install, from pip's report. `sha256` is None where the index does not have it."""

    name: Annotated[str, Field(validation_alias=AliasPath("metadata", "name"), pattern=r"^[A-Za-z0-9._-]{1,128}$")]
    version: Annotated[Version, Field(validation_alias=AliasPath("metadata", "version"))]
    url: Annotated[str, Field(validation_alias=AliasPath("download_info", "url"))]
    sha256: Annotated[str | None, Field(validation_alias=_HASH, pattern="^[0-9a-f]{64}$")] = None

    @property
    def filename(self) -> str:
        """Return the name of its file."""
        return unquote(urlsplit(self.url).path).rpartition("/")[2]

    @property
    def digest(self) -> Digest | None:
        """Return its hash, if it is known."""
        return Digest("sha256", self.sha256) if self.sha256 is not None else None


class Wheels(Resolution):
    """All wheels that the request needs, from pip's report."""

    packages: Annotated[list[Wheel], Field(validation_alias="install")]


class PythonPackages(Channel[State, Wheels]):
    """Packages of Python."""

    index = "index"
    program = "wheels"
    model = State

    def _parse(self, text: str) -> Requirement:
        # Only the text that is made from this requirement reaches pip's command line.
        plain = len(text) <= MAX_LENGTH and _CHARACTERS.fullmatch(text) is not None
        with contextlib.suppress(InvalidRequirement):
            requirement = Requirement(text) if plain else None
            if requirement is not None and requirement.url is None and requirement.marker is None:
                requirement.name = canonicalize_name(requirement.name)
                return requirement
        message = "That is not a package name: options, paths, addresses and conditions are not taken."
        step = "Use a name with extras or versions if need be, such as numpy, uvicorn[standard] or numpy>=1.26,<3."
        raise SandpodError(ErrorCode.INVALID_ARGUMENT, message, next_step=step)

    def _normal(self, name: str) -> str:
        return canonicalize_name(name)

    def _fits(self, requirement: Requirement, state: State) -> bool:
        # What an extra needs can't be seen from versions.
        version = state.installed[requirement.name].version
        return not requirement.extras and requirement.specifier.contains(version, prereleases=True)

    async def _resolve(self, wanted: list[Requirement], state: State, pins: dict[str, str]) -> Wheels:
        async with scratch_folder() as scratch:
            report, kept = scratch / "report.json", scratch / "constraints.txt"
            kept.write_text("\n".join(f"{name}=={version}" for name, version in sorted(pins.items())), encoding="utf-8")
            options = ["--dry-run", "--ignore-installed", "--report", str(report), "--constraint", str(kept)]
            await self._run_pip(scratch, state.environment, ["install", *options], map(str, wanted))
            try:
                return Wheels.model_validate_json(report.read_bytes())
            except (OSError, ValidationError) as error:
                raise Failure.NO_ANSWER.error("pip") from error

    def _is_missing(self, package: Wheel, state: State) -> bool:
        # Spellings differ: 2024.07 is 2024.7.
        there = state.installed.get(canonicalize_name(package.name))
        return there is None or canonicalize_version(there.version) != canonicalize_version(package.version)

    async def _download(self, packages: list[Wheel], state: State, scratch: Path) -> list[Path]:
        folder = scratch / "wheels"
        folder.mkdir()
        pinned = [f"{wheel.name}=={wheel.version}" for wheel in packages]
        await self._run_pip(scratch, state.environment, ["download", "--no-deps", "--dest", str(folder)], pinned)
        return [folder / wheel.filename for wheel in packages]

    async def _run_pip(self, scratch: Path, target: Target, command: list[str], wanted: Iterable[str]) -> None:
        settings = self._settings
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


def failure_of(output: str, max_bytes: int) -> SandpodError:
    """Return the error for the end of a failed pip's output, where an installation may take `max_bytes`."""
    if _CONFLICT.search(output):
        return ConflictError("; ".join(_ASKED.findall(output)[:4])[:500] or None)
    for pattern, failure, value in _MEANINGS:
        if found := pattern.search(output):
            return failure.error(value.format(*(group or "a package" for group in found.groups())))
    if "File too large" in output:
        return Failure.TOO_LARGE.error(max_bytes)
    if found := _NO_MATCH.search(output):
        return _no_match(found[1].strip(), output)
    return Failure.UNKNOWN.error("pip")


def _no_match(name: str, output: str) -> SandpodError:
    if versions := _VERSIONS.search(output):
        newest = [version.strip() for version in versions[1].split(",")][-5:]
        return Failure.NO_VERSION.error(name, cause=f"The newest that fit this sandbox are {', '.join(newest)}.")
    project = canonicalize_name(re.split(r"[\[<>=!~ ]", name, maxsplit=1)[0])
    if re.search(rf"Fetched page \S+/{re.escape(project)}/? as ", output):
        what = "for this sandbox's Python and platform; source packages are not built"
        return Failure.UNFIT.error(f"There is no wheel of {name} {what}.")
    return Failure.NO_PACKAGE.error("package index", name)
